package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Names are the names of the built-in profiles.
func Names() []string { return []string{"default", "strict", "debug"} }

// Profile returns the built-in profile of that name, a new copy each time:
//
//   - "default" for programs of all kinds, without calls that generated code does
//     not use;
//   - "strict" for computing on files: no sockets but connected pairs, no named
//     IPC, terminal ioctls only;
//   - "debug" is default with the calls of gdb and strace.
//
// Any other name is an error. Every name is an error on an architecture for which the
// rules' argument order and constants were not checked.
func Profile(name string) (*specs.LinuxSeccomp, error) {
	return build(name, setid)
}

// WithGroupIDs is [Profile] for a sandbox that can write to no directory of the host: its
// programs may set the set-group-ID bit. On a directory the bit gives new files the
// directory's group, as in repositories that a group shares. On a program it gives no right
// inside, where nothing gains privileges.
func WithGroupIDs(name string) (*specs.LinuxSeccomp, error) {
	return build(name, unix.S_ISUID)
}

// build makes a profile that refuses the bits in the modes of files.
func build(name string, refused uint64) (*specs.LinuxSeccomp, error) {
	// s390x alone passes clone's flags second; a rule that looks elsewhere
	// would allow every namespace.
	if arch := runtime.GOARCH; arch != "amd64" && arch != "arm64" {
		return nil, fmt.Errorf("seccomp profile %q: not made for %s, only for amd64 and arm64: give a profile file", name, arch)
	}
	switch name {
	case "default":
		return defaultProfile(refused), nil
	case "strict":
		return strictProfile(refused), nil
	case "debug":
		return debugProfile(refused), nil
	}
	return nil, fmt.Errorf("seccomp profile %q: not built in, there are default, strict and debug: give one of these, or the path of a file", name)
}

func defaultProfile(refused uint64) *specs.LinuxSeccomp {
	const personalityLinux, personalityAsk = 0, 0xffff_ffff
	return allowList(compute+beyondCompute, slices.Concat(
		modeRules(refused), socketRules(), ioctls(pattern{}),
		personalityRules(personalityLinux, personalityAsk)))
}

func strictProfile(refused uint64) *specs.LinuxSeccomp {
	return allowList(compute, slices.Concat(modeRules(refused), strictSocketRules(), strictIoctlRules()))
}

func debugProfile(refused uint64) *specs.LinuxSeccomp {
	const addrNoRandomize = 0x0040000 // linux/personality.h
	p := defaultProfile(refused)
	p.Syscalls[0].Names = sortedNames(compute + beyondCompute + debugCalls)
	p.Syscalls = append(p.Syscalls, personalityRules(addrNoRandomize)...)
	return p
}

// allowList makes a profile of calls that are allowed with any arguments and of rules. It
// names no architecture, so it holds for the native one alone; calls of another end the
// thread with SIGSYS.
func allowList(always string, rules []specs.LinuxSyscall) *specs.LinuxSeccomp {
	eperm, enosys := uint(unix.EPERM), uint(unix.ENOSYS)
	p := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &eperm,
		Syscalls: []specs.LinuxSyscall{
			{Names: sortedNames(always), Action: specs.ActAllow},
			{Names: sortedNames(notThere), Action: specs.ActErrno, ErrnoRet: &enosys},
			cloneRule(),
		},
	}
	p.Syscalls = append(p.Syscalls, slices.Concat(filterRules(), fcntlRules(), attributeRules(), optionRules(), rules)...)
	return p
}

func sortedNames(group string) []string {
	return slices.Sorted(strings.FieldsSeq(group))
}
