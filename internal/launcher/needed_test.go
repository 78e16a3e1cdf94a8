package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The profile that allows exactly what a refusal of an empty one names is enough
// for the agent: nothing that it needs is forgotten, and its threads are killed
// for any other call.
func TestAgentNeedsWhatARefusalNames(t *testing.T) {
	l := newTestLauncher(t)
	path := filepath.Join(t.TempDir(), "profile.json")
	with := func(names []string) (*Sandbox, error) {
		text := `{"defaultAction": "SCMP_ACT_KILL_PROCESS", "syscalls": [{"action": "SCMP_ACT_ALLOW", "names": ["` +
			strings.Join(names, `", "`) + `"]}]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return l.Create(t.Context(), protocol.Create{Config: spec.Config{Seccomp: path}}, Sources{})
	}
	sb, err := with([]string{"execve"})
	var config *fault.ConfigError
	if !errors.As(err, &config) {
		if err == nil {
			sb.Close()
		}
		t.Fatalf("with execve alone: %v", err)
	}
	needs := regexp.MustCompile(`needs (.*): allow`).FindStringSubmatch(err.Error())
	if needs == nil {
		t.Fatalf("error %v", err)
	}
	// What the dynamic linker and a shell's builtins call besides.
	program := strings.Fields(`brk access fstat newfstatat pread64 mprotect munmap arch_prctl set_tid_address
		set_robust_list rseq prlimit64 getrandom getuid getgid getpid getppid geteuid getegid rt_sigreturn uname
		lseek faccessat faccessat2 readlink stat lstat ioctl dup`)
	sb, err = with(append(append(strings.Split(needs[1], ", "), "execve"), program...))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	for name, c := range map[string]spec.Command{
		"plain":    {Args: []string{"sh", "-c", "exit 7"}},
		"terminal": {Args: []string{"sh", "-c", "exit 7"}, Terminal: &spec.Winsize{Rows: 3, Columns: 4}},
		"detached": {Args: []string{"sh", "-c", "echo out; exit 7"}, Detached: true},
	} {
		p, err := sb.Start(t.Context(), c, [3]*os.File{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r, err := p.Wait(t.Context()); err != nil || r.ExitCode != 7 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if c.Detached {
			if said := readOutput(t, p).stdout; said != "out\n" {
				t.Errorf("%s: %q", name, said)
			}
		}
		p.Close()
	}
}
