package compile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// manyRules is from where on libcontainer has libseccomp sort the calls into a
// binary tree, which also changes the size of the filter.
const manyRules, binaryTree = 32, 2

// build makes the filter; the caller releases it.
func build(profile *specs.LinuxSeccomp) (_ *libseccomp.ScmpFilter, err error) {
	otherwise, err := actionOf(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, fmt.Errorf("defaultAction: %w", err)
	}
	filter, err := libseccomp.NewFilter(otherwise)
	if err != nil {
		return nil, fmt.Errorf("defaultAction %s: %w", profile.DefaultAction, err)
	}
	defer func() {
		if err != nil {
			filter.Release()
		}
	}()
	if err := setUp(filter, profile); err != nil {
		return nil, err
	}
	for i, rule := range profile.Syscalls {
		if err := addRule(filter, rule, otherwise); err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
	}
	return filter, nil
}

// setUp sets the attributes of the filter as a whole.
func setUp(filter *libseccomp.ScmpFilter, profile *specs.LinuxSeccomp) error {
	for i, name := range profile.Architectures {
		arch, err := archOf(name)
		if err != nil {
			return fmt.Errorf("architectures[%d]: %w", i, err)
		}
		if err := filter.AddArch(arch); err != nil {
			return fmt.Errorf("architectures[%d]: add %s: %w", i, name, err)
		}
	}
	for i, flag := range profile.Flags {
		if err := setFlag(filter, flag); err != nil {
			return fmt.Errorf("flags[%d]: %w", i, err)
		}
	}
	if calls(profile) > manyRules {
		// A libseccomp that knows no tree makes a slower filter, not a wrong one.
		_ = filter.SetOptimize(binaryTree)
	}
	return nil
}

// calls counts the calls named in rules, each as often as it is: libseccomp has a
// rule for each.
func calls(profile *specs.LinuxSeccomp) int {
	n := 0
	for _, rule := range profile.Syscalls {
		n += len(rule.Names)
	}
	return n
}

func setFlag(filter *libseccomp.ScmpFilter, flag specs.LinuxSeccompFlag) error {
	var err error
	switch flag {
	case "SECCOMP_FILTER_FLAG_TSYNC": // Taken and without effect in libcontainer.
	case specs.LinuxSeccompFlagLog:
		err = filter.SetLogBit(true)
	case specs.LinuxSeccompFlagSpecAllow:
		err = filter.SetSSB(true)
	default:
		return fmt.Errorf("unknown flag %q", flag)
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", flag, err)
	}
	return nil
}

func addRule(filter *libseccomp.ScmpFilter, rule specs.LinuxSyscall, otherwise libseccomp.ScmpAction) error {
	action, err := actionOf(rule.Action, rule.ErrnoRet)
	if err != nil {
		return fmt.Errorf("action: %w", err)
	}
	conditions := make([]libseccomp.ScmpCondition, 0, len(rule.Args))
	for i, arg := range rule.Args {
		condition, err := conditionOf(arg)
		if err != nil {
			return fmt.Errorf("args[%d]: %w", i, err)
		}
		conditions = append(conditions, condition)
	}
	if action == otherwise {
		return nil // libseccomp refuses a rule that changes nothing.
	}
	for _, name := range rule.Names {
		call, err := libseccomp.GetSyscallFromName(name)
		switch {
		case err != nil && runs(otherwise) && !runs(action):
			major, minor, micro := libseccomp.GetLibraryVersion()
			return fmt.Errorf("%s: libseccomp %d.%d.%d does not know this call, and defaultAction would allow it", name, major, minor, micro)
		case err != nil:
			continue
		}
		if err := addCall(filter, call, action, conditions); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func addCall(filter *libseccomp.ScmpFilter, call libseccomp.ScmpSyscall, action libseccomp.ScmpAction, conditions []libseccomp.ScmpCondition) error {
	var err error
	if len(conditions) == 0 {
		err = filter.AddRule(call, action)
	} else {
		err = filter.AddRuleConditional(call, action, conditions)
	}
	if errors.Is(err, unix.EEXIST) {
		return errors.New("a rule before has the same conditions and another action")
	}
	return err
}

// runs says whether the call is made, if nobody traces it.
func runs(action libseccomp.ScmpAction) bool {
	return action == libseccomp.ActAllow || action == libseccomp.ActLog
}

func actionOf(name specs.LinuxSeccompAction, errno *uint) (libseccomp.ScmpAction, error) {
	code := int16(unix.EPERM)
	if errno != nil {
		code = int16(*errno)
	}
	switch name {
	case specs.ActAllow:
		return libseccomp.ActAllow, nil
	case specs.ActErrno:
		return libseccomp.ActErrno.SetReturnCode(code), nil
	case specs.ActKill, specs.ActKillThread:
		return libseccomp.ActKillThread, nil
	case specs.ActKillProcess:
		return libseccomp.ActKillProcess, nil
	case specs.ActLog:
		return libseccomp.ActLog, nil
	case specs.ActTrace:
		return libseccomp.ActTrace.SetReturnCode(code), nil
	case specs.ActTrap:
		return libseccomp.ActTrap, nil
	case specs.ActNotify: // of the runtime's own filters: see checkListener
		return libseccomp.ActNotify, nil
	}
	return libseccomp.ActInvalid, fmt.Errorf("unknown action %q", name)
}

func conditionOf(arg specs.LinuxSeccompArg) (libseccomp.ScmpCondition, error) {
	operator, known := map[specs.LinuxSeccompOperator]libseccomp.ScmpCompareOp{
		specs.OpEqualTo:      libseccomp.CompareEqual,
		specs.OpGreaterEqual: libseccomp.CompareGreaterEqual,
		specs.OpGreaterThan:  libseccomp.CompareGreater,
		specs.OpLessEqual:    libseccomp.CompareLessOrEqual,
		specs.OpLessThan:     libseccomp.CompareLess,
		specs.OpMaskedEqual:  libseccomp.CompareMaskedEqual,
		specs.OpNotEqual:     libseccomp.CompareNotEqual,
	}[arg.Op]
	if !known {
		return libseccomp.ScmpCondition{}, fmt.Errorf("unknown operator %q", arg.Op)
	}
	return libseccomp.MakeCondition(arg.Index, operator, arg.Value, arg.ValueTwo)
}

func archOf(name specs.Arch) (libseccomp.ScmpArch, error) {
	short, known := strings.CutPrefix(string(name), "SCMP_ARCH_")
	if !known {
		return libseccomp.ArchInvalid, fmt.Errorf("unknown architecture %q", name)
	}
	arch, err := libseccomp.GetArchFromString(short)
	if err != nil {
		return libseccomp.ArchInvalid, fmt.Errorf("unknown architecture %q: %w", name, err)
	}
	return arch, nil
}
