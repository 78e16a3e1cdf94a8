package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// throughMasks tries what masked and read-only paths are there to prevent. The
// names it writes to are the container's own.
const throughMasks = `for f in /proc/keys /proc/timer_list /proc/kcore; do head -c 1 $f 2>/dev/null | grep -q . && echo read $f; done
for d in /proc/scsi /sys/firmware /proc/acpi; do ls $d 2>/dev/null | grep -q . && echo listed $d; done
for f in /proc/sys/kernel/hostname /proc/sys/kernel/domainname; do echo canary 2>/dev/null > $f && echo wrote $f; done
for f in /proc/sysrq-trigger /proc/irq/default_smp_affinity; do test -w $f && dd if=/dev/null of=$f 2>/dev/null && echo opened $f; done
true`

func unmasked(s *specs.Spec) { s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil }

func TestAttackThroughMaskedPaths(t *testing.T) {
	s := newSandboxes(t)
	r := ours(t)
	command := []string{"sh", "-c", throughMasks}
	if got := r.runBundle(newAttack(t, command)); got.code != 0 || got.stdout != "" {
		t.Errorf("got %+v", got)
	}
	got := r.runBundle(newAttack(t, command, unmasked))
	for _, want := range []string{"read /proc/keys", "listed /sys/firmware", "wrote /proc/sys/kernel/hostname"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("without masks it should have %s: %+v", want, got)
		}
	}
	for _, user := range []string{"0", "1000"} {
		if got := s.do("--user", user, "--rootfs", sharedAttackRoot(t), "--", "sh", "-c", throughMasks); got.code != 0 || got.stdout != "" {
			t.Errorf("do --user %s: %+v", user, got)
		}
	}
}

// CVE-2019-16884, 2019-19921, 2023-27561: an image or a volume puts something
// of its own where /proc or /sys is mounted, so that masks and labels go there.
func TestAttackOnWhereProcIsMounted(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	control := newAttack(t, []string{"cat", "/proc/sys/net/ipv4/ip_forward"}, withRoot(newAttackRoot(t)), forwarding)
	if got := r.runBundle(control); got != (result{0, "1\n", ""}) {
		t.Errorf("without an attack: %+v", got)
	}
	for name, attack := range map[string]struct {
		// prepare changes the root; fake is a directory of the host.
		prepare func(t *testing.T, root, fake string)
		spec    func(fake string) func(*specs.Spec)
	}{
		"proc is a link to a directory of the image": {prepare: func(t *testing.T, root, _ string) {
			replaceByLink(t, filepath.Join(root, "proc"), "/tmp")
		}},
		"proc is a link to the host": {prepare: func(t *testing.T, root, fake string) {
			replaceByLink(t, filepath.Join(root, "proc"), fake)
		}},
		"sys is a link": {prepare: func(t *testing.T, root, _ string) {
			replaceByLink(t, filepath.Join(root, "sys"), "/tmp")
		}},
		"proc is a link into a volume": {
			prepare: func(t *testing.T, root, _ string) { replaceByLink(t, filepath.Join(root, "proc"), "/volume/proc") },
			spec:    func(fake string) func(*specs.Spec) { return withVolumeFirst(fake, "/volume") },
		},
		"proc is a volume":          {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/proc") }},
		"proc was a volume already": {spec: func(fake string) func(*specs.Spec) { return withVolumeFirst(fake, "/proc") }},
		"proc is a tmpfs": {spec: func(string) func(*specs.Spec) {
			return withMount(specs.Mount{Source: "tmpfs", Destination: "/proc", Type: "tmpfs"})
		}},
		"a volume below proc":                  {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/proc/sys") }},
		"a volume on a process's directory":    {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/proc/self") }},
		"a volume below proc by a detour":      {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/tmp/../proc//./sys") }},
		"a volume below proc by the root":      {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/../../proc/sys") }},
		"a volume below proc by a link":        {prepare: linkToProc, spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/link/sys") }},
		"a volume on proc by a link":           {prepare: linkToProc, spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/link") }},
		"a volume over the whole root":         {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/") }},
		"a volume over the root by a detour":   {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/tmp/..") }},
		"a volume on a descriptor of the host": {spec: func(fake string) func(*specs.Spec) { return withVolume(fake, "/proc/self/fd/5") }},
	} {
		t.Run(name, func(t *testing.T) {
			root, fake := newAttackRoot(t), fakeProc(t)
			if attack.prepare != nil {
				attack.prepare(t, root, fake)
			}
			changes := []func(*specs.Spec){withRoot(root), forwarding}
			if attack.spec != nil {
				changes = append(changes, attack.spec(fake))
			}
			before := tree(t, fake)
			got := r.runBundle(newAttack(t, []string{"sh", "-c", throughMasks}, changes...))
			if got.code == 0 || got.stdout != "" {
				t.Errorf("it ran: %+v", got)
			}
			if after := tree(t, fake); after != before {
				t.Errorf("the fake has changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// forwarding has the runtime write below the container's /proc.
func forwarding(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"} }

func linkToProc(t *testing.T, root, _ string) {
	t.Helper()
	if err := os.Symlink("proc", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
}

func replaceByLink(t *testing.T, path, target string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// withVolumeFirst shows a directory before anything else is mounted.
func withVolumeFirst(source, destination string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		withVolume(source, destination)(s)
		last := len(s.Mounts) - 1
		s.Mounts = append(s.Mounts[last:], s.Mounts[:last]...)
	}
}

// fakeProc is a directory that looks like /proc to who writes labels and
// settings there.
func fakeProc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range []string{"self/attr/exec", "self/attr/keycreate", "thread-self/attr/exec", "sys/net/ipv4/ip_forward", "sys/kernel/hostname", "self/fd/5/x", "proc/keys", "kcore"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A root directory of do has no say in where /proc is.
func TestAttackOnWhereProcIsMountedByDo(t *testing.T) {
	s := newSandboxes(t)
	for _, name := range []string{"proc", "sys", "dev"} {
		root, fake := newAttackRoot(t), fakeProc(t)
		replaceByLink(t, filepath.Join(root, name), fake)
		before := tree(t, fake)
		got := s.do("--rootfs", root, "--user", "0", "--", "sh", "-c", throughMasks+"; grep -c . /proc/self/status >/dev/null || echo no proc")
		if got.code != 0 || got.stdout != "" || tree(t, fake) != before {
			t.Errorf("%s is a link: %+v, the target is now\n%s", name, got, tree(t, fake))
		}
		for _, target := range []string{"/proc", "/proc/sys", "/proc/self", "/sys", "/dev", "/dev/shm", "/tmp/../proc", "/", "/proc/self/fd/5", "/proc/"} {
			if got := s.do("--bind", fake+":"+target, "--", "true"); got.code != 125 {
				t.Errorf("a bind at %s: %+v", target, got)
			}
		}
	}
}
