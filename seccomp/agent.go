package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// agentCalls are made by the agent, PID 1 of a sandbox, after it has loaded the
// filter, and by the child that it forks, before that executes the command
// (cmd/sandbox-agent). Some are there for certain execs only: a terminal's, one
// that is detached. Of two calls for the same, musl makes one and glibc the
// other.
const agentCalls = `
capget capset chdir clone close close_range dup3 epoll_ctl epoll_pwait execve
exit_group fchdir fchmod fcntl fstatfs getcwd getgroups getresgid getresuid gettid ioctl
kill mmap openat pipe2 prctl prlimit64 pwrite64 read recvfrom recvmsg rt_sigaction
rt_sigprocmask sendmsg setgroups setresgid setresuid setsid wait4 write
`

// olderCalls are those that newer architectures have another one for.
const olderCalls = `
dup2 epoll_wait fork open poll
`

// ForAgent returns the profile for a sandbox's filter: p, which stays as it is, and the
// additional calls of the agent. p has to allow all other calls that the agent needs, and
// the error names the missing ones.
//
//   - clone3 is allowed in any case if the agent is to make children in
//     their cgroups, for which cgroup v2 has no other call: the agent takes it
//     away again from each command. Else it is ENOSYS for all. For a command it is
//     ENOSYS in any case, also if p allows it.
//   - seccomp is allowed in any case, for the agent loads a second filter for
//     the commands. That filter takes the call away again from them, unless p
//     allows it: [CommandsMayFilter].
//   - chroot is allowed in any case: the child that becomes a command with a
//     root of its own needs it. A command gets EPERM, for lack of the
//     capability.
//   - accept4 is allowed if p lets nothing listen: a process without a listening
//     socket can do nothing with it. The agent has one, from the host.
func ForAgent(p *specs.LinuxSeccomp, intoCgroups bool) (*specs.LinuxSeccomp, error) {
	extra := []specs.LinuxSyscall{refuse("clone3", unix.ENOSYS), allow("chroot")}
	if intoCgroups {
		extra[0] = allow("clone3")
	}
	if !CommandsMayFilter(p) {
		extra = append(extra, allow("seccomp"))
	}
	if !allows(p, "listen") {
		extra = append(extra, allow("accept4"))
	}
	own := *p
	own.Syscalls = nil
	for _, rule := range p.Syscalls {
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool {
			return slices.ContainsFunc(extra, func(r specs.LinuxSyscall) bool { return r.Names[0] == name })
		})
		if len(rule.Names) > 0 {
			own.Syscalls = append(own.Syscalls, rule)
		}
	}
	own.Syscalls = append(own.Syscalls, extra...)

	var missing []string
	for _, name := range neededByAgent(runtime.GOARCH) {
		if !allows(&own, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("syscalls: the first process of a sandbox needs %s: allow that too", strings.Join(missing, ", "))
	}
	return &own, nil
}

// CommandsMayFilter tells whether a profile lets commands load seccomp filters of
// their own. The built-in profiles do not.
func CommandsMayFilter(p *specs.LinuxSeccomp) bool { return allows(p, "seccomp") }

// neededByAgent are the names that an architecture's filter must allow.
func neededByAgent(arch string) []string {
	needed := append(strings.Fields(agentCalls), "accept4", "chroot", "seccomp")
	if arch == "amd64" {
		return append(needed, strings.Fields(olderCalls)...)
	}
	return append(needed, "ppoll")
}

// allows tells whether p lets some calls of that name run. With which arguments
// is not looked at: no filter can tell the agent's from others.
func allows(p *specs.LinuxSeccomp, name string) bool {
	allowed := runs(p.DefaultAction)
	for _, rule := range p.Syscalls {
		switch {
		case !slices.Contains(rule.Names, name):
		case runs(rule.Action):
			return true
		case len(rule.Args) == 0:
			allowed = false
		}
	}
	return allowed
}
