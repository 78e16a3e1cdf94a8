package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lifeCases start, signal, restart and end containers.
var lifeCases = []cliCase{
	{"create, then start", "", func(c cli) {
		id := strings.TrimSpace(c.ok("create", "busybox", "sh", "-c", "echo hello; exit 3"))
		if got := run(c, c.command("start", "--attach", id)); got.code != 3 || got.stdout != "hello\n" {
			c.Errorf("first: %+v", got)
		}
		if got := run(c, c.command("start", "--attach", id)); got.code != 3 || got.stdout != "hello\n" {
			c.Errorf("second: %+v", got)
		}
	}},
	{"detached is described and gone with --rm", "", func(c cli) {
		id := c.start("exec sleep 1000", "--rm", "--name", "described")
		if got := c.field("described", ".State.Status"); got != "running" {
			c.Errorf("it is %s", got)
		}
		comm := fmt.Sprintf("/proc/%d/comm", c.hostPID(id))
		eventually(c, "its pid is the command's", func() bool { return content(c, comm) == "sleep\n" })
		c.ok("kill", id)
		eventually(c, "it is gone", func() bool { return run(c, c.command("inspect", id)).code != 0 })
	}},
	{"stop lets it end on TERM", "", func(c cli) {
		id := c.start(traps)
		c.says(id, "ready")
		c.ok("stop", "--time", "25", id)
		if got := c.status(id); got != 15 {
			c.Errorf("status %d", got)
		}
	}},
	{"stop kills what ignores TERM", "", func(c cli) {
		id := c.start("trap '' TERM; echo ready; while :; do sleep 0.1; done")
		c.says(id, "ready")
		c.ok("stop", "--time", "1", id)
		if got := c.status(id); got != 137 {
			c.Errorf("status %d", got)
		}
	}},
	{"stop sends the signal asked for", "", func(c cli) {
		id := c.start(traps, "--stop-signal", "USR2")
		c.says(id, "ready")
		c.ok("stop", "--time", "25", id)
		if got := c.status(id); got != 12 {
			c.Errorf("status %d", got)
		}
	}},
	{"kill sends signals by name and number", "", func(c cli) {
		for _, s := range []struct {
			signal string
			status int
		}{{"HUP", 1}, {"SIGUSR1", 10}, {"12", 12}, {"INT", 2}} {
			id := c.start(traps)
			c.says(id, "ready")
			c.ok("kill", "--signal", s.signal, id)
			if got := c.status(id); got != s.status {
				c.Errorf("%s: status %d", s.signal, got)
			}
		}
	}},
	{"signals reach it through the attached client", "", func(c cli) {
		// podman begins to pass signals on some time after its container has begun to
		// print, and nothing tells when. It would lose the exit code of a container that
		// was removed before it has passed on another.
		p := start(c, c.command(runArgs(traps, "--name", "attached")...))
		p.prints("ready\n")
		eventually(c, "a signal ends it", func() bool {
			_ = p.cmd.Process.Signal(unix.SIGUSR1) // it may have ended
			c.ok("ps")                             // which takes its time
			return p.ended()
		})
		if got := p.wait(); got.code != 10 {
			c.Errorf("got %+v", got)
		}
	}},
	{"init passes signals on and reaps", "", func(c cli) {
		id := c.start("trap 'exit 15' TERM; (sleep 0 &) ; echo ready; while :; do sleep 0.1; done", "--init")
		c.says(id, "ready")
		eventually(c, "no zombie is left", func() bool {
			return !strings.Contains(c.inside(id, "cat /proc/[0-9]*/stat").stdout, ") Z ")
		})
		c.ok("stop", "--time", "25", id)
		if got := c.status(id); got != 15 {
			c.Errorf("status %d", got)
		}
	}},
	{"all its processes end with PID 1", "", func(c cli) {
		id := c.start("sleep 1001 & setsid sleep 1002 & echo ready; read line", "--interactive")
		c.says(id, "ready")
		c.ok("exec", "--detach", id, "sleep", "1003")
		eventually(c, "three run", func() bool { return c.inside(id, "pidof sleep | wc -w").stdout == "3\n" })
		if err := unix.Kill(c.hostPID(id), unix.SIGKILL); err != nil {
			c.Fatal(err)
		}
		if got := c.status(id); got != 137 {
			c.Errorf("status %d", got)
		}
	}},
	{"restart keeps its files", "", func(c cli) {
		id := c.start("echo x >> /starts; echo ready; exec sleep 1000")
		c.says(id, "ready")
		before := c.hostPID(id)
		c.ok("restart", "--time", "0", id)
		if c.hostPID(id) == before {
			c.Error("the same process")
		}
		eventually(c, "two starts", func() bool { return c.inside(id, "wc -l < /starts").stdout == "2\n" })
	}},
	{"on-failure restarts it so often", "", func(c cli) {
		// Counted in a file: whether the last words of each run come to the logs
		// is the engine's own affair, which waits two seconds for them.
		dir := c.TempDir()
		id := c.start("echo x >> /d/starts; exit 3", "--restart", "on-failure:2", "--volume", dir+":/d")
		eventually(c, "it ran three times", func() bool {
			return c.field(id, ".RestartCount") == "2" && c.field(id, ".State.Running") == "false"
		})
		if got, starts := c.field(id, ".State.ExitCode"), content(c, filepath.Join(dir, "starts")); got != "3" || starts != "x\nx\nx\n" {
			c.Errorf("status %s, it wrote %q", got, starts)
		}
	}},
	{"always restarts it, until it is stopped", "", func(c cli) {
		id := c.start("exec sleep 1000", "--restart", "always")
		before := c.hostPID(id)
		if err := unix.Kill(before, unix.SIGKILL); err != nil {
			c.Fatal(err)
		}
		eventually(c, "it runs again", func() bool {
			pid := c.field(id, ".State.Pid")
			return c.field(id, ".State.Running") == "true" && pid != "0" && pid != fmt.Sprint(before)
		})
		c.ok("stop", "--time", "0", id)
		if got := c.field(id, ".State.Running"); got != "false" {
			c.Errorf("it runs after stop: %s", got)
		}
	}},
	{"rename", "", func(c cli) {
		id := c.start("exec sleep 1000", "--name", "before")
		c.ok("rename", "before", "after")
		c.want(c.inside("after", untilItSleeps), "sleep\n")
		c.ok("kill", "after")
		c.status(id)
	}},
	{"removal with force ends it", "", func(c cli) {
		id := c.start("exec sleep 1000")
		pid := c.hostPID(id)
		if got := run(c, c.command("rm", id)); got.code == 0 {
			c.Errorf("removed while it runs: %+v", got)
		}
		if got := run(c, c.removal(id)); got.code != 0 {
			c.Errorf("got %+v", got)
		}
		if alive(pid) {
			c.Error("it runs on")
		}
	}},
	{"prune removes what has stopped", "", func(c cli) {
		stopped, running := c.start("true"), c.start("sleep 1000")
		c.status(stopped)
		c.ok("container", "prune", "--force")
		if got := run(c, c.command("inspect", stopped)); got.code == 0 {
			c.Error("the stopped one is still there")
		}
		c.want(c.inside(running, "echo here"), "here\n")
	}},
	{"20 at a time", "", func(c cli) {
		var containers [20]*testProcess
		for i := range containers {
			script := fmt.Sprintf("echo %d; exit %d", i, i)
			containers[i] = start(c, c.command(runArgs(script, "--rm", "--memory", "64m")...))
		}
		for i, p := range containers {
			if got := p.wait(); got.code != i || got.stdout != fmt.Sprintf("%d\n", i) {
				c.Errorf("%d: %+v", i, got)
			}
		}
	}},
	{"20 execs at a time", "", func(c cli) {
		id := c.start("exec sleep 1000")
		var execs [20]*testProcess
		for i := range execs {
			execs[i] = start(c, c.command("exec", id, "sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)))
		}
		for i, p := range execs {
			if got := p.wait(); got.code != i || got.stdout != fmt.Sprintf("%d\n", i) {
				c.Errorf("%d: %+v", i, got)
			}
		}
	}},
	{"events tell what happened", "", func(c cli) {
		c.once("exit 7", "--name", "eventful")
		want := map[string][]string{
			"docker": {"container create", "container start", "container die", "exitCode=7", "container destroy"},
			"podman": {"container create", "container start", "container died", "container remove"},
		}[c.name]
		// The last comes when the container is gone, and who waits for that knows.
		eventually(c, fmt.Sprintf("the events %q", want), func() bool {
			got := c.ok("events", "--since", "1h", "--until", fmt.Sprint(time.Now().Unix()+1), "--filter", "container=eventful")
			return !slices.ContainsFunc(want, func(event string) bool { return !strings.Contains(got, event) })
		})
	}},
}

// traps is a script that ends with the number of the signal it gets.
const traps = "for s in 1 2 10 12 15; do trap \"exit $s\" $s; done; echo ready; while :; do sleep 0.1; done"
