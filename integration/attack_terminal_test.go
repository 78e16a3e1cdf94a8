package integration

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// attackTerminal runs a command on a terminal of the host and returns what
// the terminal showed, and whether the attack's text was typed into it: it is
// then read by the shell that comes next, as by a person's own.
func attackTerminal(t *testing.T, cmd *exec.Cmd) (shown string, typed bool) {
	t.Helper()
	// What has been typed by the time that is over is there to be read, however late.
	const shell = `"$@"; echo "next shell"; { read -t 0.2 line || { read -t 0 && read line; }; } && echo "typed: $line"; true`
	next := exec.Command(hostTool(t, "bash"), append([]string{"-c", shell, "bash"}, cmd.Args...)...)
	term, p := onTerminal(t, next)
	p.wait()
	<-term.closed
	shown = term.output()
	return shown, strings.Contains(shown, "typed: ")
}

func withTerminal(s *specs.Spec) { s.Process.Terminal = true }

const pushed = "echo canary\n"

// triedInVain is the terminal of an attack without an effect. do says why the attacker has failed.
var triedInVain = regexp.MustCompile("tried\r\n(sandbox-runtime: the command ended with exit code 1; [^\r]*\r\n)?next shell")

// CVE-2017-5226: the sandbox types into the terminal of whoever started it.
func TestAttackByTyping(t *testing.T) {
	s := newSandboxes(t)
	r := ours(t)
	root := sharedAttackRoot(t)
	program, err := attackProgram()
	if err != nil {
		t.Fatal(err)
	}
	b := newAttack(t, []string{"attack", "push", pushed})
	tty := newAttack(t, []string{"attack", "push", pushed}, withTerminal)
	for name, cmd := range map[string]*exec.Cmd{
		"run":                      r.command("run", "--bundle", b.dir, "attack"),
		"run on a terminal":        r.command("run", "--bundle", tty.dir, "attack"),
		"do":                       s.command("do", "--rootfs", root, "--", "attack", "push", pushed),
		"do with input":            s.command("do", "-i", "--rootfs", root, "--", "attack", "push", pushed),
		"do on a terminal":         s.command("do", "-i", "-t", "--rootfs", root, "--", "attack", "push", pushed),
		"do as root on a terminal": s.command("do", "-i", "-t", "--user", "0", "--rootfs", root, "--", "attack", "push", pushed),
	} {
		shown, typed := attackTerminal(t, cmd)
		if typed || !triedInVain.MatchString(shown) {
			t.Errorf("%s: the terminal shows %q", name, shown)
		}
		if strings.HasPrefix(name, "do") && (strings.Contains(shown, "typed") || strings.Contains(shown, "pasted")) {
			t.Errorf("%s: an ioctl was let through: %q", name, shown)
		}
	}
	if shown, typed := attackTerminal(t, exec.Command(program, "push", pushed)); !typed {
		t.Errorf("without a sandbox it should type: %q", shown)
	}
}

// A sandbox's terminal is a new one, in a new session; without one there is no
// controlling terminal to open.
func TestATerminalInsideIsItsOwn(t *testing.T) {
	s := newSandboxes(t)
	r := ours(t)
	root := sharedAttackRoot(t)
	idle := newAttack(t, []string{"sleep", "1000"})
	r.create(idle, "idle")
	r.run("start", "idle")
	for _, test := range []struct {
		cmd  *exec.Cmd
		want string
	}{
		{r.command("run", "--bundle", newAttack(t, []string{"attack", "terminal"}).dir, "attack"), "session inside, terminal none, stdin none"},
		{r.command("run", "--bundle", newAttack(t, []string{"attack", "terminal"}, withTerminal).dir, "attack"), "session inside, terminal there, stdin /dev/pts/0"},
		{r.command("exec", "idle", "attack", "terminal"), "session inside, terminal none, stdin none"},
		{r.command("exec", "--tty", "idle", "attack", "terminal"), "session inside, terminal there, stdin /dev/pts/0"},
		{s.command("do", "--rootfs", root, "--", "attack", "terminal"), "session inside, terminal none, stdin none"},
		{s.command("do", "-i", "--rootfs", root, "--", "attack", "terminal"), "session inside, terminal none, stdin none"},
		{s.command("do", "-i", "-t", "--rootfs", root, "--", "attack", "terminal"), "session inside, terminal there, stdin /dev/pts/0"},
	} {
		if shown, _ := attackTerminal(t, test.cmd); !strings.HasPrefix(shown, test.want+"\r\n") {
			t.Errorf("%q: %q, want %q", test.cmd.Args[1:], shown, test.want)
		}
	}
}
