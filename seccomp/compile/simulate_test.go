package compile

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
)

// machine runs a filter in place of the kernel, for numbers of arguments that
// cannot all be tried and for an architecture that is not this one.
type machine struct {
	name  string
	arch  libseccomp.ScmpArch
	audit uint32
	vm    *bpf.VM
}

// Answers of a filter, linux/seccomp.h.
const (
	retAllow = 0x7fff_0000
	retErrno = 0x0005_0000
	retTell  = 0x7fc0_0000
)

// machinesOf are this architecture and, so that neither is forgotten, both that
// the profiles are made for.
func machinesOf(t *testing.T, p *specs.LinuxSeccomp) []machine {
	t.Helper()
	p.Architectures = []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64}
	filter, err := build(p)
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Release()
	program, err := export(filter)
	if err != nil {
		t.Fatal(err)
	}
	var instructions []bpf.Instruction
	for raw := range slices.Chunk(program, unix.SizeofSockFilter) {
		instructions = append(instructions, bpf.RawInstruction{
			Op: binary.NativeEndian.Uint16(raw), Jt: raw[2], Jf: raw[3], K: binary.NativeEndian.Uint32(raw[4:]),
		}.Disassemble())
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	return []machine{
		{"amd64", libseccomp.ArchAMD64, unix.AUDIT_ARCH_X86_64, vm},
		{"arm64", libseccomp.ArchARM64, unix.AUDIT_ARCH_AARCH64, vm},
	}
}

// has says whether the architecture has the call.
func (m machine) has(t *testing.T, name string) (number uint32, yes bool) {
	t.Helper()
	n, err := libseccomp.GetSyscallFromNameByArch(name, m.arch)
	if err != nil {
		t.Skipf("this libseccomp does not know %s", name)
	}
	return uint32(n), n >= 0
}

// allows runs the filter on struct seccomp_data: number, architecture, address,
// six arguments. The machine reads words as they come from a network, so each
// is stored that way, the lower half of an argument first.
func (m machine) allows(t *testing.T, number uint32, args ...uint64) bool {
	t.Helper()
	answer := m.answer(t, number, args...)
	if answer != retAllow && answer&^0xffff != retErrno {
		t.Fatalf("the filter answers %#x", answer)
	}
	return answer == retAllow
}

func (m machine) answer(t *testing.T, number uint32, args ...uint64) uint32 {
	t.Helper()
	var data [64]byte
	binary.BigEndian.PutUint32(data[0:], number)
	binary.BigEndian.PutUint32(data[4:], m.audit)
	for i, arg := range args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(arg))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(arg>>32))
	}
	answer, err := m.vm.Run(data[:])
	if err != nil {
		t.Fatal(err)
	}
	return uint32(answer)
}

// onMachines runs the claim for each profile and architecture that has the call.
func onMachines(t *testing.T, name string, claim func(t *testing.T, profile string, allows func(args ...uint64) bool)) {
	t.Helper()
	onMachinesOf(t, seccomp.Profile, name, claim)
}

// onMachinesOf is onMachines for another form of the profiles.
func onMachinesOf(
	t *testing.T, form func(profile string) (*specs.LinuxSeccomp, error), name string,
	claim func(t *testing.T, profile string, allows func(args ...uint64) bool),
) {
	t.Helper()
	for _, profile := range profiles() {
		p, err := form(profile)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range machinesOf(t, p) {
			t.Run(profile+"/"+m.name+"/"+name, func(t *testing.T) {
				number, yes := m.has(t, name)
				if !yes {
					return
				}
				claim(t, profile, func(args ...uint64) bool { return m.allows(t, number, args...) })
			})
		}
	}
}

