package seccomp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// maxErrno is MAX_ERRNO in linux/err.h; seccomp(2) cuts larger values.
const maxErrno = 4095

// check refuses profiles that libcontainer v1.5.2 would refuse at start, and those that it
// takes but that have no effect.
func check(p *specs.LinuxSeccomp) error {
	// An empty profile means no seccomp at all to libcontainer, and is refused
	// here for its missing action.
	if err := checkAction("defaultAction", p.DefaultAction, "defaultErrnoRet", p.DefaultErrnoRet); err != nil {
		return err
	}
	for i, arch := range p.Architectures {
		if !slices.Contains(architectures(), arch) {
			return fmt.Errorf("architectures[%d]: unknown architecture %q", i, arch)
		}
	}
	for i, flag := range p.Flags {
		if !slices.Contains(flags(), flag) {
			return fmt.Errorf("flags[%d]: unknown flag %q, there are %s", i, flag, listed(flags()))
		}
	}
	if p.ListenerPath != "" || p.ListenerMetadata != "" {
		return errors.New("listenerPath, listenerMetadata: a sandbox has no listener for notifications")
	}
	for i, rule := range p.Syscalls {
		if err := checkRule(rule); err != nil {
			return fmt.Errorf("syscalls[%d].%w", i, err)
		}
	}
	if err := checkTogether(p); err != nil {
		return err
	}
	return checkStarts(p)
}

func checkAction(field string, action specs.LinuxSeccompAction, errnoField string, errno *uint) error {
	switch {
	case action == "":
		return fmt.Errorf("%s: missing", field)
	case action == specs.ActNotify:
		return fmt.Errorf("%s: %s needs a listener, which a sandbox does not have", field, action)
	case !slices.Contains(actions(), action):
		return fmt.Errorf("%s: unknown action %q, there are %s", field, action, listed(actions()))
	case errno == nil:
		return nil
	case action != specs.ActErrno && action != specs.ActTrace:
		return fmt.Errorf("%s: %s returns no error number", errnoField, action)
	case *errno > maxErrno:
		return fmt.Errorf("%s: %d is above %d, the highest error number", errnoField, *errno, maxErrno)
	}
	return nil
}

// isCallName says whether a text looks like the name of a system call, so that a number or a
// pattern is not skipped as an unknown call.
func isCallName(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz_"
	return name != "" && strings.Trim(name, letters+"0123456789") == "" && strings.Contains(letters, name[:1])
}

func checkRule(rule specs.LinuxSyscall) error {
	if len(rule.Names) == 0 {
		return errors.New("names: missing")
	}
	for i, name := range rule.Names {
		if !isCallName(name) {
			return fmt.Errorf("names[%d]: %q is no name of a system call", i, name)
		}
	}
	if err := checkAction("action", rule.Action, "errnoRet", rule.ErrnoRet); err != nil {
		return err
	}
	used := map[uint]bool{}
	for i, arg := range rule.Args {
		if err := checkCondition(arg); err != nil {
			return fmt.Errorf("args[%d].%w", i, err)
		}
		if used[arg.Index] {
			// libcontainer/seccomp/seccomp_linux.go:matchCall makes a rule of each.
			return fmt.Errorf("args[%d].index: a second condition on argument %d would be an alternative, not an \"and\": "+
				"write two rules, or one SCMP_CMP_MASKED_EQ", i, arg.Index)
		}
		used[arg.Index] = true
	}
	return nil
}

func checkCondition(arg specs.LinuxSeccompArg) error {
	const highestArgument = 5
	switch {
	case arg.Index > highestArgument:
		return fmt.Errorf("index: %d, a system call has the arguments 0 to %d", arg.Index, highestArgument)
	case arg.Op == "":
		return errors.New("op: missing")
	case !slices.Contains(operators(), arg.Op):
		return fmt.Errorf("op: unknown operator %q, there are %s", arg.Op, listed(operators()))
	case arg.Op != specs.OpMaskedEqual && arg.ValueTwo != 0:
		return fmt.Errorf("valueTwo: %s compares with value alone", arg.Op)
	case arg.Op == specs.OpMaskedEqual && arg.ValueTwo&^arg.Value != 0:
		return fmt.Errorf("valueTwo: %#x has bits outside the mask, value %#x, so it never matches", arg.ValueTwo, arg.Value)
	}
	return nil
}

