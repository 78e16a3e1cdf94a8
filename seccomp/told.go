package seccomp

import (
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// toldCalls are refused calls that say why a program has failed: without them it cannot do its
// work. Calls that programs only try, and do without, are not among them.
const toldCalls = `
bpf kcmp mount perf_event_open pidfd_getfd process_vm_readv process_vm_writev ptrace setns
umount2 unshare
`

// The ioctls with which PID 1 reads the calls that wait, and answers them (linux/seccomp.h).
const (
	notifyReceive = 0xc0502100
	notifySend    = 0xc0182101
)

// Told is a profile of [ForAgent] whose filter has PID 1 answer [toldCalls] that the profile
// refuses, so that PID 1 can tell of them. The answer stays EPERM. p must be made of a built-in
// profile. The filter has a listener, which needs Linux 5.7 and libseccomp 2.5.
func Told(p *specs.LinuxSeccomp) *specs.LinuxSeccomp {
	told := *p
	told.Syscalls = slices.Clone(p.Syscalls)
	var names []string
	for _, name := range strings.Fields(toldCalls) {
		if !slices.ContainsFunc(p.Syscalls, func(r specs.LinuxSyscall) bool { return slices.Contains(r.Names, name) }) {
			names = append(names, name)
		}
	}
	told.Syscalls = append(told.Syscalls, specs.LinuxSyscall{Names: names, Action: specs.ActNotify})
	if slices.ContainsFunc(p.Syscalls, func(r specs.LinuxSyscall) bool { return reflect.DeepEqual(r, cloneRule()) }) {
		for bit := uint64(1); bit != 0; bit <<= 1 {
			if bit&newNamespaces != 0 {
				rule := allow("clone", bits(0, bit, bit))
				rule.Action = specs.ActNotify
				told.Syscalls = append(told.Syscalls, rule)
			}
		}
	}
	for _, request := range []uint64{notifyReceive, notifySend} {
		told.Syscalls = append(told.Syscalls, allow("ioctl", bits(1, low32, request)))
	}
	return &told
}

// newNamespaces are the flags of clone(2) for namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWTIME
