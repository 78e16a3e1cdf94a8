package integration

import (
	"fmt"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// CVE-2021-43784: lengths that overflow what the runtime's halves tell each
// other, so that the rest is taken for other settings.
func TestAttackBySizes(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	path, _ := canary(t)
	long := func(n int) string { return strings.Repeat("/"+strings.Repeat("x", 200), n/201+1)[:n] }
	for name, change := range map[string]func(*specs.Spec){
		"mappings above the kernel's 340": mapped(341),
		"mappings above 64 KiB":           mapped(4000),
		"mappings above 1 MiB":            mapped(60000),
		"a mount's source":                withMount(specs.Mount{Source: long(70000), Destination: "/tmp", Type: "bind", Options: []string{"bind"}}),
		"a mount's destination":           withMount(specs.Mount{Source: "tmpfs", Destination: long(70000), Type: "tmpfs"}),
		"a mount's options":               withMount(specs.Mount{Source: "tmpfs", Destination: "/tmp", Type: "tmpfs", Options: []string{"size=64k,mode=" + strings.Repeat("0", 70000) + "755"}}),
		"a mapped mount": withMount(specs.Mount{Source: "/tmp", Destination: "/tmp", Type: "bind", Options: []string{"bind", "idmap"},
			UIDMappings: mappings(4000), GIDMappings: mappings(4000)}),
		"a path of a namespace": func(s *specs.Spec) {
			withoutNamespace(specs.NetworkNamespace)(s)
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: long(70000)})
		},
		"a working directory":      func(s *specs.Spec) { s.Process.Cwd = long(70000) },
		"an argument":              func(s *specs.Spec) { s.Process.Args = append(s.Process.Args, strings.Repeat("x", 200<<10)) },
		"a hostname":               func(s *specs.Spec) { s.Hostname = strings.Repeat("x", 70000) },
		"an offset of the clock":   func(s *specs.Spec) { addTimeOffset(s) },
		"a path for the cgroup":    func(s *specs.Spec) { s.Linux.CgroupsPath = long(70000) },
		"a number of descriptors":  nil,
		"a mapping without length": func(s *specs.Spec) { mapped(1)(s); s.Linux.UIDMappings[0].Size = 0 },
		"a mapping of all ids": func(s *specs.Spec) {
			mapped(1)(s)
			s.Linux.UIDMappings[0].HostID = 1<<32 - 1
			s.Linux.UIDMappings[0].Size = 10
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"run"}
			if change == nil {
				args, change = append(args, "--preserve-fds", "2147483647"), func(*specs.Spec) {}
			}
			b := newAttack(t, []string{"attack", "climb", path}, change)
			if got := run(t, r.command(append(args, "--bundle", b.dir, "attack")...)); got.code == 0 || got.stdout != "" {
				t.Errorf("it ran: %+v", got)
			}
		})
	}
	// Usual ones are no attack.
	for _, n := range []int{1, 100} {
		if got := r.runBundle(newAttack(t, []string{"id", "-u"}, mapped(n))); got.stdout != "0\n" {
			t.Errorf("%d mappings: %+v", n, got)
		}
	}
}

// mapped gives the container a user namespace with so many mappings.
func mapped(n int) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		s.Linux.UIDMappings, s.Linux.GIDMappings = mappings(n), mappings(n)
	}
}

// mappings have gaps: the kernel joins none.
func mappings(n int) []specs.LinuxIDMapping {
	var all []specs.LinuxIDMapping
	for i := range uint32(n) {
		all = append(all, specs.LinuxIDMapping{ContainerID: 16 * i, HostID: 1_500_000_000 + 32*i, Size: 16})
	}
	return all
}

func addTimeOffset(s *specs.Spec) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
	s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"monotonic": {Secs: 1 << 62}}
}

func TestAttackBySizesInDo(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	long := strings.Repeat("/"+strings.Repeat("x", 200), 400)
	var many []string
	for range 2000 {
		many = append(many, "--bind", dir+":/data")
	}
	for name, flags := range map[string][]string{
		"a bind's source": {"--bind", long + ":/data"}, "a bind's target": {"--bind", dir + ":" + long}, "binds": many,
		"a workspace": {"--workspace", long}, "a root": {"--rootfs", long}, "a working directory": {"--cwd", long},
		"a hostname": {"--hostname", strings.Repeat("x", 70000)}, "a user": {"--user", strings.Repeat("0", 70000) + "x"},
		"memory": {"--memory", "18446744073709551616"}, "processes": {"--pids", "9223372036854775808"},
		"processor time": {"--cpus", "1e300"}, "a file size": {"--file-size", "99999999999999t"},
	} {
		if got := s.do(append(flags, "--", "echo", "ran")...); got.code == 0 || got.stdout != "" {
			t.Errorf("%s: %.300s", name, fmt.Sprintf("%+v", got))
		}
	}
	if got := s.do("--bind", dir+":/data", "--", "echo", "ran"); got.stdout != "ran\n" {
		t.Errorf("a usual bind: %+v", got)
	}
}
