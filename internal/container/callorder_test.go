//go:build seccomp

package container

import (
	"slices"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// The highest number is first, and the rules of one call keep their order.
func TestRulesAreInTheOrderThatIsTakenFastest(t *testing.T) {
	profile := &configs.Seccomp{}
	// On amd64 and arm64: getuid < seccomp < bpf < statx.
	for _, name := range []string{"getuid", "unknown_to_all", "seccomp", "getuid", "statx", "bpf"} {
		errno := uint(len(profile.Syscalls))
		profile.Syscalls = append(profile.Syscalls, &configs.Syscall{Name: name, ErrnoRet: &errno})
	}
	sortCalls(profile)
	var names []string
	var places []uint
	for _, rule := range profile.Syscalls {
		names, places = append(names, rule.Name), append(places, *rule.ErrnoRet)
	}
	if want := []string{"statx", "bpf", "seccomp", "getuid", "getuid", "unknown_to_all"}; !slices.Equal(names, want) {
		t.Errorf("order %q, want %q", names, want)
	}
	if want := []uint{4, 5, 2, 0, 3, 1}; !slices.Equal(places, want) {
		t.Errorf("places %v, want %v", places, want)
	}
}

// A rule of bind is one of socketcall, too, in the filter of a 32-bit architecture. Such rules keep their order: in another
// one libseccomp refuses them.
func TestRulesOfMultiplexedCallsKeepTheirOrder(t *testing.T) {
	value := specs.LinuxSeccompArg{Value: 1, Op: specs.OpEqualTo}
	profile := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"bind"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{value}},
			{Names: []string{"socketcall"}, Action: specs.ActKillProcess},
			{Names: []string{"bind"}, Action: specs.ActKillProcess},
		},
	}
	p := newPlace(t)
	s := p.spec()
	s.Linux.Seccomp = profile
	allowed := specs.LinuxSyscall{Action: specs.ActAllow}
	for _, rule := range profiles(t)["debug"].Syscalls {
		for _, name := range rule.Names {
			if !slices.Contains(multiplexed, name) {
				allowed.Names = append(allowed.Names, name)
			}
		}
	}
	profile.Syscalls = append(profile.Syscalls, allowed)
	c := p.create(s)
	child, err := c.Run(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(err)
	}
	child.Abort()
}