func TestIoctlRefusesThreeNumbers(t *testing.T) {
	onMachines(t, "ioctl", func(t *testing.T, profile string, allows func(...uint64) bool) {
		for _, high := range []uint64{0, 0x8004, 0xffff_0001_0000} {
			for low := range uint64(1 << 16) {
				refused := low == unix.TIOCSTI || low == unix.TIOCLINUX || low == unix.TIOCSETD
				terminal := low>>8 == 'T'
				request := high<<16 | low
				if want := !refused && (profile != "strict" || terminal); allows(3, request) != want {
					t.Fatalf("ioctl %#x: allowed is %v", request, !want)
				}
			}
		}
		for _, request := range []uint64{unix.FICLONE, unix.FICLONERANGE} {
			if !allows(3, request) {
				t.Errorf("ioctl %#x is refused", request)
			}
		}
	})
}

func TestSocketAllowsWhatIsNamed(t *testing.T) {
	ip := map[[2]uint64]bool{
		{unix.SOCK_STREAM, 0}: true, {unix.SOCK_STREAM, unix.IPPROTO_TCP}: true,
		{unix.SOCK_DGRAM, 0}: true, {unix.SOCK_DGRAM, unix.IPPROTO_UDP}: true,
		{unix.SOCK_DGRAM, unix.IPPROTO_ICMP}: true, {unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}: true,
	}
	protocols := []uint64{
		0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 18, unix.IPPROTO_DCCP, 57, unix.IPPROTO_ICMPV6, 59,
		unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE, unix.IPPROTO_RAW, unix.IPPROTO_MPTCP,
	}
	onMachines(t, "socket", func(t *testing.T, profile string, allows func(...uint64) bool) {
		for family := range uint64(64) {
			for kind := range uint64(16) {
				for _, protocol := range protocols {
					var want bool
					switch family {
					case unix.AF_UNIX:
						want = true
					case unix.AF_INET, unix.AF_INET6:
						want = ip[[2]uint64{kind, protocol}]
					case unix.AF_NETLINK:
						want = protocol == unix.NETLINK_ROUTE
					}
					want = want && profile != "strict"
					flags := uint64(unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK | highBits)
					if allows(family, kind, protocol) != want || allows(family|highBits, kind|flags, protocol|highBits) != want {
						t.Fatalf("socket(%d, %d, %d): allowed is %v", family, kind, protocol, !want)
					}
				}
			}
		}
		if allows(unix.AF_INET|1<<31, unix.SOCK_STREAM, 0) {
			t.Error("a family with the sign set is allowed")
		}
	})
}

func TestSocketpairIsUnix(t *testing.T) {
	onMachines(t, "socketpair", func(t *testing.T, profile string, allows func(...uint64) bool) {
		for family := range uint64(64) {
			for kind := range uint64(16) {
				want := family == unix.AF_UNIX &&
					(profile != "strict" || kind == unix.SOCK_STREAM || kind == unix.SOCK_SEQPACKET)
				if allows(family|highBits, kind|unix.SOCK_CLOEXEC) != want {
					t.Fatalf("socketpair(%d, %d): allowed is %v", family, kind, !want)
				}
			}
		}
	})
}

func TestCloneMakesNoNamespace(t *testing.T) {
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME
	onMachines(t, "clone", func(t *testing.T, _ string, allows func(...uint64) bool) {
		for bit := range 64 {
			flag := uint64(1) << bit
			want := flag&namespaces == 0
			for _, others := range []uint64{0, uint64(unix.SIGCHLD), unix.CLONE_VM | unix.CLONE_VFORK, unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND} {
				if allows(flag|others) != want {
					t.Fatalf("clone(%#x): allowed is %v", flag|others, !want)
				}
			}
		}
	})
}

func TestNoModePlantsSetID(t *testing.T) {
	for name, index := range map[string]int{
		"chmod": 1, "creat": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mknod": 1, "mknodat": 2,
	} {
		onMachines(t, name, func(t *testing.T, _ string, allows func(...uint64) bool) {
			for mode := range uint64(0o10000) {
				var args [4]uint64
				args[index] = mode | highBits
				if want := mode&0o6000 == 0; allows(args[:]...) != want {
					t.Fatalf("mode %#o: allowed is %v", mode, !want)
				}
			}
		})
	}
}

