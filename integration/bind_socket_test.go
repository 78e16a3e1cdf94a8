package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// agents are an ssh-agent with one key, and a gpg-agent, of one user.
type agents struct {
	t        *testing.T
	uid      uint32
	dir      string
	ssh, gpg string // their sockets
}

func startAgents(t *testing.T, uid uint32) *agents {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "agents-") // a path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := &agents{t: t, uid: uid, dir: dir, ssh: dir + "/ssh.sock", gpg: dir + "/gpg/S.gpg-agent"}
	if err := errors.Join(os.Mkdir(dir+"/gpg", 0o700), os.Chmod(dir, 0o755), os.Chown(dir, int(uid), int(uid)), os.Chown(dir+"/gpg", int(uid), int(uid))); err != nil {
		t.Fatal(err)
	}
	a.start(a.ssh, hostTool(t, "ssh-agent"), "-D", "-a", a.ssh)
	a.start(a.gpg, hostTool(t, "gpg-agent"), "--homedir", dir+"/gpg", "--daemon", "--no-detach", "--disable-scdaemon")
	// As root, whom an agent serves, too: the user is in no passwd(5).
	a.run(hostTool(t, "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "the-key", "-f", dir+"/key")
	a.run(hostTool(t, "ssh-add"), "-q", dir+"/key")
	return a
}

// command is one of the user's.
func (a *agents) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = a.dir
	cmd.Env = []string{"HOME=" + a.dir, "PATH=" + os.Getenv("PATH"), "SSH_AUTH_SOCK=" + a.ssh}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.uid, Gid: a.uid}}
	return cmd
}

// run runs a command as root.
func (a *agents) run(program string, args ...string) {
	a.t.Helper()
	cmd := a.command(program, args...)
	cmd.SysProcAttr = nil
	if out, err := cmd.CombinedOutput(); err != nil {
		a.t.Fatalf("%s: %v: %s", program, err, out)
	}
}

// start starts an agent, and waits for its socket.
func (a *agents) start(socket, program string, args ...string) {
	a.t.Helper()
	cmd := a.command(program, args...)
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = errors.Join(cmd.Process.Kill(), cmd.Wait()) })
	eventually(a.t, socket, func() bool { return exists(socket) })
}

// relay listens on a second socket, and connects each client with the ssh-agent. It has the user of
// this process: root.
func (a *agents) relay() string {
	a.t.Helper()
	path := a.dir + "/relay.sock"
	l, err := net.Listen("unix", path)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", a.ssh)
			if err != nil {
				client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); server.Close() }()
			go func() { _, _ = io.Copy(client, server); client.Close() }()
		}
	}()
	return path
}

const (
	listKeys = "SSH_AUTH_SOCK=/run/ssh.sock ssh-add -l"
	askGPG   = "gpg-connect-agent --no-autostart -S /run/gpg.sock 'getinfo version' /bye"
)

// A bound socket leads to its server. gpg-agent serves each user that can connect. ssh-agent serves
// its own user and root only; a relay of that user leads to it.
func TestBoundSocketsLeadToTheirServers(t *testing.T) {
	s := newSandboxes(t)
	a := startAgents(t, 0)
	if got := s.do("--bind", a.gpg+":/run/gpg.sock", "--", "sh", "-c", askGPG); got.code != 0 || !strings.HasPrefix(got.stdout, "D 2") {
		t.Errorf("gpg-agent: %+v", got)
	}
	o := s.json("--bind", a.ssh+":/run/ssh.sock", "--", "sh", "-c", listKeys)
	if o.ExitCode == 0 || !strings.Contains(strings.Join(o.Notes, "\n"), a.ssh+" is a socket: a command in the sandbox can use its server") {
		t.Errorf("ssh-agent: %+v", o)
	}
	if got := s.do("--bind", a.relay()+":/run/ssh.sock", "--", "sh", "-c", listKeys); got.code != 0 || !strings.Contains(got.stdout, "the-key") {
		t.Errorf("ssh-agent by a relay: %+v", got)
	}
	if got := s.do("--seccomp", "strict", "--bind", a.gpg+":/run/gpg.sock", "--", "sh", "-c", askGPG); got.code == 0 {
		t.Errorf("strict, which has no connect(2): %+v", got)
	}
	for _, path := range []string{s.root, filepath.Join(s.root, "launcher.sock")} {
		if got := s.do("--bind", path+":/run/s", "--", "true"); got.code == 0 {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// A user of a launcher shows only sockets of its own in the directories of its rule. The launcher's
// own socket is not shown, wherever it lies.
func TestBoundSocketsOfALaunchersUser(t *testing.T) {
	const uid = 4243
	s := newSandboxes(t)
	a := startAgents(t, uid)
	others, err := net.Listen("unix", a.dir+"/others.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	if err := os.Chmod(a.dir+"/others.sock", 0o666); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(openDir(t), "outside.sock")
	if err := unix.Mknod(outside, unix.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(outside, uid, uid); err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(t.TempDir(), "rules.json")
	writeFile(t, rules, fmt.Sprintf(`{"peers":[{"user":%d,"workspaces":[%q]}]}`, uid, a.dir))
	l := s.launcher(filepath.Join(openDir(t), "s"), "--mode", "0666", "--rules", rules)
	do := func(args ...string) result {
		t.Helper()
		return run(t, a.command(binary(t), append([]string{"--socket", l.socket, "do"}, args...)...))
	}
	if got := do("--bind", a.gpg+":/run/gpg.sock", "--", "sh", "-c", askGPG); got.code != 0 || !strings.HasPrefix(got.stdout, "D 2") {
		t.Errorf("gpg-agent: %+v", got)
	}
	if err := os.Chown(a.relay(), uid, uid); err != nil {
		t.Fatal(err)
	}
	if got := do("--bind", a.dir+"/relay.sock:/run/ssh.sock", "--", "sh", "-c", listKeys); got.code != 0 || !strings.Contains(got.stdout, "the-key") {
		t.Errorf("ssh-agent by a relay: %+v", got)
	}
	for path, want := range map[string]string{
		a.dir + "/others.sock": "it does not belong to you",
		outside:                "it does not lie in any of the allowed directories",
		l.socket:               "it does not belong to you",
	} {
		if got := do("--bind", path+":/run/s", "--", "true"); got.code == 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v", path, got)
		}
	}
	// Root may show every socket but those of the runtime.
	if got := run(t, exec.Command(binary(t), "--socket", l.socket, "do", "--bind", l.socket+":/run/s", "--", "true")); got.code == 0 || !strings.Contains(got.stderr, "a socket of the runtime itself") {
		t.Errorf("the launcher's own socket: %+v", got)
	}
}
