package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVarTmpIsTheSandboxsOwn(t *testing.T) {
	s := newSandboxes(t)
	o := s.json("--", "sh", "-c", "stat -c '%a %F' /var/tmp; ls -A /var/tmp; echo kept > /var/tmp/file; cat /var/tmp/file")
	if o.Stdout != "1777 directory\nkept\n" || len(o.Files.Created) != 1 || o.Files.Created[0] != "/var/tmp/file" {
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

// A program of rustup on the caller's PATH is named with a bind, and the bind brings it.
func TestHiddenToolchainIsNamedWithItsBind(t *testing.T) {
	s := newSandboxes(t)
	home := t.TempDir()
	toolchain := home + "/.rustup/toolchains/stable"
	for name, content := range map[string]string{
		home + "/.cargo/bin/rustup": "#!/bin/sh\n", home + "/.cargo/bin/yarn": "#!/bin/sh\n",
		toolchain + "/bin/yarn": "#!/bin/sh\necho from the toolchain\n", home + "/.rustup/settings.toml": "default_toolchain = \"stable\"\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o755)); err != nil { //nolint:gosec // programs
			t.Fatal(err)
		}
	}
	do := func(args ...string) result {
		cmd := s.command(append([]string{"do"}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+home+"/.cargo/bin:"+os.Getenv("PATH"))
		return run(t, cmd)
	}
	bind := toolchain + ":" + toolchain
	if got := do("--", "yarn"); got.code != 127 || !strings.Contains(got.stderr, "bring it with --bind "+bind) {
		t.Errorf("got %+v, want the bind %s named", got, bind)
	}
	if got := do("--bind", bind, "--", "yarn"); got.code != 0 || got.stdout != "from the toolchain\n" {
		t.Errorf("with the bind: %+v", got)
	}
}
