package integration

import (
	"os"
	"strings"
	"testing"
)

func TestVarTmpIsTheSandboxsOwn(t *testing.T) {
	s := newSandboxes(t)
	o := s.json("--", "sh", "-c", "stat -c '%a %F' /var/tmp; ls -A /var/tmp; echo kept > /var/tmp/file; cat /var/tmp/file; ls /var")
	if o.Stdout != "1777 directory\nkept\ntmp\n" || len(o.Files.Created) != 1 || o.Files.Created[0] != "/var/tmp/file" {
		t.Errorf("got %+v", o)
	}
	dir := t.TempDir()
	for _, test := range []struct{ target, list, want string }{
		{"/var", "/var", ""},
		{"/var/tmp", "/var/tmp", ""},
		{"/var/tmp/x", "/var/tmp", "x\n"},
	} {
		if got := s.do("--bind", dir+":"+test.target+":rw", "--", "ls", test.list); got.code != 0 || got.stdout != test.want {
			t.Errorf("a bind at %s: %+v", test.target, got)
		}
	}
}

func TestUserAndShellAreSet(t *testing.T) {
	s := newSandboxes(t)
	for uid, want := range map[string]string{"0": "root", "1000": "sandbox", "7": "sandbox"} {
		got := s.do("--user", uid, "--", "sh", "-c", "echo $USER $SHELL; getent passwd $USER | cut -d: -f3,7")
		if want := want + " /bin/sh\n" + uid + ":/bin/sh"; strings.TrimSpace(got.stdout) != want {
			t.Errorf("--user %s: %+v, want %q", uid, got, want)
		}
	}
	if got := s.do("--env", "USER=ann", "--", "sh", "-c", "echo $USER"); got.stdout != "ann\n" {
		t.Errorf("--env does not win: %+v", got)
	}
}

func TestRefusedWorkspaceBelowRootHasAWayOut(t *testing.T) {
	s := newSandboxes(t)
	dir, err := os.MkdirTemp("/root", "workspace-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	got := s.do("--workspace", dir, "--", "true")
	wantRefusal(t, got, "^.*workspace "+dir+" is forbidden.* use --overlay "+dir+",.*/home, /srv, /var/tmp or /tmp\n$")
	if got := s.do("--overlay", dir, "--cwd", dir, "--", "sh", "-c", "echo kept > file; cat file"); got.code != 0 || got.stdout != "kept\n" {
		t.Errorf("the way out of the error: %+v", got)
	}
}
