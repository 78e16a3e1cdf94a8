package integration

import (
	"strings"
	"testing"
)

// A name is looked up in the /etc/passwd of the sandbox, not of the host.
func TestNamesOfUsers(t *testing.T) {
	s := newSandboxes(t)
	for name, want := range map[string]string{
		"nobody": "65534:65534", "root:nogroup": "0:65534", "12:sandbox": "12:1000",
	} {
		if got := s.do("--user", name, "--", "sh", "-c", "echo $(id -u):$(id -g)"); got != (result{0, want + "\n", ""}) {
			t.Errorf("--user %s: %+v", name, got)
		}
	}
	for name, says := range map[string]string{
		"daemon": "--user: user daemon: no such name", "root:daemon": "--user: group daemon: no such name", "no name": "--user: user \"no name\"",
	} {
		if got := s.do("--user", name, "--", "true"); got.code != 125 || !strings.Contains(got.stderr, says) {
			t.Errorf("--user %s: %+v", name, got)
		}
	}
	s.up("box", "--user", "nobody")
	if got := run(t, s.command("up", "--user", "nobody", "box")); got != (result{0, "box\n", "box is up already\n"}) {
		t.Errorf("up again: %+v", got)
	}
	if got := s.exec("--user", "root", "box", "id", "-u"); got != (result{0, "0\n", ""}) {
		t.Errorf("exec as root: %+v", got)
	}
}
