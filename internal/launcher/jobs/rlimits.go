package jobs

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// commandLimits returns the resource limits of the command. None is above the limit of this
// process.
func commandLimits(c spec.Config) []agent.Rlimit {
	numbers, inherited := rlimits(), InheritedLimits()
	var all []agent.Rlimit
	for _, limit := range c.Rlimits(inherited) {
		all = append(all, agent.Rlimit{Resource: numbers[limit.Type], Soft: limit.Soft, Hard: limit.Hard})
	}
	return all
}

// InheritedLimits are this process's own hard limits.
func InheritedLimits() map[string]uint64 {
	inherited := map[string]uint64{}
	for name, resource := range rlimits() {
		var limit unix.Rlimit
		// Getrlimit fails for unknown resources only.
		if unix.Getrlimit(resource, &limit) == nil {
			inherited[name] = limit.Max
		}
	}
	return inherited
}

// rlimits returns the kernel's numbers of the limits that commands get.
func rlimits() map[string]int {
	return map[string]int{
		"RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
		"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE,
	}
}
