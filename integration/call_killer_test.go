package integration

import (
	"errors"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A callKiller kills a process at a chosen one of its system calls with side effects. It is much faster
// than failpoint.Run, since nothing stops the process before that. The kernel still makes the call.
type callKiller struct {
	// numbers has the numbers of the process, of the call at which it is killed, and of its calls
	// until now.
	numbers *ebpf.Map
	// calls has 1 for each system call that counts.
	calls *ebpf.Map
}

const (
	processNumber = iota
	killAtCall
	callsMade
)

// changingCalls are the system calls that count. openat counts only with O_CREAT.
var changingCalls = []uint32{
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_SYMLINKAT, unix.SYS_LINKAT,
	unix.SYS_MKNODAT, unix.SYS_FCHMODAT, unix.SYS_FCHOWNAT, unix.SYS_FCHMOD, unix.SYS_FCHOWN, unix.SYS_FTRUNCATE,
	unix.SYS_UTIMENSAT, unix.SYS_FLOCK, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FSETXATTR, unix.SYS_FREMOVEXATTR,
	unix.SYS_COPY_FILE_RANGE, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_FSCONFIG,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_EXECVE, unix.SYS_KILL, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_SENDMSG,
	unix.SYS_OPENAT,
}

// newCallKiller begins to count the system calls of one process at a time.
func newCallKiller(t *testing.T) *callKiller {
	t.Helper()
	var err error
	array := func(entries uint32) *ebpf.Map {
		m, failed := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: entries})
		err = errors.Join(err, failed)
		return m
	}
	k := &callKiller{numbers: array(3), calls: array(512)}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.numbers.Close(); k.calls.Close() })
	for _, number := range changingCalls {
		err = errors.Join(err, k.calls.Put(number, uint64(1)))
	}
	var space unix.Stat_t // the namespace of the pids
	if err := errors.Join(err, unix.Stat("/proc/self/ns/pid", &space)); err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, Instructions: k.program(&space), License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	attached, err := ebpflink.AttachRawTracepoint(ebpflink.RawTracepointOptions{Name: "sys_enter", Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { attached.Close() })
	return k
}

// program runs at each begin of a system call. R1 is the address of the registers' address and the call's
// number.
func (k *callKiller) program(space *unix.Stat_t) (code asm.Instructions) {
	add := func(more ...asm.Instruction) { code = append(code, more...) }
	// lookup sets R0 to the address of the value whose key is at R10-8.
	lookup := func(m *ebpf.Map) {
		add(asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -8), asm.LoadMapPtr(asm.R1, m.FD()),
			asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "leave"))
	}
	number := func(i int64) {
		add(asm.StoreImm(asm.R10, -8, i, asm.Word))
		lookup(k.numbers)
	}
	add(asm.Mov.Reg(asm.R6, asm.R1))
	number(processNumber)
	add(asm.LoadMem(asm.R7, asm.R0, 0, asm.DWord),
		asm.LoadImm(asm.R1, int64(space.Dev), asm.DWord), asm.LoadImm(asm.R2, int64(space.Ino), asm.DWord),
		asm.StoreImm(asm.R10, -16, 0, asm.DWord), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -16), asm.Mov.Imm(asm.R4, 8),
		asm.FnGetNsCurrentPidTgid.Call(), asm.JNE.Imm(asm.R0, 0, "leave"),
		asm.LoadMem(asm.R0, asm.R10, -12, asm.Word), asm.JNE.Reg(asm.R0, asm.R7, "leave"),
		asm.LoadMem(asm.R8, asm.R6, 8, asm.DWord), asm.StoreMem(asm.R10, -8, asm.R8, asm.Word))
	lookup(k.calls)
	add(asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, "leave"),
		asm.JNE.Imm(asm.R8, unix.SYS_OPENAT, "count"),
		asm.LoadMem(asm.R3, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R3, flagsRegister[runtime.GOARCH]),
		asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -16), asm.Mov.Imm(asm.R2, 8), asm.FnProbeReadKernel.Call(),
		asm.LoadMem(asm.R1, asm.R10, -16, asm.DWord), asm.And.Imm(asm.R1, unix.O_CREAT), asm.JEq.Imm(asm.R1, 0, "leave"))
	count := len(code)
	number(callsMade)
	code[count] = code[count].WithSymbol("count")
	add(asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord), asm.LoadMem(asm.R7, asm.R0, 0, asm.DWord))
	number(killAtCall)
	add(asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.JLT.Reg(asm.R7, asm.R1, "leave"),
		asm.Mov.Imm(asm.R1, int32(unix.SIGKILL)), asm.FnSendSignal.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("leave"), asm.Return())
	return code
}

// flagsRegister is the place of the third argument in the registers, struct pt_regs.
var flagsRegister = map[string]int32{"amd64": 96, "arm64": 16}

// never is the number of no call.
const never = 1 << 40

// run runs a program, kills it at its n-th call, and returns the number of its calls.
func (k *callKiller) run(t *testing.T, cmd *exec.Cmd, n int) (calls int, killed bool) {
	t.Helper()
	// The shell waits until the numbers are set, and then becomes the program.
	gate := exec.Command("sh", append([]string{"-c", `read go; exec "$@" < /dev/null`, "sh"}, cmd.Args...)...)
	in, err := gate.StdinPipe()
	if err == nil {
		err = gate.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(k.set(processNumber, gate.Process.Pid), k.set(killAtCall, n), k.set(callsMade, 0))
	if _, failed := io.WriteString(in, "\n"); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	late := time.AfterFunc(patience, func() { _ = gate.Process.Kill() })
	err = gate.Wait()
	if !late.Stop() {
		t.Fatalf("%q has not ended in time", cmd.Args)
	}
	var made uint64
	if err := errors.Join(k.numbers.Lookup(uint32(callsMade), &made), k.set(processNumber, 0)); err != nil {
		t.Fatal(err)
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	killed = ok && exit.Sys().(syscall.WaitStatus).Signaled()
	if err != nil && !killed {
		t.Fatal(err)
	}
	return int(made), killed
}

func (k *callKiller) set(number, value int) error {
	return k.numbers.Put(uint32(number), uint64(value))
}
