package agent

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// modesProgram is testdata/modes.c, which makes each call that takes a mode.
func modesProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "modes")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if out, err := exec.Command(cc, "-static", "-o", program, "testdata/modes.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// modes returns the error number of each call, in a sandbox that has the program at /tmp/modes.
func (s *sandbox) modes(t *testing.T, mode string) map[string]string {
	t.Helper()
	answers := map[string]string{}
	for line := range strings.Lines(s.mustRun(t, command("sh", "-c", "umask 0; /tmp/modes $(mktemp -d) "+mode))) {
		at := strings.LastIndexByte(line, ' ')
		answers[line[:at]] = strings.TrimSpace(line[at+1:])
	}
	if len(answers) < 9 {
		t.Fatalf("answers: %q", answers)
	}
	return answers
}

func (s *sandbox) install(t *testing.T, program string) {
	t.Helper()
	f, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := command("sh", "-c", "cat >/tmp/modes; chmod 755 /tmp/modes")
	c.Stdin = f
	s.mustRun(t, c)
}

// filterCount is the number of filters of a new command.
func (s *sandbox) filterCount(t *testing.T) string {
	t.Helper()
	_, count, _ := strings.Cut(strings.TrimSpace(s.mustRun(t, command("grep", "Seccomp_filters", "/proc/self/status"))), "\t")
	return count
}

// The agent takes the set-group-ID bit from all later commands, as on cgroup v1 and on v2, and
// also if the sandbox's filter has no seccomp(2). All other modes stay.
func TestWithheldModes(t *testing.T) {
	program := modesProgram(t)
	word := setting(groupIDsVariable, "yes")
	for name, options := range map[string][]option{
		"as on cgroup v2": {word},
		"as on cgroup v1": {word, refusing(t, unix.SYS_CLONE3, unix.ENOSYS)},
		"without seccomp": {word, refusing(t, unix.SYS_SECCOMP, unix.EPERM)},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, options...)
			s.install(t, program)
			for call, errno := range s.modes(t, "2755") {
				if errno != "0" {
					t.Errorf("before: %s: errno %s", call, errno)
				}
			}
			for range 2 {
				if err := s.Withhold(within(t, testhost.Patience)); err != nil {
					t.Fatal(err)
				}
			}
			for call, errno := range s.modes(t, "2755") {
				free := strings.Contains(call, "not new")
				if want := map[bool]string{true: "0", false: "1"}[free]; errno != want {
					t.Errorf("2755: %s: errno %s, want %s", call, errno, want)
				}
			}
			for call, errno := range s.modes(t, "1755") {
				if errno != "0" {
					t.Errorf("1755: %s: errno %s", call, errno)
				}
			}
			if got := s.filterCount(t); got != "3" {
				t.Errorf("a command has %s filters, want the sandbox's, the one of modes and the commands'", got)
			}
			s.serves(t)
		})
	}
}

// An agent that was not prepared loads no other filter on cgroup v1. It says so, and serves on.
func TestWithholdWithoutTheWord(t *testing.T) {
	s := open(t, refusing(t, unix.SYS_CLONE3, unix.ENOSYS))
	var refused *StartError
	if err := s.Withhold(within(t, testhost.Patience)); !errors.As(err, &refused) || refused.Stage != StageNarrow {
		t.Errorf("%v", err)
	}
	s.serves(t)
}

// refusing has the sandbox's filter refuse one call.
func refusing(t *testing.T, number uint32, errno unix.Errno) option {
	t.Helper()
	code := append([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
	}, filterCode()...)
	return filtered(t, storedFilter(0, uint32(len(code)), code))
}
