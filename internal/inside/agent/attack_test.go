package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// attack tries on a process what another could do to it, and returns what each
// attempt answered; "done" for one that worked.
func attack(victim int) map[string]string {
	runtime.LockOSThread() // a tracer is a thread
	got := map[string]string{}
	note := func(name string, err error) {
		got[name] = "done"
		if err != nil {
			got[name] = err.Error()
		}
	}
	call := func(name string, number uintptr, args ...uintptr) uintptr {
		var a [6]uintptr
		copy(a[:], args)
		r, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			note(name, errno)
			return 0
		}
		note(name, nil)
		return r
	}
	attackBySignal(uintptr(victim), call)
	attackByTrace(uintptr(victim), call)
	attackByLimits(uintptr(victim), call)
	attackByFiles(fmt.Sprintf("/proc/%d/", victim), note)
	return got
}

type caller func(name string, number uintptr, args ...uintptr) uintptr

func attackBySignal(victim uintptr, call caller) {
	for _, s := range []syscall.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGTERM, unix.SIGINT, unix.SIGSEGV, unix.SIGCHLD, 40} {
		call(fmt.Sprintf("kill %d", s), unix.SYS_KILL, victim, uintptr(s))
		call(fmt.Sprintf("tgkill %d", s), unix.SYS_TGKILL, victim, victim, uintptr(s))
	}
	info := [128]byte{}
	call("rt_sigqueueinfo", unix.SYS_RT_SIGQUEUEINFO, victim, uintptr(unix.SIGKILL), uintptr(unsafe.Pointer(&info)))
	if fd, err := unix.PidfdOpen(int(victim), 0); err == nil {
		call("pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL, uintptr(fd), uintptr(unix.SIGKILL), 0, 0)
		for n := range uintptr(6) {
			call(fmt.Sprintf("pidfd_getfd %d", n), unix.SYS_PIDFD_GETFD, uintptr(fd), n, 0)
		}
		call("process_madvise", unix.SYS_PROCESS_MADVISE, uintptr(fd), 0, 0, unix.MADV_COLD, 0)
		call("setns", unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWNS)
	}
}

func attackByTrace(victim uintptr, call caller) {
	call("ptrace attach", unix.SYS_PTRACE, unix.PTRACE_ATTACH, victim)
	call("ptrace seize", unix.SYS_PTRACE, unix.PTRACE_SEIZE, victim)
	var word uint64
	local := unix.Iovec{Base: (*byte)(unsafe.Pointer(&word)), Len: 8}
	remote := unix.RemoteIovec{Base: 0x400000, Len: 8}
	call("process_vm_readv", unix.SYS_PROCESS_VM_READV, victim, uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1)
	call("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, victim, uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1)
	call("kcmp", unix.SYS_KCMP, victim, uintptr(os.Getpid()), 2 /* KCMP_FILES */)
	var head, size uintptr
	call("get_robust_list", unix.SYS_GET_ROBUST_LIST, victim, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&size)))
	call("move_pages", unix.SYS_MOVE_PAGES, victim)
	call("migrate_pages", unix.SYS_MIGRATE_PAGES, victim, 64, uintptr(unsafe.Pointer(&word)), uintptr(unsafe.Pointer(&word)))
}

func attackByLimits(victim uintptr, call caller) {
	limit := unix.Rlimit{}
	for _, n := range []uintptr{unix.RLIMIT_NOFILE, unix.RLIMIT_CPU, unix.RLIMIT_AS} {
		call(fmt.Sprintf("prlimit %d", n), unix.SYS_PRLIMIT64, victim, n, uintptr(unsafe.Pointer(&limit)), 0)
		call(fmt.Sprintf("prlimit read %d", n), unix.SYS_PRLIMIT64, victim, n, 0, uintptr(unsafe.Pointer(&limit)))
	}
	call("setpriority", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, victim, 19)
	call("setpriority group", unix.SYS_SETPRIORITY, unix.PRIO_PGRP, victim, 19)
	call("setpriority user", unix.SYS_SETPRIORITY, unix.PRIO_USER, agentID, 19)
	mask := uint64(1)
	call("sched_setaffinity", unix.SYS_SCHED_SETAFFINITY, victim, 8, uintptr(unsafe.Pointer(&mask)))
	priority := int32(0)
	call("sched_setscheduler", unix.SYS_SCHED_SETSCHEDULER, victim, 5 /* SCHED_IDLE */, uintptr(unsafe.Pointer(&priority)))
	call("ioprio_set", unix.SYS_IOPRIO_SET, 1, victim, 3<<13)
	call("setpgid", unix.SYS_SETPGID, victim, victim)
}

