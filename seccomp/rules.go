package seccomp

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Rules on arguments. The rules of one call are alternatives: it is allowed
// when any of them matches, so each must be safe alone, in any order.
//
// A filter sees 64 bits of every argument where the kernel reads an int or a
// mode_t: 0x1_0000_5412 is TIOCSTI to ioctl(2) (CVE-2019-10063). Hence every
// rule here looks at the bits the kernel uses and at no others.
const low32 = 0xffff_ffff

// bits is the condition that argument index, reduced to mask, equals value.
func bits(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Op: specs.OpMaskedEqual, Value: mask, ValueTwo: value}
}

func allow(name string, conditions ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: conditions}
}

// cloneRule allows processes and threads but no namespace. Flags are the first
// argument everywhere but on s390, clone(2). CLONE_NEWTIME's bit belongs to the
// exit signal in clone; no signal has it.
func cloneRule() specs.LinuxSyscall {
	return allow("clone", bits(0, newNamespaces, 0))
}

// setid are the bits that make a set-id file.
const setid = unix.S_ISUID | unix.S_ISGID

// modeRules refuse bits in the mode of a file. A set-id file in a workspace is set-id on the
// host too, and there for its owner, maybe root. A filter cannot tell a directory, where the
// set-group-ID bit is harmless, from a file. mkdir needs no rule, the kernel takes these bits
// away (fs/namei.c:vfs_mkdir).
func modeRules(refused uint64) []specs.LinuxSyscall {
	// O_TMPFILE contains O_DIRECTORY, which alone creates nothing.
	const creates = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
	return []specs.LinuxSyscall{
		allow("chmod", bits(1, refused, 0)),
		allow("creat", bits(1, refused, 0)),
		allow("fchmod", bits(1, refused, 0)),
		allow("fchmodat", bits(2, refused, 0)),
		allow("fchmodat2", bits(2, refused, 0)),
		allow("mknod", bits(1, refused, 0)),
		allow("mknodat", bits(2, refused, 0)),
		// The mode is anything at all where nothing is created, open(2).
		allow("open", bits(1, creates, 0)),
		allow("open", bits(2, refused, 0)),
		allow("openat", bits(2, creates, 0)),
		allow("openat", bits(3, refused, 0)),
	}
}

// socketRules allow unix sockets, TCP, UDP and echo requests over IP, and
// routing netlink, which C libraries ask for addresses. Each protocol more is a
// kernel module that a stranger can have loaded. Types are fixed because
// socket(AF_INET, SOCK_PACKET) is a packet socket (net/socket.c:__sock_create).
func socketRules() []specs.LinuxSyscall {
	const (
		// AF_INET and AF_INET6 differ in one bit.
		inet     = unix.AF_INET & unix.AF_INET6
		inetMask = low32 &^ (unix.AF_INET ^ unix.AF_INET6)
	)
	rules := []specs.LinuxSyscall{
		allow("socket", bits(0, low32, unix.AF_UNIX)),
		allow("socket", bits(0, low32, unix.AF_NETLINK), bits(2, low32, unix.NETLINK_ROUTE)),
		// The answer is that of a kernel without auditing. After EPERM useradd gives up.
		refuse("socket", unix.EPROTONOSUPPORT, bits(0, low32, unix.AF_NETLINK), bits(2, low32, unix.NETLINK_AUDIT)),
	}
	for _, ip := range []struct{ kind, protocol uint64 }{
		{unix.SOCK_STREAM, 0},
		{unix.SOCK_STREAM, unix.IPPROTO_TCP},
		{unix.SOCK_DGRAM, 0},
		{unix.SOCK_DGRAM, unix.IPPROTO_UDP},
		{unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		{unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6},
	} {
		rules = append(rules, allow("socket",
			bits(0, inetMask, inet), bits(1, socketType, ip.kind), bits(2, low32, ip.protocol)))
	}
	// For other families socketpair makes two sockets and throws them away.
	return append(rules, allow("socketpair", bits(0, low32, unix.AF_UNIX)))
}

// socketType is socket(2)'s second argument without SOCK_NONBLOCK and SOCK_CLOEXEC
// (SOCK_TYPE_MASK in linux/net.h).
const socketType = 0xf

// strictSocketRules allow connected pairs alone. A datagram pair could be sent
// elsewhere by name, so could sendto with an address (its fifth argument).
func strictSocketRules() []specs.LinuxSyscall {
	noAddress := specs.LinuxSeccompArg{Index: 4, Op: specs.OpEqualTo, Value: 0}
	return []specs.LinuxSyscall{
		allow("socketpair", bits(0, low32, unix.AF_UNIX), bits(1, socketType, unix.SOCK_STREAM)),
		allow("socketpair", bits(0, low32, unix.AF_UNIX), bits(1, socketType, unix.SOCK_SEQPACKET)),
		allow("sendto", noAddress),
	}
}

// Terminal ioctls that act on the next reader of the terminal, or on the kernel: TIOCSTI
// types into it, TIOCLINUX pastes into a console (CVE-2017-5226), TIOCSETD loads a line
// discipline module.
func refusedTerminalIoctls() []uint64 {
	return []uint64{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD}
}

// strictIoctlRules allow the ioctls of terminals, pipes and descriptors ('T', 0x54,
// without the refused ones) and sharing blocks between files.
func strictIoctlRules() []specs.LinuxSyscall {
	return append(ioctls(pattern{mask: 0xff00, value: 'T' << 8}),
		allow("ioctl", bits(1, low32, unix.FICLONE)),
		allow("ioctl", bits(1, low32, unix.FICLONERANGE)))
}

// ioctls allow every ioctl within a pattern but the refused ones. Number and type, the
// low 16 bits, decide; direction and size do not.
func ioctls(within pattern) []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, p := range without(within, 16, refusedTerminalIoctls()...) {
		rules = append(rules, allow("ioctl", p.condition(1)))
	}
	return rules
}

// personalityRules allow the domains given. 0xffffffff only asks,
// personality(2).
func personalityRules(domains ...uint64) []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, domain := range domains {
		rules = append(rules, allow("personality", bits(0, low32, domain)))
	}
	return rules
}
