package compile

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
)

func TestBuiltInProfilesAreValid(t *testing.T) {
	for _, name := range profiles() {
		p, err := seccomp.Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := Validate(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestValidateNamesTheRule with mistakes that only libseccomp finds, and with
// those that package seccomp finds first in a file.
func TestValidateNamesTheRule(t *testing.T) {
	ioctl := func(action specs.LinuxSeccompAction, value uint64) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: []string{"read", "ioctl"}, Action: action, Args: []specs.LinuxSeccompArg{
			{Index: 1, Op: specs.OpEqualTo, Value: value},
		}}
	}
	// Each a rule of three instructions.
	var many []specs.LinuxSyscall
	for i := range uint64(1700) {
		many = append(many, specs.LinuxSyscall{Names: []string{"ioctl"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
			{Index: 1, Op: specs.OpMaskedEqual, Value: 0xffff + i<<16, ValueTwo: i},
		}})
	}
	for _, c := range []struct {
		name    string
		profile *specs.LinuxSeccomp
		message string
	}{
		{"none", nil, "there is none"},
		{"empty", &specs.LinuxSeccomp{}, `defaultAction: unknown action ""`},
		{"notification of a call", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{ioctl(specs.ActNotify, 1)}},
			`syscalls[0]: action: unknown action "SCMP_ACT_NOTIFY"`},
		{"notification", &specs.LinuxSeccomp{DefaultAction: specs.ActNotify}, "defaultAction: unknown action"},
		{"architecture", &specs.LinuxSeccomp{DefaultAction: specs.ActKill, Architectures: []specs.Arch{specs.ArchX86_64, "x"}}, `architectures[1]: unknown architecture "x"`},
		{"flag", &specs.LinuxSeccomp{DefaultAction: specs.ActKill, Flags: []specs.LinuxSeccompFlag{"x"}}, `flags[0]: unknown flag "x"`},
		{"two answers", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
			ioctl(specs.ActAllow, 1), ioctl(specs.ActAllow, 2), ioctl(specs.ActKill, 2),
		}}, "syscalls[2]: read: a rule before has the same conditions"},
		{"action", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{ioctl("x", 1)}}, `syscalls[0]: action: unknown action "x"`},
		{"operator", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Op: "x"}}},
		}}, `syscalls[0]: args[0]: unknown operator "x"`},
		{"one argument twice", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Op: specs.OpEqualTo}, {Op: specs.OpNotEqual}}},
		}}, "syscalls[0]: read: two checks on same syscall argument"},
		{"refusal of a call unknown here", &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"read", "raed"}, Action: specs.ActKill},
		}}, "syscalls[0]: raed: libseccomp "},
		{"too large", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: many}, "the filter has "},
		{"far too large", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: slices.Repeat(many, 3)}, "it has rules for 5100 calls"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Validate(c.profile)
			if err == nil || !strings.HasPrefix(err.Error(), "compile: "+c.message) {
				t.Errorf("have %v, want %s", err, c.message)
			}
		})
	}
}

// TestValidateSkipsWhatLibcontainerSkips: names not known here in rules that
// allow, and rules that say what the default action says.
func TestValidateSkipsWhatLibcontainerSkips(t *testing.T) {
	eperm := uint(1)
	p := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: &eperm,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64},
		Flags:         []specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_TSYNC", specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"execve", "of_the_future", "chown32"}, Action: specs.ActAllow},
			{Names: []string{"ptrace"}, Action: specs.ActErrno},
			{Names: []string{"of_the_future"}, Action: specs.ActKill},
		},
	}
	if err := Validate(p); err != nil {
		t.Error(err)
	}
}
