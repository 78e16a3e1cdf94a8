package seccomp

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ipv6FlowLabelMgr is IPV6_FLOWLABEL_MGR, linux/in6.h. The delegations are F_GETDELEG and
// F_SETDELEG, linux/fcntl.h.
const (
	ipv6FlowLabelMgr = 32
	getDelegation    = 1039
	setDelegation    = 1040
)

// Rules for calls that take something of the whole host, or hold up its programs.

// refuse answers a call with errno under the conditions.
func refuse(name string, errno unix.Errno, conditions ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	number := uint(errno)
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActErrno, ErrnoRet: &number, Args: conditions}
}

// filterRules answer seccomp(2) as a kernel without filters. The kernel counts the
// memory of compiled filters for the whole host, and holds a sandbox to no share of
// it. The agent has the call in any case ([ForAgent]), and takes prctl's
// PR_SET_SECCOMP from the commands, too.
func filterRules() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{refuse("seccomp", unix.EINVAL)}
}

// fcntlRules answer two commands as a kernel does that was built without them. A
// lease on a file of the workspace holds up an open(2) on the host for
// fs.lease-break-time, 45 s. F_NOTIFY takes from the same count as inotify, and tells
// of files that others use. A delegation is a lease of a directory, too, after Linux 6.18.
// The commands of Linux 6.18 are below 1039, and later ones are not allowed.
func fcntlRules() []specs.LinuxSyscall {
	refused := []uint64{unix.F_SETLEASE, unix.F_NOTIFY, getDelegation, setDelegation}
	linuxSpecific := pattern{low32 &^ 15, unix.F_SETLEASE} // 1024 to 1039
	var rules []specs.LinuxSyscall
	for _, p := range append([]pattern{lowBits(10)}, without(linuxSpecific, 4, refused...)...) {
		rules = append(rules, allow("fcntl", p.condition(1)))
	}
	for _, command := range refused {
		rules = append(rules, refuse("fcntl", unix.EINVAL, bits(1, low32, command)))
	}
	return rules
}

// maxAttribute bounds an extended attribute, in bytes. 1 KiB is an access control list of
// 127 entries.
const maxAttribute = 1 << 10

// attributeRules bound extended attributes. The kernel charges nobody for the access
// control lists of files in memory, and one list may take 64 KiB. setxattrat(2) of Linux
// 6.13 passes the size in memory. No filter can read that.
func attributeRules() []specs.LinuxSyscall {
	size := func(op specs.LinuxSeccompOperator) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: 3, Value: maxAttribute, Op: op}
	}
	rules := []specs.LinuxSyscall{refuse("setxattrat", unix.ENOSYS)}
	for _, name := range []string{"setxattr", "lsetxattr", "fsetxattr"} {
		rules = append(rules, allow(name, size(specs.OpLessEqual)), refuse(name, unix.E2BIG, size(specs.OpGreaterThan)))
	}
	return rules
}

// optionRules refuse socket options that take from the whole host. The answer is that of a kernel
// without the option.
//
//   - Filters of sockets: the kernel counts their compiled form for the host alone.
//   - Leases on IPv6 flow labels: the host has 4096 of them.
//   - TCP_LINGER2: it keeps a closed TCP socket for two minutes. The kernel counts such sockets for
//     the whole host (net.ipv4.tcp_max_orphans). Beyond the bound it resets each connection that
//     the host closes.
//
// In Linux 6.18 the levels are below 512, and the options of these three levels are below 256.
func optionRules() []specs.LinuxSyscall {
	refused := map[uint64][]uint64{
		unix.SOL_SOCKET: {
			unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF,
			unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF,
		},
		unix.SOL_IPV6: {ipv6FlowLabelMgr},
		unix.SOL_TCP:  {unix.TCP_LINGER2},
	}
	levels := []uint64{unix.SOL_SOCKET, unix.SOL_TCP, unix.SOL_IPV6}
	var rules []specs.LinuxSyscall
	for _, p := range without(lowBits(9), 9, levels...) {
		rules = append(rules, allow("setsockopt", p.condition(1)))
	}
	for _, level := range levels {
		at := bits(1, low32, level)
		for _, p := range without(lowBits(8), 8, refused[level]...) {
			rules = append(rules, allow("setsockopt", at, p.condition(2)))
		}
		for _, option := range refused[level] {
			rules = append(rules, refuse("setsockopt", unix.ENOPROTOOPT, at, bits(2, low32, option)))
		}
	}
	return rules
}