// Without a writable directory of the host only the set-user-ID bit is refused.
func TestGroupIDsWithoutUserIDs(t *testing.T) {
	for name, index := range map[string]int{
		"chmod": 1, "creat": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mknod": 1, "mknodat": 2, "open": 2, "openat": 3,
	} {
		onMachinesOf(t, seccomp.WithGroupIDs, name, func(t *testing.T, _ string, allows func(...uint64) bool) {
			for mode := range uint64(0o10000) {
				args := make([]uint64, 4)
				args[index] = mode | highBits
				if strings.HasPrefix(name, "open") {
					args[index-1] = unix.O_CREAT
				}
				if want := mode&0o4000 == 0; allows(args...) != want {
					t.Fatalf("mode %#o: allowed is %v", mode, !want)
				}
			}
		})
	}
}

func TestOpenPlantsNoSetID(t *testing.T) {
	// O_CREAT and the part of O_TMPFILE that is not O_DIRECTORY are the same on
	// both architectures, asm-generic/fcntl.h.
	const creat, tmpfile = 0o100, 0o20000000
	for name, index := range map[string]int{"open": 1, "openat": 2} {
		onMachines(t, name, func(t *testing.T, _ string, allows func(...uint64) bool) {
			for bit := range 32 {
				for _, mode := range []uint64{0o644, 0o4755, 0o2755, 0o6000, 0o1777} {
					flags := uint64(1) << bit
					args := make([]uint64, 4)
					args[index], args[index+1] = flags|highBits, mode|highBits
					if want := flags&(creat|tmpfile) == 0 || mode&0o6000 == 0; allows(args...) != want {
						t.Fatalf("flags %#o, mode %#o: allowed is %v", flags, mode, !want)
					}
				}
			}
		})
	}
}

// Told hands over calls that are answered with EPERM, and changes no other answer. The two ioctls are
// those of the listener, which no command has.
func TestToldCallsAreRefusedOnes(t *testing.T) {
	for _, name := range profiles() {
		p, err := seccomp.Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		if p, err = seccomp.ForAgent(p, false); err != nil {
			t.Fatal(err)
		}
		before, after := machinesOf(t, p), machinesOf(t, seccomp.Told(p))
		for i, m := range before {
			told := map[string]bool{}
			for number := range uint32(480) {
				call, err := libseccomp.ScmpSyscall(number).GetNameByArch(m.arch)
				if err != nil {
					continue
				}
				for bit := range 33 {
					arg := uint64(1) << bit & 0xffff_ffff
					was, is := m.answer(t, number, arg, arg), after[i].answer(t, number, arg, arg)
					if is == retTell && was == retErrno|uint32(unix.EPERM) {
						told[call] = true
					} else if was != is {
						t.Errorf("%s, %s: %s(%#x) is answered %#x in place of %#x", name, m.name, call, arg, is, was)
					}
				}
			}
			want := []string{"bpf", "clone", "mount", "perf_event_open", "setns", "umount2", "unshare"}
			if name != "debug" {
				want = append(want, "kcmp", "pidfd_getfd", "process_vm_readv", "process_vm_writev", "ptrace")
				slices.Sort(want)
			}
			if got := slices.Sorted(maps.Keys(told)); !slices.Equal(got, want) {
				t.Errorf("%s, %s: told are %q, want %q", name, m.name, got, want)
			}
		}
	}
}

// TestNamesAreCalls finds names that are spelled wrong: libcontainer would skip
// them.
func TestNamesAreCalls(t *testing.T) {
	// Newer than libseccomp 2.5.
	recent := []string{"getxattrat", "listmount", "listxattrat", "mseal", "removexattrat", "setxattrat", "statmount", "uretprobe"}
	for _, name := range profiles() {
		p, err := seccomp.Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range p.Syscalls {
			for _, call := range rule.Names {
				number, err := libseccomp.GetSyscallFromNameByArch(call, libseccomp.ArchAMD64)
				if err != nil && slices.Contains(recent, call) {
					continue
				}
				if err != nil || number < 0 {
					t.Errorf("%s: %s is no call of amd64", name, call)
				}
			}
		}
	}
}
