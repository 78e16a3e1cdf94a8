package agent

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
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

// TestCommandsHaveNoClone3AndNoFilters through any entry of the kernel, also under a
// filter that has no seccomp(2). With a profile that allows filters they have them.
func TestCommandsHaveNoClone3AndNoFilters(t *testing.T) {
	program := filepath.Join(t.TempDir(), "narrow")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if out, err := exec.Command(cc, "-static", "-o", program, "testdata/narrow.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host, err := exec.Command(program).Output()
	if err != nil || !strings.HasPrefix(string(host), "clone3 native -22\nseccomp native -14\nprctl native -14\n") {
		t.Fatalf("on the host: %s, %v", host, err)
	}
	t.Logf("on the host:\n%s", host)
	without := func(number uint32, errno unix.Errno) option { return refusing(t, number, errno) }
	refused := map[string]string{"clone3": "-38", "seccomp": "-22", "prctl": "-22"}
	given := map[string]string{"clone3": "-38"} // filters: as on the host
	for name, c := range map[string]struct {
		want    map[string]string
		options []option
	}{
		"as on cgroup v2":  {refused, nil},
		"without seccomp":  {refused, []option{without(unix.SYS_SECCOMP, unix.EPERM)}},
		"as on cgroup v1":  {refused, []option{without(unix.SYS_CLONE3, unix.ENOSYS)}},
		"filters as on v2": {given, []option{setting(filtersVariable, "yes")}},
		"filters as on v1": {given, []option{setting(filtersVariable, "yes"), without(unix.SYS_CLONE3, unix.ENOSYS)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, c.options...)
			f, err := os.Open(program)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if got := s.mustRun(t, command("grep", "Seccomp_filters", "/proc/self/status")); strings.TrimSpace(got) != "Seccomp_filters:\t2" {
				t.Errorf("a command has %s, want the sandbox's and the commands'", got)
			}
			run := command("sh", "-c", "cat >/tmp/p; chmod 755 /tmp/p; /tmp/p")
			run.Stdin = f
			inside := strings.Split(strings.TrimSpace(s.mustRun(t, run)), "\n")
			outside := strings.Split(strings.TrimSpace(string(host)), "\n")
			if len(inside) != len(outside) {
				t.Fatalf("inside: %q", inside)
			}
			for i, line := range inside {
				call, _, _ := strings.Cut(line, " ")
				want, decided := c.want[call]
				// Whether or not this kernel has the other entries.
				if !decided && line != outside[i] || decided && !strings.HasSuffix(line, " "+want) {
					t.Errorf("inside: %s", line)
				}
			}
		})
	}
}