// An answer is a rule's answer to a call.
type answer struct {
	action specs.LinuxSeccompAction
	errno  uint
}

func answerOf(action specs.LinuxSeccompAction, errno *uint) answer {
	a := answer{action: action}
	switch {
	case action == specs.ActKill:
		a.action = specs.ActKillThread // The same, by its newer name.
	case action != specs.ActErrno && action != specs.ActTrace:
	case errno == nil:
		a.errno = uint(unix.EPERM)
	default:
		a.errno = *errno
	}
	return a
}

// checkTogether refuses rules for one call if one of them takes the other's effect:
// libseccomp lets the rule without conditions win, and libcontainer skips a rule with the
// default action.
func checkTogether(p *specs.LinuxSeccomp) error {
	type place struct {
		rule          int
		answer        answer
		unconditional bool
	}
	others := map[string][]place{}
	otherwise := answerOf(p.DefaultAction, p.DefaultErrnoRet)
	for i, rule := range p.Syscalls {
		here := place{i, answerOf(rule.Action, rule.ErrnoRet), len(rule.Args) == 0}
		for _, name := range rule.Names {
			known := false
			for _, other := range others[name] {
				same := other.answer == here.answer
				known = known || same && other.unconditional == here.unconditional
				switch {
				case same:
				case other.unconditional || here.unconditional:
					return fmt.Errorf("syscalls[%d]: %s has another answer in syscalls[%d], and one of the two rules has no conditions: "+
						"the other has no effect", i, name, other.rule)
				case other.answer == otherwise || here.answer == otherwise:
					return fmt.Errorf("syscalls[%d], syscalls[%d]: one of the rules for %s has the defaultAction and so no effect: "+
						"put the condition on the other", other.rule, i, name)
				}
			}
			if !known {
				others[name] = append(others[name], here)
			}
		}
	}
	return nil
}

// checkStarts refuses a profile under which not even PID 1 can be executed.
func checkStarts(p *specs.LinuxSeccomp) error {
	if runs(p.DefaultAction) {
		return nil
	}
	for _, rule := range p.Syscalls {
		if runs(rule.Action) && slices.Contains(rule.Names, "execve") {
			return nil
		}
	}
	return errors.New("syscalls: no rule allows execve, so nothing could be started")
}

func runs(action specs.LinuxSeccompAction) bool {
	return action == specs.ActAllow || action == specs.ActLog
}

// The words of libcontainer v1.5.2 (libcontainer/seccomp/config.go), but for
// SCMP_ACT_NOTIFY and the flag that goes with it.

func actions() []specs.LinuxSeccompAction {
	return []specs.LinuxSeccompAction{
		specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActKillProcess, specs.ActKillThread,
		specs.ActLog, specs.ActTrace, specs.ActTrap,
	}
}

func operators() []specs.LinuxSeccompOperator {
	return []specs.LinuxSeccompOperator{
		specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpLessEqual,
		specs.OpLessThan, specs.OpMaskedEqual, specs.OpNotEqual,
	}
}

func flags() []specs.LinuxSeccompFlag {
	return []specs.LinuxSeccompFlag{
		specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow, "SECCOMP_FILTER_FLAG_TSYNC",
	}
}

func architectures() []specs.Arch {
	return []specs.Arch{
		specs.ArchX86, specs.ArchX86_64, specs.ArchX32, specs.ArchARM, specs.ArchAARCH64,
		specs.ArchMIPS, specs.ArchMIPS64, specs.ArchMIPS64N32, specs.ArchMIPSEL,
		specs.ArchMIPSEL64, specs.ArchMIPSEL64N32, specs.ArchPPC, specs.ArchPPC64,
		specs.ArchPPC64LE, specs.ArchRISCV64, specs.ArchS390, specs.ArchS390X,
		specs.ArchLOONGARCH64,
	}
}

func listed[S ~string](words []S) string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = string(word)
	}
	return strings.Join(all, ", ")
}