func attackByFiles(proc string, note func(string, error)) {
	for _, f := range []string{"environ", "mem", "maps", "smaps", "auxv", "syscall", "io", "pagemap", "personality", "stack", "timerslack_ns", "fdinfo/3"} {
		text, err := os.ReadFile(proc + f)
		if err == nil && len(text) == 0 {
			err = fmt.Errorf("read nothing")
		}
		note("read "+f, err)
	}
	for _, f := range []string{"mem", "oom_score_adj", "oom_adj", "coredump_filter", "autogroup", "clear_refs", "timerslack_ns", "comm", "sched", "uid_map", "gid_map", "setgroups", "loginuid"} {
		w, err := os.OpenFile("/proc/1/"+f, os.O_WRONLY, 0)
		if err == nil {
			_, err = w.WriteString("1")
			w.Close()
		}
		note("write "+f, err)
	}
	for _, f := range []string{"exe", "root", "cwd", "fd/0", "fd/3", "fd/4", "ns/mnt", "ns/user"} {
		_, err := os.Readlink(proc + f)
		note("readlink "+f, err)
		_, err = os.Open(proc + f)
		note("open "+f, err)
	}
	_, err := os.ReadDir(proc + "root/")
	note("list root", err)
	_, err = os.ReadDir(proc + "fd")
	note("list fd", err)
	_, err = os.ReadDir(proc + "map_files")
	note("list map_files", err)
}

// TestNothingInsideTouchesTheAgent tries everything as the usual user and as
// id 0.
func TestNothingInsideTouchesTheAgent(t *testing.T) {
	s := open(t)
	for _, id := range []uint32{1000, 0, 65534} {
		s.resists(t, id, 1)
		s.serves(t)
	}
	if score := s.hostFile(t, "oom_score_adj"); score != s.ownOOMScore(t) {
		t.Errorf("oom_score_adj of the agent is %s", score)
	}
}

// resists fails if anything works that a user tries on a process.
func (s *sandbox) resists(t testing.TB, user uint32, victim int) {
	t.Helper()
	c := asProbe("attack", strconv.Itoa(victim))
	c.UID, c.GID = user, user
	var got map[string]string
	if err := json.Unmarshal([]byte(s.mustRun(t, c)), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) < 60 {
		t.Errorf("id %d: only %d attempts were made: %v", user, len(got), got)
	}
	for name, answer := range got {
		if answer == "done" {
			t.Errorf("id %d: %s worked", user, name)
		}
	}
}

// hostFile reads a file of the agent's in the host's /proc.
func (s *sandbox) hostFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (s *sandbox) ownOOMScore(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestStormsReachNoStranger has a user stop or kill all it can: execs of that user
// may suffer, the agent and another user's do not.
func TestStormsReachNoStranger(t *testing.T) {
	for _, id := range []uint32{1000, 0} {
		for _, signal := range []string{"STOP", "KILL"} {
			t.Run(fmt.Sprintf("%d %s", id, signal), func(t *testing.T) { testStorm(t, id, signal) })
		}
	}
}

func testStorm(t *testing.T, id uint32, signal string) {
	s := open(t)
	c := asProbe("storm", signal)
	c.UID, c.GID = id, id
	storm, out := s.begin(t, c)
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	var victims sync.WaitGroup
	victims.Go(func() {
		for range 10 {
			c := command("true")
			c.UID, c.GID = id, id
			// Either of: done, killed, stopped until the context ends.
			s.try(within(t, 30*time.Millisecond), c)
		}
	})
	other := command("true")
	other.UID, other.GID = 2000, 2000
	for range 30 {
		s.mustRun(t, other)
	}
	victims.Wait()
	if err := storm.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit, err := storm.Wait(within(t, testhost.Patience)); err != nil || exit.Status.Signal() != unix.SIGKILL {
		t.Errorf("storm ended with %#x, %v, want a SIGKILL", exit.Status, err)
	}
	s.serves(t)
	// What was stopped half-way was killed when its context ended.
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// TestAgentIsBare looks at the agent from the host.
func TestAgentIsBare(t *testing.T) {
	s := open(t)
	s.serves(t)
	const kept = "00000000000400e0" // KILL, SETGID, SETUID, SYS_CHROOT
	want := map[string]string{
		"CapInh": "0000000000000000", "CapPrm": kept, "CapEff": kept,
		"CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2", "Groups": "", "Name": "sandbox-agent",
		"SigBlk": "0000000000010000", "SigIgn": "0000000000000000", "SigCgt": "0000000000000000",
	}
	for line := range strings.Lines(s.hostFile(t, "status") + "\n") {
		k, v, _ := strings.Cut(line, ":")
		if w, ok := want[k]; ok && strings.TrimSpace(v) != w {
			t.Errorf("%s is %q, want %q", k, strings.TrimSpace(v), w)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/environ", s.cmd.Process.Pid), &st); err != nil || st.Uid != 0 {
		t.Errorf("dumpable: its files in /proc are uid %d's, %v", st.Uid, err)
	}
	// null three times, control, children, loop
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// TestStopsDoNotWakeTheAgent has one exec stop and continue another.
func TestStopsDoNotWakeTheAgent(t *testing.T) {
	s := open(t)
	_, out := s.begin(t, command("sh", "-c", "echo $$; exec sleep 1000"))
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	wakes := func() (n int) {
		_, text, _ := strings.Cut(s.hostFile(t, "status"), "\nvoluntary_ctxt_switches:")
		fmt.Sscan(text, &n)
		return n
	}
	before := wakes()
	s.mustRun(t, command("sh", "-c", fmt.Sprintf("for i in $(seq 500); do kill -STOP %d; kill -CONT %[1]d; done", pid)))
	if n := wakes() - before; n > 100 {
		t.Errorf("woken %d times by 500 stops", n)
	}
}

// descriptors counts those of the agent.
func (s *sandbox) descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
