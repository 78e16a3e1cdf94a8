package integration

import (
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// onCgroups tries to write to a cgroup file system, and says by which way it
// could: the one there, that one mounted anew, a new one, and each of those as
// root of a user namespace of its own. $1 is the script itself.
const onCgroups = `write() {
	for d in $1 $1/*; do
		test -e $d/cgroup.procs || continue
		mkdir $d/canary && rmdir $d/canary && echo made a group by $2
		echo /bin/canary > $d/release_agent && echo wrote release_agent by $2
		echo 1 > $d/notify_on_release && echo wrote notify_on_release by $2
	done
}
again=$0
exec 2>/dev/null
write /sys/fs/cgroup "what is there, $again"
for d in /sys/fs/cgroup /sys/fs/cgroup/* /sys; do mount -o remount,bind,rw $d && write $d "remounting, $again"; done
mkdir -p /tmp/cgroup
for o in memory pids none,name=canary; do
	mount -t cgroup -o $o none /tmp/cgroup && { write /tmp/cgroup "a new mount, $again"; umount /tmp/cgroup; }
done
mount -t cgroup2 none /tmp/cgroup && { write /tmp/cgroup "a new mount, $again"; umount /tmp/cgroup; }
test "$again" = again || attack as-root sh -c "$1" again
true`

// CVE-2022-0492, CVE-2023-25809.
func TestAttackOnCgroups(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	tmp := withMount(specs.Mount{Source: "tmpfs", Destination: "/tmp", Type: "tmpfs"})
	attack := func(changes ...func(*specs.Spec)) result {
		return r.runBundle(newAttack(t, []string{"sh", "-c", onCgroups, "once", onCgroups}, append(changes, tmp)...))
	}
	cgroupns := func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	nothing := func(*specs.Spec) {}
	for name, change := range map[string]func(*specs.Spec){
		"as Docker": nothing, "with a cgroup namespace": cgroupns,
		"with a user namespace": mapped(1), "as a user": asUser(1000),
	} {
		if got := attack(change, withFilter(t)); got.code != 0 || got.stdout != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	got := attack(withCapabilities("CAP_SYS_ADMIN"))
	if !strings.Contains(got.stdout, "made a group by remounting, once\n") {
		t.Errorf("with CAP_SYS_ADMIN it should get through: %+v", got)
	}
	got = attack(cgroupns)
	if !strings.Contains(got.stdout, "made a group by a new mount, again\n") {
		t.Errorf("without a filter it should get through by a user namespace: %+v", got)
	}
}

func TestAttackOnCgroupsInDo(t *testing.T) {
	s := newSandboxes(t)
	for _, user := range []string{"0", "1000"} {
		got := s.do("--rootfs", sharedAttackRoot(t), "--user", user, "--", "sh", "-c", onCgroups, "once", onCgroups)
		if got.code != 0 || got.stdout != "" {
			t.Errorf("--user %s: %+v", user, got)
		}
	}
}
