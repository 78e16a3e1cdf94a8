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
