package integration

import (
	"fmt"
	"strings"
	"testing"
)

func TestLogsShowsKeptOutputAndLeavesTheResult(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	if got := run(t, s.command("logs", "box")); got != (result{0, "", "box keeps no output: it has no detached command (exec --detach starts one)\n"}) {
		t.Errorf("without a command: %+v", got)
	}
	first := s.detached("box", "echo one; echo two >&2; exit 3")
	eventually(t, "it has ended", func() bool { return s.execs("box")[first].Ended })
	want := result{0, "one\n", "two\n"}
	for _, args := range [][]string{{"box"}, {"box", first}, {"--follow", "box"}} {
		eventually(t, "its output is complete", func() bool { return run(t, s.command(append([]string{"logs"}, args...)...)) == want })
	}
	second := s.detached("box", "echo three; exec sleep 1007")
	both := fmt.Sprintf("==> %s sh -c \"echo one; echo two >&2; exit 3\" <==\none\n==> %s sh -c \"echo three; exec sleep 1007\" <==\nthree\n", first, second)
	eventually(t, "both are shown", func() bool { return s.oci("logs", "box").stdout == both })
	if got := run(t, s.command("logs", "-f", "box")); got.code != 1 || !strings.Contains(got.stderr, "box has 2 detached commands; say which one to follow ("+s.program()+" ps --execs box)") {
		t.Errorf("follow of two: %+v", got)
	}
	if got := run(t, s.command("attach", "box", first)); got != (result{3, "one\n", "two\n"}) {
		t.Errorf("attach after logs: %+v", got)
	}
	if got := run(t, s.command("logs", "box", first)); got.code != 1 || !strings.Contains(got.stderr, "does not exist") {
		t.Errorf("logs after attach: %+v", got)
	}
}

func TestLogsFollowsUntilTheEnd(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	id := s.detached("box", "echo first; until test -e go; do sleep 0.05; done; echo second; echo last >&2; exit 4")
	follower := start(t, s.command("logs", "-f", "box", id))
	follower.prints("first\n")
	s.sh("box", "touch go")
	if got := follower.wait(); got != (result{0, "first\nsecond\n", "last\n"}) {
		t.Errorf("followed: %+v", got)
	}
	if got := run(t, s.command("attach", "box", id)); got.code != 4 {
		t.Errorf("attach: %+v", got)
	}
}

// The output of a server is endless. Its log keeps the head and the tail, and a follower gets all
// new output, with any amount before.
func TestLogsOfLongOutput(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	got := s.exec("--detach", "--log-size", "64k", "box", "sh", "-c",
		"echo first; yes line | head -n 100000; echo 1; echo 2; until test -e go; do sleep 0.05; done; echo live; exit 4")
	id := strings.TrimSpace(got.stdout)
	logs := func(args ...string) result { return run(t, s.command(append([]string{"logs"}, args...)...)) }
	eventually(t, "the output is written", func() bool { return strings.HasSuffix(logs("box", id).stdout, "line\n1\n2\n") })
	const written = 6 + 5*100000 + 4
	said := fmt.Sprintf("%d bytes in the middle of standard output were not kept", written-64<<10)
	if got := logs("box", id); !strings.HasPrefix(got.stdout, "first\nline\n") || len(got.stdout) != 64<<10 || !strings.Contains(got.stderr, said) {
		t.Errorf("%d bytes, and %q", len(got.stdout), got.stderr)
	}
	for want, args := range map[string][]string{
		"1\n2\n":       {"--tail", "2"},
		"line\n1\n2\n": {"-n", "3", "--since", "1h"},
		"":             {"--tail", "0"},
	} {
		if got := logs(append(args, "box", id)...); got != (result{0, want, ""}) {
			t.Errorf("%q: got %+v", args, got)
		}
	}
	if got := logs("--since", "2999-01-01T00:00:00Z", "box", id); got != (result{0, "", ""}) {
		t.Errorf("since a later time: %+v", got)
	}
	for _, args := range [][]string{{"--tail", "few"}, {"--since", "yesterday"}} {
		if got := logs(append(args, "box", id)...); got.code != 1 || !strings.Contains(got.stderr, args[0]) {
			t.Errorf("%q: got %+v", args, got)
		}
	}
	follower := start(t, s.command("logs", "-f", "-n", "1", "box", id))
	follower.prints("2\n")
	s.sh("box", "touch go")
	if got := follower.wait(); got.code != 0 || got.stdout != "2\nlive\n" {
		t.Errorf("the follower got %+v", got)
	}
	attached := s.resultOf(run(t, s.command("attach", "--json", "box", id)))
	if attached.ExitCode != 4 || attached.StdoutOmitted != written+5-64<<10 || !attached.StdoutTruncated ||
		!strings.HasPrefix(attached.Stdout, "first\n") || !strings.HasSuffix(attached.Stdout, "2\nlive\n") {
		t.Errorf("attach: %d bytes, %d are missing", len(attached.Stdout), attached.StdoutOmitted)
	}
	if got := s.exec("--log-size", "1m", "box", "true"); got.code != 125 || !strings.Contains(got.stderr, "--detach") {
		t.Errorf("without --detach: %+v", got)
	}
}
