package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestCtrTask goes through the commands of ctr task on running containers.
func TestCtrTask(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers())
	c := startContainerd(t)
	c.warmUp(t)
	for _, test := range ctrTaskCases {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			test.test(t, c)
		})
	}
}

// task returns the pid and the status that ctr task ls shows.
func (c *containerd) task(t *testing.T, id string) (pid int, status string) {
	t.Helper()
	for line := range strings.Lines(c.must(t, "task", "ls")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == id {
			pid, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return pid, f[2]
		}
	}
	return 0, ""
}

func (c *containerd) stopped(t *testing.T, id string) {
	t.Helper()
	eventually(t, "task "+id+" stopped", func() bool {
		_, status := c.task(t, id)
		return status == "STOPPED"
	})
}

// execute runs a script in a running container and returns what it prints.
func (c *containerd) execute(t *testing.T, id, script string, flags ...string) string {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	args := append([]string{"task", "exec", "--exec-id", "e", "--log-uri", "file://" + log}, flags...)
	p := start(t, c.client(append(args, id, "sh", "-c", livesOn(script))...))
	text, status := told(t, func() string {
		if p.ended() {
			t.Fatalf("%q: %+v", p.cmd.Args, p.wait())
		}
		printed, _ := os.ReadFile(log)
		return string(printed)
	})
	if status != 0 {
		t.Fatalf("%q in %s: status %d, %q", script, id, status, text)
	}
	c.must(t, "task", "kill", "--signal", "KILL", "--exec-id", "e", id)
	wantEqual(t, p.wait().code, 137)
	return text
}

