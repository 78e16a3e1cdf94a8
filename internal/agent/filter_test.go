package agent

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testhost"
)

// storedFilter is a filter as the agent reads it from descriptor 8.
func storedFilter(flags, count uint32, code []unix.SockFilter) []byte {
	b := binary.NativeEndian.AppendUint32(nil, flags)
	b = binary.NativeEndian.AppendUint32(b, count)
	for _, c := range code {
		b = binary.NativeEndian.AppendUint16(b, c.Code)
		b = append(b, c.Jt, c.Jf)
		b = binary.NativeEndian.AppendUint32(b, c.K)
	}
	return b
}

// filtered gives the agent a filter file, and has its starter load none.
func filtered(t testing.TB, content []byte) option {
	t.Helper()
	path := filepath.Join(t.TempDir(), "filter")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *exec.Cmd) {
		setting(openVariable, "yes")(c)
		c.ExtraFiles[5] = f
	}
}

// TestAgentLoadsItsFilter before it serves, with a listener and without.
func TestAgentLoadsItsFilter(t *testing.T) {
	code := filterCode()
	content := storedFilter(unix.SECCOMP_FILTER_FLAG_LOG|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uint32(len(code)), code)
	for _, s := range []*sandbox{
		open(t, filtered(t, content)),
		open(t, filtered(t, content), listening(t, filepath.Join(t.TempDir(), "agent.sock"))),
	} {
		status := s.hostFile(t, "status")
		if !strings.Contains(status, "\nSeccomp:\t2\n") || !strings.Contains(status, "\nSeccomp_filters:\t1\n") {
			t.Errorf("the agent is under no filter, or more than one: %s", status)
		}
		if out, exit := s.run(t, command("unshare", "-U", "true")); exit.Status == 0 || !strings.Contains(out, "not permitted") {
			t.Errorf("the filter does not hold: %q", out)
		}
		if got := s.report(t, asProbe("report")); got.Status["Seccomp_filters"] != "2" {
			t.Errorf("a command has %s filters, want the sandbox's and its own", got.Status["Seccomp_filters"])
		}
		s.serves(t)
		s.cmd.Process.Kill()
	}
}

func TestAgentServesUnderNoLessThanAFilter(t *testing.T) {
	code := filterCode()
	n := uint32(len(code))
	good := storedFilter(0, n, code)
	endless := append([]unix.SockFilter{}, code[:len(code)-1]...) // does not end with a return
	for name, o := range map[string]option{
		"no filter at all":   setting(openVariable, "yes"),
		"nothing":            filtered(t, nil),
		"half a header":      filtered(t, good[:4]),
		"a header alone":     filtered(t, good[:8]),
		"no instruction":     filtered(t, storedFilter(0, 0, nil)),
		"one is missing":     filtered(t, good[:len(good)-8]),
		"a byte more":        filtered(t, append(good[:len(good):len(good)], 0)),
		"an unknown flag":    filtered(t, storedFilter(1<<30, n, code)),
		"a listener":         filtered(t, storedFilter(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, n, code)),
		"too long":           filtered(t, storedFilter(0, 4097, make([]unix.SockFilter, 4097))),
		"a count that wraps": filtered(t, storedFilter(0, 1<<29+n, code)),
		"no program":         filtered(t, storedFilter(0, n-1, endless)),
	} {
		s := start(t, o)
		if err := s.Ready(within(t, testhost.Patience)); err == nil || !strings.Contains(err.Error(), StageSeccomp.String()) {
			t.Errorf("%s: %v", name, err)
		}
		s.exits(t, name, StageSeccomp)
	}
}

// TestCommandsFindNoClone3 through any entry of the kernel, which on the host
// has it; also under a filter that has no seccomp(2).
func TestCommandsFindNoClone3(t *testing.T) {
	program := filepath.Join(t.TempDir(), "clone3")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if out, err := exec.Command(cc, "-static", "-o", program, "testdata/clone3.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host, err := exec.Command(program).Output()
	if err != nil || !strings.HasPrefix(string(host), "native -22\n") {
		t.Fatalf("on the host: %s, %v", host, err)
	}
	t.Logf("on the host: %s", host)
	code := append([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_SECCOMP},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}, filterCode()...)
	// As on cgroup v1, where the agent has none either, by its own entry.
	without := append([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_CLONE3},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	}, filterCode()...)
	for _, s := range []*sandbox{
		open(t), open(t, filtered(t, storedFilter(0, uint32(len(code)), code))),
		open(t, filtered(t, storedFilter(0, uint32(len(without)), without))),
	} {
		f, err := os.Open(program)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		// Whether or not this kernel has the other entries.
		if got := s.ok(t, command("grep", "Seccomp_filters", "/proc/self/status")); strings.TrimSpace(got) != "Seccomp_filters:\t2" {
			t.Errorf("a command has %s, want the sandbox's and the one that hides clone3", got)
		}
		c := command("sh", "-c", "cat >/tmp/p; chmod 755 /tmp/p; /tmp/p")
		c.Stdin = f
		for line := range strings.Lines(s.ok(t, c)) {
			if strings.TrimSpace(line[strings.IndexByte(line, ' '):]) != "-38" {
				t.Errorf("inside: %s", line)
			}
		}
	}
}
