//go:build seccomp

package container

import (
	"cmp"
	"slices"

	"github.com/opencontainers/runc/libcontainer/configs"
	libseccomp "github.com/seccomp/libseccomp-golang"
)

// sortCalls puts the rules of a profile into the order that libseccomp takes fastest: the highest
// number of a system call first. libseccomp 2.5 keeps its rules in a list with ascending numbers, and
// looks for the place of each new one from the list's begin. Docker's profile is taken in 3.3 ms in
// place of 4.5. The filter is the same: rules of one call keep their order, and rules of different
// calls have none. The exception are the calls that 32-bit programs make through socketcall(2) and ipc(2): a rule of such
// a call is a rule of socketcall or ipc, too. All these rules keep their order, at the end.
func sortCalls(profile *configs.Seccomp) {
	if profile == nil {
		return
	}
	numbers := make(map[string]libseccomp.ScmpSyscall, len(profile.Syscalls))
	for _, rule := range profile.Syscalls {
		if _, ok := numbers[rule.Name]; ok {
			continue
		}
		// libcontainer leaves out rules with names that libseccomp does not know.
		number, err := libseccomp.GetSyscallFromName(rule.Name)
		if err != nil || slices.Contains(multiplexed, rule.Name) {
			number = -1
		}
		numbers[rule.Name] = number
	}
	slices.SortStableFunc(profile.Syscalls, func(a, b *configs.Syscall) int {
		return cmp.Compare(numbers[b.Name], numbers[a.Name])
	})
}

// multiplexed are socketcall(2), ipc(2) and the calls that they carry.
var multiplexed = []string{
	"socketcall", "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recv",
	"recvfrom", "recvmmsg", "recvmmsg_time64", "recvmsg", "send", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
	"socket", "socketpair",
	"ipc", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "semtimedop_time64",
	"shmat", "shmctl", "shmdt", "shmget",
}