var ctrTaskCases = []struct {
	name string
	test func(*testing.T, *containerd)
}{
	{"ls", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "listed", "exec sleep 1000")
		shown, status := c.task(t, "listed")
		wantEqual(t, shown, pid)
		wantEqual(t, status, "RUNNING")
		wantStatus(t, c.kill("listed"), 0)
		c.stopped(t, "listed")
	}},
	{"start again", func(t *testing.T, c *containerd) {
		before := processes(t)
		first := c.detached(t, "again", "exit 4")
		wantEqual(t, c.status(t, "again"), 4)
		keepersGo(t, before)
		pidFile := filepath.Join(t.TempDir(), "pid")
		c.must(t, "task", "start", "--detach", "--null-io", "--pid-file", pidFile, "again")
		wantEqual(t, c.status(t, "again"), 4)
		keepersGo(t, before)
		if second := strings.TrimSpace(content(t, pidFile)); second == strconv.Itoa(first) {
			t.Errorf("both tasks were process %s", second)
		}
		wantStatus(t, c.client("task", "start", "--null-io", "again"), 4)
	}},
	{"ps", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "ps", "sleep 1000 & exec sleep 1000")
		eventually(t, "both processes are listed", func() bool {
			pids := map[string]bool{}
			for line := range strings.Lines(c.must(t, "task", "ps", "ps")) {
				pids[strings.Fields(line)[0]] = true
			}
			return len(pids) == 3 && pids["PID"] && pids[strconv.Itoa(pid)]
		})
	}},
	{"pause and resume", func(t *testing.T, c *containerd) {
		dir := t.TempDir()
		ticks := filepath.Join(dir, "ticks")
		pid := c.detached(t, "paused", "while :; do echo >> /tmp/ticks; usleep 10000; done", "--null-io", "--mount", "type=bind,src="+dir+",dst=/tmp,options=rbind")
		size := func() int64 {
			s, err := os.Stat(ticks)
			if err != nil {
				return 0
			}
			return s.Size()
		}
		eventually(t, "it ticks", func() bool { return size() > 0 })
		c.must(t, "task", "pause", "paused")
		_, status := c.task(t, "paused")
		wantEqual(t, status, "PAUSED")
		wantEqual(t, content(t, filepath.Join(groupByController(t, pid, "freezer"), "freezer.state")), "FROZEN\n")
		c.refuses(t, "paused", "task", "exec", "--exec-id", "e", "paused", "true")
		frozen := size()
		c.must(t, "task", "resume", "paused")
		_, status = c.task(t, "paused")
		wantEqual(t, status, "RUNNING")
		eventually(t, "it ticks again", func() bool { return size() > frozen })
		wantEqual(t, c.execute(t, "paused", "echo answers"), "answers\n")
	}},
	{"kill of a paused task", func(t *testing.T, c *containerd) {
		c.detached(t, "frozen", "exec sleep 1000")
		c.must(t, "task", "pause", "frozen")
		wantStatus(t, c.kill("frozen"), 0)
		wantEqual(t, c.status(t, "frozen"), 137)
	}},
	{"delete of a paused task", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "forced", "exec sleep 1000")
		c.must(t, "task", "pause", "forced")
		c.must(t, "task", "delete", "--force", "forced")
		if alive(pid) {
			t.Error("still alive")
		}
	}},
	{"metrics", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "measured", "exec sleep 1000", "--null-io", "--memory-limit", "67108864")
		var m struct {
			Pids struct {
				Current int `json:"current"`
			} `json:"pids"`
			Memory struct {
				Usage struct {
					Limit int64 `json:"limit"`
					Usage int64 `json:"usage"`
				} `json:"usage"`
			} `json:"memory"`
			CPU struct {
				Usage struct {
					Total int64 `json:"total"`
				} `json:"usage"`
			} `json:"cpu"`
		}
		eventually(t, "one process", func() bool { // the runtime's own may just have left
			decode(t, c.must(t, "task", "metrics", "--format", "json", "measured"), &m)
			return m.Pids.Current == 1
		})
		wantEqual(t, m.Memory.Usage.Limit, 67108864)
		if m.Memory.Usage.Usage <= 0 || m.CPU.Usage.Total <= 0 {
			t.Errorf("pid %d: %+v", pid, m)
		}
	}},
	{"exec as a user in a directory", func(t *testing.T, c *containerd) {
		c.detached(t, "exec", "exec sleep 1000")
		wantEqual(t, c.execute(t, "exec", "id -u; id -g; pwd; echo $PATH", "--user", "1000:1001", "--cwd", "/tmp"), "1000\n1001\n/tmp\n/bin\n")
		wantEqual(t, c.execute(t, "exec", "grep NoNewPrivs /proc/self/status; "+untilItSleeps), "NoNewPrivs:\t1\nsleep\n")
	}},
	{"exec gets stdin to its end", func(t *testing.T, c *containerd) {
		c.detached(t, "stdin", "exec sleep 1000")
		cmd := c.client("task", "exec", "--exec-id", "reader", "stdin", "sh", "-c", "cat; until test -e /dev/shm/seen; do usleep 10000; done")
		cmd.Stdin = strings.NewReader(strings.Repeat("0123456789abcdef", 1<<14))
		p := start(t, cmd)
		eventually(t, "all comes back", func() bool { return len(p.stdout()) == 1<<18 })
		c.execute(t, "stdin", "touch /dev/shm/seen")
		wantEqual(t, p.wait().code, 0)
	}},
	{"detached exec", func(t *testing.T, c *containerd) {
		c.detached(t, "behind", "exec sleep 1000")
		log := filepath.Join(t.TempDir(), "log")
		c.must(t, "task", "exec", "--exec-id", "e", "--detach", "--log-uri", "file://"+log, "behind", "sh", "-c", "trap 'echo term; exit 3' TERM; echo up; while :; do usleep 10000; done")
		eventually(t, "it is up", func() bool { c, _ := os.ReadFile(log); return string(c) == "up\n" })
		c.refuses(t, "already exists", "task", "exec", "--exec-id", "e", "behind", "true")
		c.must(t, "task", "kill", "--exec-id", "e", "behind")
		eventually(t, "it got the signal", func() bool { return content(t, log) == "up\nterm\n" })
		eventually(t, "it is removed", func() bool {
			return run(t, c.client("task", "delete", "--exec-id", "e", "behind")).code == 3
		})
		wantEqual(t, c.execute(t, "behind", untilItSleeps), "sleep\n")
	}},
	{"exec of a missing program", func(t *testing.T, c *containerd) {
		c.detached(t, "missing", "exec sleep 1000")
		c.refuses(t, "executable file not found in $PATH", "task", "exec", "--exec-id", "e", "missing", "nonsense")
		c.refuses(t, "permission denied", "task", "exec", "--exec-id", "e", "missing", "/etc/passwd")
		wantEqual(t, c.execute(t, "missing", "echo answers"), "answers\n")
	}},
	{"exec in a stopped task", func(t *testing.T, c *containerd) {
		c.detached(t, "over", "true")
		c.stopped(t, "over")
		c.refuses(t, "stopped", "task", "exec", "--exec-id", "e", "over", "true")
	}},
	{"execs in parallel", func(t *testing.T, c *containerd) {
		c.detached(t, "many", "exec sleep 1000")
		var all []*testProcess
		for i := range 10 {
			n := strconv.Itoa(i)
			all = append(all, start(t, c.client("task", "exec", "--exec-id", "e"+n, "many", "sh", "-c", "exit "+n)))
		}
		for i, p := range all {
			wantEqual(t, p.wait(), result{code: i})
		}
	}},
	{"kill with signals", func(t *testing.T, c *containerd) {
		log := filepath.Join(t.TempDir(), "log")
		c.detached(t, "signals", "for s in HUP USR1 TERM; do trap \"echo $s\" $s; done; trap 'echo INT; exit 6' INT; echo up; while :; do usleep 10000; done", "--log-uri", "file://"+log)
		shows := func(lines string) {
			t.Helper()
			eventually(t, "it says "+lines, func() bool { b, _ := os.ReadFile(log); return string(b) == lines })
		}
		shows("up\n")
		c.must(t, "task", "kill", "signals") // TERM
		shows("up\nTERM\n")
		c.must(t, "task", "kill", "--signal", "SIGHUP", "signals")
		shows("up\nTERM\nHUP\n")
		c.must(t, "task", "kill", "--signal", "10", "signals")
		shows("up\nTERM\nHUP\nUSR1\n")
		c.must(t, "task", "kill", "--signal", "int", "signals")
		shows("up\nTERM\nHUP\nUSR1\nINT\n")
		wantEqual(t, c.status(t, "signals"), 6)
	}},
	{"kill --all", func(t *testing.T, c *containerd) {
		log := filepath.Join(t.TempDir(), "log")
		c.detached(t, "all", "trap 'exit 5' TERM; sleep 1000 & echo up; while :; do usleep 10000; done", "--log-uri", "file://"+log)
		eventually(t, "it is up", func() bool { b, _ := os.ReadFile(log); return string(b) == "up\n" })
		c.must(t, "task", "kill", "--all", "all")
		wantEqual(t, c.status(t, "all"), 5)
	}},
	{"kill without a private pid namespace", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "outer", "exec sleep 1000")
		// The first process of a shared pid namespace takes no others with it:
		// that is the runtime's to do, by the cgroup.
		inner := c.detached(t, "inner", "sleep 2000 & exec sleep 2000", "--null-io", "--with-ns", "pid:/proc/"+strconv.Itoa(pid)+"/ns/pid")
		eventually(t, "two sleep", func() bool {
			return strings.Count(content(t, filepath.Join(groupByController(t, inner, "pids"), "cgroup.procs")), "\n") == 2
		})
		group := groupByController(t, inner, "pids")
		c.must(t, "task", "kill", "--signal", "KILL", "--all", "inner")
		wantEqual(t, c.status(t, "inner"), 137)
		c.must(t, "container", "rm", "inner")
		eventually(t, "its cgroup is gone", func() bool { _, err := os.Stat(group); return os.IsNotExist(err) })
		if !alive(pid) {
			t.Error("the outer container's process died too")
		}
	}},
	{"kill of what does not run", func(t *testing.T, c *containerd) {
		c.refuses(t, "not found", "task", "kill", "nonsense")
		c.detached(t, "over", "true")
		c.stopped(t, "over")
		c.refuses(t, "process already finished", "task", "kill", "over")
	}},
	{"attach", func(t *testing.T, c *containerd) {
		t.Cleanup(func() { c.discard("attached") })
		dir := t.TempDir()
		first := start(t, c.runWith([]string{"--detach", "--fifo-dir", dir}, "attached", "sh", "-c", "read line; echo \"got $line\"; read line; exit 8"))
		// Its stdin is to have a writer until the next one has come: ctr closes it as it
		// leaves, and the shim may be late to open it.
		eventually(t, "its stdin is there", func() bool {
			fifos, err := filepath.Glob(filepath.Join(dir, "*", "attached-stdin"))
			if err != nil || len(fifos) == 0 {
				return false
			}
			stdin, err := os.OpenFile(fifos[0], os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stdin.Close() })
			return true
		})
		wantEqual(t, first.wait().code, 0)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		cmd := c.client("task", "attach", "attached")
		cmd.Stdin = r
		p := start(t, cmd)
		r.Close()
		_, err = w.WriteString("from outside\n")
		wantEqual(t, err, nil)
		p.prints("got from outside\n")
		_, err = w.WriteString("end\n")
		wantEqual(t, err, nil)
		wantEqual(t, p.wait(), result{code: 8, stdout: "got from outside\n"})
	}},
	{"delete", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "deleted", "exec sleep 1000")
		c.refuses(t, "must be stopped before deletion", "task", "delete", "deleted")
		c.refuses(t, "cannot delete a non stopped container", "container", "delete", "deleted")
		if !alive(pid) {
			t.Error("died of a refused deletion")
		}
		c.must(t, "task", "delete", "--force", "deleted")
		_, status := c.task(t, "deleted")
		wantEqual(t, status, "")
	}},
	{"checkpoint", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "checked", "exec sleep 1000")
		c.refuses(t, "criu", "task", "checkpoint", "--image-path", t.TempDir(), "checked")
		if !alive(pid) {
			t.Error("died of a refused checkpoint")
		}
		wantEqual(t, c.execute(t, "checked", "echo answers"), "answers\n")
	}},
	{"events", func(t *testing.T, c *containerd) {
		events := start(t, c.client("events"))
		t.Cleanup(func() { _ = events.cmd.Process.Kill() })
		seen := func(topic, field string) bool {
			for line := range strings.Lines(events.stdout()) {
				if strings.Contains(line, " "+topic+" ") && strings.Contains(line, field) && strings.HasSuffix(line, "\n") {
					return true
				}
			}
			return false
		}
		eventually(t, "events come", func() bool { // it does not say when it listens
			c.must(t, "namespaces", "label", "default", "listening="+strconv.Itoa(os.Getpid()))
			return seen("/namespaces/update", "listening")
		})
		t.Cleanup(func() { c.must(t, "namespaces", "label", "default", "listening=") })
		// Memory is short only when it has started, for the shim is told of it from then
		// on, and it does not end by itself: the shim forgets it when the cgroup is
		// removed.
		t.Cleanup(func() { c.discard("eventful") })
		ctr := shell("eventful", "read line; dd if=/dev/zero of=/dev/null bs=200M count=1; exec sleep 1000")
		ctr.memory = "33554432"
		p, goOn := attached(t, c, ctr)
		for _, topic := range []string{"/tasks/create", "/tasks/start"} {
			eventually(t, topic, func() bool { return seen(topic, `"eventful"`) })
		}
		goOn()
		eventually(t, "/tasks/oom", func() bool { return seen("/tasks/oom", `"eventful"`) })
		wantStatus(t, c.kill("eventful"), 0)
		wantEqual(t, p.wait().code, 137)
		for _, topic := range []string{"/tasks/exit", "/tasks/delete"} {
			eventually(t, topic, func() bool { return seen(topic, `"eventful"`) })
		}
		if !seen("/tasks/exit", `"exit_status":137`) {
			t.Errorf("exit event: %s", events.stdout())
		}
	}},
	{"twenty in parallel", func(t *testing.T, c *containerd) {
		dir := t.TempDir()
		mount := "type=bind,src=" + dir + ",dst=/tmp,options=rbind:ro"
		var all []*testProcess
		for i := range 20 {
			n := strconv.Itoa(i)
			script := "echo " + n + "; until test -e /tmp/seen; do usleep 50000; done; exit " + n
			all = append(all, start(t, c.runWith([]string{"--rm", "--mount", mount, "--log-uri", "file://" + filepath.Join(dir, n)}, "parallel"+n, "sh", "-c", script)))
		}
		for i := range all {
			n := strconv.Itoa(i)
			eventually(t, n+" is in its log", func() bool {
				printed, _ := os.ReadFile(filepath.Join(dir, n))
				return string(printed) == n+"\n"
			})
		}
		writeConfig(t, filepath.Join(dir, "seen"), "")
		for i, p := range all {
			wantEqual(t, p.wait(), result{code: i})
		}
	}},
	{"shim is killed", func(t *testing.T, c *containerd) {
		// containerd's clean-up runs the shim's delete, and that the runtime's.
		sockets, err := filepath.Glob("/run/containerd/s/*")
		if err != nil {
			t.Fatal(err)
		}
		pid := c.detached(t, "unkept", "exec sleep 1000")
		stat := processStat(pid)
		fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
		shim, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(shim, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the container is gone", func() bool {
			_, status := c.task(t, "unkept")
			return !alive(pid) && status == ""
		})
		removeOthers(t, "/run/containerd/s/*", sockets) // the shim's own socket, which nobody else removes
	}},
	{"a task with a terminal of a size", func(t *testing.T, c *containerd) {
		c.detached(t, "sized", "exec sleep 1000")
		term, p := onTerminal(t, c.client("task", "exec", "--exec-id", "e", "--tty", "sized", "sh", "-c", "until stty size 2>/dev/null | grep 40.132; do usleep 10000; done; tty"))
		resize(t, term, 40, 132)
		term.shows(t, "/dev/pts/0")
		wantEqual(t, p.wait().code, 0)
	}},
}
