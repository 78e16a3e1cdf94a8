package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// streamCases are of input, output and terminals, and of exec, which has them
// too.
var streamCases = []cliCase{
	{"input passes through whole, to its end", "", func(c cli) {
		// It does not end before all is here: engines give up what they have not
		// passed on two seconds later.
		dir := c.TempDir()
		cmd := c.command(runArgs("cat; until test -e /d/seen; do sleep 0.1; done", "--rm", "--interactive", "--volume", dir+":/d")...)
		input := strings.Repeat("0123456789abcde\n", 1<<18) // 4 MiB
		cmd.Stdin = strings.NewReader(input)
		p := start(c, cmd)
		eventually(c, "all of it is printed", func() bool {
			info, err := os.Stat(p.out[0])
			if err != nil {
				c.Fatal(err)
			}
			return info.Size() >= int64(len(input)) || p.ended()
		})
		write(c, filepath.Join(dir, "seen"), "")
		if got := p.wait(); got.code != 0 || got.stdout != input {
			c.Errorf("status %d, %d bytes of %d, stderr %s", got.code, len(got.stdout), len(input), got.stderr)
		}
	}},
	{"logs have both streams apart", "", func(c cli) {
		id := c.start("echo out; echo err >&2; echo last")
		c.status(id)
		got := run(c, c.command("logs", id))
		if got.stdout != "out\nlast\n" || got.stderr != "err\n" {
			c.Errorf("got %+v", got)
		}
	}},
	{"logs are followed to the end", "", func(c cli) {
		// It does not end before all is here: what Docker's follower has not read
		// when the logger closes is lost to it.
		id := c.start("echo one; until test -e /go; do sleep 0.1; done; echo two; until test -e /end; do sleep 0.1; done")
		follower := start(c, c.command("logs", "--follow", id))
		follower.prints("one\n")
		c.want(c.inside(id, "touch /go"), "")
		follower.prints("one\ntwo\n")
		if c.name == "podman" {
			eventually(c, "the follower waits for the event of the end", func() bool { return atEndOf(follower.cmd.Process.Pid, "events.log") })
		}
		c.want(c.inside(id, "touch /end"), "")
		if got := follower.wait(); got.code != 0 || got.stdout != "one\ntwo\n" {
			c.Errorf("got %+v", got)
		}
	}},
	{"attach takes part", "", func(c cli) {
		id := c.start("while read line; do echo \"got $line\"; test $line != end || exit 4; done", "--interactive")
		r, w, err := os.Pipe()
		if err != nil {
			c.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		cmd := c.command("attach", id)
		cmd.Stdin = r
		p := start(c, cmd)
		if _, err := w.WriteString("hello\n"); err != nil {
			c.Fatal(err)
		}
		p.prints("got hello\n")
		if _, err := w.WriteString("end\n"); err != nil {
			c.Fatal(err)
		}
		want := map[string]int{"docker": 4, "podman": 0} // podman's attach does not tell
		if got := p.wait(); got.code != want[c.name] {
			c.Errorf("got %+v", got)
		}
		if got := c.status(id); got != 4 {
			c.Errorf("status %d", got)
		}
	}},
	{"detach keys leave it running", "", func(c cli) {
		id := c.start("while read line; do echo \"got $line\"; done", "--interactive", "--tty")
		term, p := onTerminal(c, c.command("attach", "--detach-keys", "ctrl-x,q", id))
		term.typeIn(c, "hello\n")
		term.shows(c, "got hello")
		eventually(c, "it is detached", func() bool {
			// podman wants each key by itself.
			term.typeIn(c, "\x18")
			c.ok("ps")
			term.typeIn(c, "q")
			c.ok("ps")
			return p.ended()
		})
		c.want(c.inside(id, "echo here"), "here\n")
		again, p := onTerminal(c, c.command("attach", id))
		again.typeIn(c, "\nmore\n")
		again.shows(c, "got more")
		again.typeIn(c, "\x04") // the end of input
		p.wait()
		if got := c.status(id); got != 0 {
			c.Errorf("status %d", got)
		}
	}},
	{"terminal has the client's size, and its changes", "", func(c cli) {
		for _, args := range [][]string{
			runArgs(sizes, "--rm", "--interactive", "--tty"),
			{"exec", "--interactive", "--tty", c.start("sleep 1000"), "sh", "-c", sizes},
		} {
			term, p := onTerminal(c, c.command(args...))
			// podman's exec passes on no change after one that came too early for it.
			term.shows(c, "\n")
			resize(c, term, 33, 111)
			resize(c, term, 22, 77)
			term.typeIn(c, "\x03") // Ctrl-C
			if got := p.wait(); got.code != 130 {
				c.Errorf("%s: status %d, %q", args[0], got.code, term.output())
			}
		}
	}},
	{"without a terminal there is none", "", func(c cli) {
		c.want(c.once("test -t 0 || test -t 1 || test -t 2 || (: </dev/tty) 2>/dev/null || echo none"), "none\n")
	}},
	{"exec with user, environment and folder", "", func(c cli) {
		id := c.start("sleep 1000", "--env", "A=container", "--env", "B=container", "--workdir", "/tmp")
		c.want(c.inside(id, "id -u; echo $A $B; pwd"), "0\ncontainer container\n/tmp\n")
		c.want(c.inside(id, "id -u; id -g; echo $A $B; pwd; grep CapEff /proc/self/status",
			"--user", "1000:1001", "--env", "B=exec", "--workdir", "/etc"), "1000\n1001\ncontainer exec\n/etc\nCapEff:\t0000000000000000\n")
	}},
	{"exec reads input to its end", "", func(c cli) {
		id := c.start("sleep 1000")
		cmd := c.command("exec", "--interactive", id, "wc", "-c")
		cmd.Stdin = strings.NewReader(strings.Repeat("0123456789abcde\n", 1<<16))
		c.want(run(c, cmd), "1048576\n")
	}},
	{"exec in the background", "", func(c cli) {
		id := c.start("sleep 1000")
		c.ok("exec", "--detach", id, "sh", "-c", "echo done > /done")
		eventually(c, "it has run", func() bool { return c.inside(id, "cat /done").stdout == "done\n" })
	}},
	{"exec of what is not there or not executable", "", func(c cli) {
		id := c.start("sleep 1000")
		for _, e := range []struct {
			command, message string
			status           map[string]int
		}{
			{"nonsense", "executable file not found in $PATH", map[string]int{"docker": 126, "podman": 127}},
			{"/etc/passwd", "permission denied", map[string]int{"docker": 126, "podman": 126}},
		} {
			got := run(c, c.command("exec", id, e.command))
			want := e.status[c.name]
			if onDocker29() && e.command == "nonsense" {
				want = 127
			}
			// Docker prints it on stdout.
			if got.code != want || !strings.Contains(got.stdout+got.stderr, e.message) {
				c.Errorf("%s: %+v", e.command, got)
			}
		}
		c.want(c.inside(id, "echo here"), "here\n")
	}},
	{"exec ends with its container", "", func(c cli) {
		id := c.start("sleep 1000")
		p := start(c, c.command("exec", id, "sh", "-c", "echo ready; sleep 1001"))
		p.prints("ready\n")
		c.ok("kill", id)
		if got := p.wait(); got.code != 137 {
			c.Errorf("got %+v", got)
		}
	}},
	{"top lists processes", "", func(c cli) {
		id := c.start("sleep 1001 & sleep 1002 & echo ready; wait")
		c.says(id, "ready")
		c.ok("exec", "--detach", id, "sleep", "1003")
		eventually(c, "three sleeps and the shell", func() bool {
			got := c.ok("top", id)
			return !slices.ContainsFunc([]string{"sleep 1001", "sleep 1002", "sleep 1003", "sh -c"}, func(command string) bool {
				return !strings.Contains(got, " "+command)
			})
		})
	}},
	{"cidfile has its id", "", func(c cli) {
		file := c.TempDir() + "/id"
		id := c.start("sleep 1000", "--cidfile", file)
		data, err := os.ReadFile(file)
		if err != nil || string(data) != id {
			c.Errorf("%q, %v", data, err)
		}
	}},
}

// atEndOf says whether a process has a file of the name open and is no longer at
// its beginning. podman opens its log of events and then goes to the end: what was
// written before, it does not learn.
func atEndOf(pid int, name string) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if path, _ := os.Readlink(link); filepath.Base(path) == name {
			info, _ := os.ReadFile(strings.Replace(link, "/fd/", "/fdinfo/", 1))
			return len(info) > 0 && !strings.HasPrefix(string(info), "pos:\t0\n")
		}
	}
	return false
}

// sizes prints the terminal's size again and again until it is interrupted.
const sizes = "trap 'exit 130' INT; while :; do stty size; sleep 0.1; done"
