package integration

import (
	"strconv"
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

// Root inside adds users to a copy of the host's, and commands run as those users.
func TestUseraddInTheWholeRoot(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--overlay", "/", "--user", "0")
	if got := s.exec("box", "sh", "-ec", `
		groupadd srt-team; useradd -u 4321 srt-bob; usermod -aG srt-team srt-bob; echo srt-bob:secret | chpasswd
		stat -c '%U %G %a' /etc/shadow /etc/gshadow`); got.code != 0 || got.stdout != strings.Repeat("root shadow 640\n", 2) {
		t.Fatalf("%+v", got)
	}
	if got := s.exec("--user", "srt-bob", "box", "id", "-Gn"); got != (result{0, "srt-bob srt-team\n", ""}) {
		t.Errorf("as the new user: %+v", got)
	}
	// The group of root's password files is root's alone.
	for _, user := range []string{"srt-bob", "1000"} {
		if got := s.exec("--user", user, "box", "cat", "/etc/shadow"); got.code == 0 || got.stdout != "" {
			t.Errorf("%s reads /etc/shadow: %+v", user, got)
		}
	}
	got := s.exec("box", "sh", "-c", "grep -E '^(Cap|Groups)' /proc/self/status | tr -d '\\t'; chown srt-bob /etc/hostname")
	if got.code == 0 || !strings.Contains(got.stdout, "CapEff:0000000000000000\n") || !strings.Contains(got.stdout, "CapBnd:0000000000000000\n") {
		t.Errorf("root has more than a group: %+v", got)
	}
	// Where the root is not the host's, root has no group.
	if got := s.do("--user", "0", "--", "id", "-G"); got != (result{0, "0\n", ""}) {
		t.Errorf("root without an overlay: %+v", got)
	}
	// The lines of the file come from inside: none of them makes root, or the agent.
	s.exec("box", "sh", "-c", "printf 'srt-a:x:x:x::/:\\nsrt-b:x:65535:65535::/:\\nsrt-c:x:4294967296:0::/:\\n' >> /etc/passwd")
	for _, name := range []string{"srt-a", "srt-b", "srt-c", "srt-d"} {
		if got := s.exec("--user", name, "box", "id"); got.code != 125 || got.stdout != "" || !strings.Contains(got.stderr, name) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s.exec("box", "sh", "-c", "rm /etc/passwd; mkfifo /etc/passwd")
	if got := s.exec("--user", "srt-bob", "box", "id"); got.code != 125 || got.stdout != "" {
		t.Errorf("a named pipe as /etc/passwd: %+v", got)
	}
}

// The lines of ps name the users of the sandbox, by the file that the sandbox has now.
func TestPsNamesUsersOfTheSandbox(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--overlay", "/", "--user", "0")
	if got := s.exec("--detach", "--user", "1000", "box", "sleep", "1006"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	of := func(line string, options ...string) (fields []string) {
		for text := range strings.Lines(s.oci(append([]string{"ps", "box"}, options...)...).stdout) {
			if strings.HasSuffix(text, line+"\n") {
				fields = strings.Fields(text)
			}
		}
		if len(fields) == 0 {
			t.Fatalf("ps %q has no line %q", options, line)
		}
		return fields
	}
	host := of("sleep 1006", "-eo", "uid,pid,args")[0]
	if id, err := strconv.Atoi(host); err != nil || id < 1<<16 {
		t.Errorf("a number of the host: %q", host)
	}
	if got := s.exec("box", "sh", "-c", `
		printf '\033[31mred:x:1000:1000\n1001:x:1000:1000\nsrt-bob:x:1000:1000\nsrt-ann:x:1000:1000\n' > /etc/passwd`); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, options := range [][]string{nil, {"aux"}, {"-eo", "user,pid,args"}} {
		if got := of("sleep 1006", options...)[0]; got != "srt-bob" {
			t.Errorf("ps %q: %q", options, got)
		}
	}
	s.exec("box", "sh", "-c", "rm /etc/passwd; mkfifo -m 666 /etc/passwd")
	if got := of("sleep 1006")[0]; got != "1000" {
		t.Errorf("a named pipe as /etc/passwd: %q", got)
	}
}

// Commands can stop the program that reads the file.
func TestPsOfASandboxThatHidesItsUsers(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	s.detached("box", "while :; do kill -STOP -1; done")
	eventually(t, "a number in place of a name", func() bool { // the program can be faster
		got := s.oci("ps", "box").stdout
		if !strings.Contains(got, "kill -STOP") {
			t.Fatalf("the command has no line: %s", got)
		}
		return strings.Contains(got, "\n1000 ")
	})
}
