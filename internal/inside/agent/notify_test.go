package agent

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

const retUserNotif = 0x7fc0_0000 // linux/seccomp.h

// telling has the sandbox's filter hand some calls to the agent.
func telling(t testing.TB, numbers ...uint32) option {
	t.Helper()
	if older := testhost.LinuxBefore(t, 5, 0); older != "" {
		t.Skip(older)
	}
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}
	for _, number := range numbers {
		code = append(code,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: retUserNotif})
	}
	code = append(code, filterCode()...)
	return filtered(t, storedFilter(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uint32(len(code)), code))
}

func toldAll() []uint32 {
	return []uint32{unix.SYS_PTRACE, unix.SYS_PERF_EVENT_OPEN, unix.SYS_BPF, unix.SYS_SETNS, unix.SYS_MOUNT}
}

// perlCall makes a system call with zeros, and prints its error number.
func perlCall(number int) string {
	return "perl -e 'syscall(" + strconv.Itoa(number) + ",0,0,0,0,0); print 0+$!, qq{\\n}' </dev/null"
}

// The agent answers EPERM to the calls that its filter hands over, and tells of them with the exit of
// the command: of its descendants, too, and not of other commands or of another session.
func TestRefusedCallsAreTold(t *testing.T) {
	s := open(t, telling(t, toldAll()...))
	for name, c := range map[string]struct {
		line string
		want RefusedCalls
	}{
		"none":            {"true", 0},
		"a trace":         {perlCall(unix.SYS_PTRACE), RefusedTrace},
		"of a descendant": {"sh -c \"$(cat <<'E'\n" + perlCall(unix.SYS_MOUNT) + "\nE\n)\"; true", RefusedMount},
		"two":             {perlCall(unix.SYS_SETNS) + ";" + perlCall(unix.SYS_BPF), RefusedNamespace | RefusedBPF},
		"events":          {perlCall(unix.SYS_PERF_EVENT_OPEN), RefusedPerf},
		"its own session": {"setsid -w sh -c \"$(cat <<'E'\n" + perlCall(unix.SYS_PTRACE) + "\nE\n)\"", 0},
	} {
		out, exit := s.run(t, command("sh", "-c", c.line))
		if exit.Refused != c.want || strings.Trim(out, "1\n") != "" {
			t.Errorf("%s: told of %#x, want %#x; %q", name, exit.Refused, c.want, out)
		}
	}
	s.serves(t)
}

// Many processes that make such calls without end hold up no other command, and a kill ends them.
func TestRefusedCallsWithoutEnd(t *testing.T) {
	testhost.Concurrent(t)
	s := open(t, telling(t, unix.SYS_PTRACE))
	const flood = "perl -e 'syscall(101,0,0,0,0) while 1' </dev/null"
	line := strings.Replace(flood, "101", strconv.Itoa(unix.SYS_PTRACE), 1)
	flooding, _ := s.begin(t, command("sh", "-c", strings.Repeat(line+" & ", 8)+"echo begun; wait"))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if _, exit, err := s.try(t.Context(), command("sh", "-c", perlCall(unix.SYS_PTRACE))); err != nil || exit.Refused != RefusedTrace {
					t.Errorf("beside the others: %+v, %v", exit, err)
				}
			}
		})
	}
	all.Wait()
	if err := flooding.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if exit, err := flooding.Wait(within(t, testhost.Patience)); err != nil || exit.Refused != RefusedTrace {
		t.Errorf("%+v, %v", exit, err)
	}
	s.serves(t)
}

// No process inside has the listener.
func TestNoCommandHasTheListener(t *testing.T) {
	s := open(t, telling(t, unix.SYS_PTRACE))
	if out := s.mustRun(t, command("sh", "-c", "ls /proc/self/fd")); strings.TrimSpace(out) != "0\n1\n2\n3" { // 3 is the list's
		t.Errorf("a command has %q", out)
	}
}
