package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestCommandGetsWhatWasAskedForAndNoMore(t *testing.T) {
	s := open(t)
	for _, id := range []uint32{1000, 0, 65534} {
		c := asProbe("report", "", "two words", strings.Repeat("x", 100_000))
		c.Env = append(c.Env, "EMPTY=", "LINES=a\nb=c")
		c.Dir = "/usr/lib"
		c.UID, c.GID, c.Groups = id, 7, []uint32{5, 65534}
		c.Rlimits = []Rlimit{{unix.RLIMIT_NOFILE, 100, 200}, {unix.RLIMIT_CORE, 0, 0}, {unix.RLIMIT_FSIZE, 1 << 40, math.MaxUint64}}
		c.OOMScoreAdj = 777
		got := s.report(t, c)

		for _, check := range []struct {
			what      string
			got, want any
		}{
			{"arguments", got.Args, c.Args},
			{"environment", got.Env, c.Env},
			{"directory", got.Dir, c.Dir},
			{"ids", got.IDs, []int{int(id), int(id), int(id), 7, 7, 7}},
			{"groups", got.Groups, []int{5, 65534}},
			{"descriptors", got.Descriptors, []string{"0", "1", "2"}},
			{"oom_score_adj", got.OOMScoreAdj, "777"},
			{"session", got.Session, true},
			{"umask", got.Umask, 0o022},
			{"core", got.Rlimits[unix.RLIMIT_CORE], c.Rlimits[1]},
			{"file size", got.Rlimits[unix.RLIMIT_FSIZE], c.Rlimits[2]},
			{"hard limit of files", got.Rlimits[unix.RLIMIT_NOFILE].Hard, uint64(200)},
			{"inheritable", got.Status["CapInh"], "0000000000000000"},
			{"permitted", got.Status["CapPrm"], "0000000000000000"},
			{"effective", got.Status["CapEff"], "0000000000000000"},
			{"bounding", got.Status["CapBnd"], "0000000000000000"},
			{"ambient", got.Status["CapAmb"], "0000000000000000"},
			{"no_new_privs", got.Status["NoNewPrivs"], "1"},
			{"seccomp", got.Status["Seccomp"], "2"},
		} {
			if !reflect.DeepEqual(check.got, check.want) {
				t.Errorf("id %d: %s: %v, want %v", id, check.what, check.got, check.want)
			}
		}
	}
}

func TestProgramOfADescriptorIsExecuted(t *testing.T) {
	s := open(t)
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	c := asProbe("report", "argument")
	c.Args[0], c.Program = "/nowhere", program
	got := s.report(t, c)
	if !slices.Equal(got.Args, c.Args) || !slices.Equal(got.Descriptors, []string{"0", "1", "2"}) {
		t.Errorf("got %q with the descriptors %q", got.Args, got.Descriptors)
	}
	c.Program = nil
	var refused *StartError
	if _, err := s.Start(t.Context(), c); !errors.As(err, &refused) || !refused.NotFound() {
		t.Errorf("without it: %v", err)
	}
}

// TestOlderAgentGetsNoProgram fails before anything is asked of it.
func TestOlderAgentGetsNoProgram(t *testing.T) {
	f := newFakeAgent(t)
	sendEvent(int(f.guest.Fd()), eventHello, func(b []byte) { b[8] = programVersion - 1 })
	if err := f.Ready(within(t, testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	c := command("files")
	c.Program = f.guest
	var old *VersionError
	if _, err := f.Start(within(t, testhost.Patience), c); !errors.As(err, &old) || old.Agent != programVersion-1 {
		t.Errorf("got %v", err)
	}
}

func TestLargeCommandsArrive(t *testing.T) {
	s := open(t)
	args := slices.Repeat([]string{strings.Repeat("x", 100_000)}, 15) // of 2 MiB that execve(2) takes
	c := asProbe("report", args...)
	if got := s.report(t, c).Args; !slices.Equal(got, c.Args) {
		t.Errorf("%d arguments came as %d", len(c.Args), len(got))
	}
}

func TestSignalsAreAtTheirDefaults(t *testing.T) {
	s := open(t)
	// sed, for Go's runtime has handlers of its own.
	out := s.mustRun(t, command("sed", "-nE", "/^Sig(Blk|Ign|Cgt)/p", "/proc/self/status"))
	if want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

func TestStdioIsPassedOrNull(t *testing.T) {
	testhost.Concurrent(t)
	s := open(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		time.Sleep(10 * time.Millisecond) // a reader that is not ready to read
		fmt.Fprintln(w, "input")
		w.Close()
	}()
	c := command("cat")
	c.Stdin = r
	if got := s.mustRun(t, c); got != "input" {
		t.Errorf("cat wrote %q", got)
	}
	if got := s.mustRun(t, command("readlink", "/proc/self/fd/0")); got != "/dev/null" {
		t.Errorf("a stdin that was not passed is %s", got)
	}
}

func hostRoot(t testing.TB) *os.File {
	t.Helper()
	root, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// The program is executed only after Meanwhile has returned.
func TestTheProgramWaitsForMeanwhile(t *testing.T) {
	s := open(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := command("echo", "output")
	c.Stdout = w
	called := false
	c.Meanwhile = func() {
		called = true
		testhost.Eventually(t, "the forked child", func() bool { return len(s.children(t)) == 1 })
		if err := r.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		if n, err := r.Read(make([]byte, 16)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the command wrote %d bytes; %v", n, err)
		}
		if err := r.SetReadDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
	}
	p, err := s.Begin(within(t, testhost.Patience), c)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); !called || string(text) != "output\n" || err != nil {
		t.Errorf("the command wrote %q; %v", text, err)
	}
	if _, err := p.Wait(within(t, testhost.Patience)); err != nil {
		t.Error(err)
	}
}

// A child that gets no program ends.
func TestAFailureDuringMeanwhileEndsTheChild(t *testing.T) {
	s := open(t)
	for name, fail := range map[string]func(cancel context.CancelFunc){
		"cancelled": func(cancel context.CancelFunc) { cancel() },
		"panic":     func(context.CancelFunc) { panic("in Meanwhile") },
	} {
		ctx, cancel := context.WithCancel(within(t, testhost.Patience))
		c := command("sleep", "1000")
		c.Meanwhile = func() {
			testhost.Eventually(t, "the forked child", func() bool { return len(s.children(t)) == 1 })
			fail(cancel)
		}
		func() {
			defer func() { _ = recover() }()
			if _, err := s.Begin(ctx, c); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v", name, err)
			}
		}()
		cancel()
		testhost.Eventually(t, name+": no child", func() bool { return len(s.children(t)) == 0 })
	}
}

// children are the processes that the agent has forked.
func (s *sandbox) children(t *testing.T) []string {
	t.Helper()
	return strings.Fields(s.hostFile(t, fmt.Sprintf("task/%d/children", s.cmd.Process.Pid)))
}

func TestDirectoryAsStdioIsRefused(t *testing.T) {
	s := open(t)
	root := hostRoot(t)
	c := command("true")
	c.Stdin = root
	if _, err := s.Start(t.Context(), c); err == nil {
		t.Error("the host's root was taken as stdin")
	}
}

func TestOOMScoreIsWrittenToProcOnly(t *testing.T) {
	s := open(t, setting(procVariable, "forged"))
	c := command("true")
	s.mustRun(t, c)
	c.OOMScoreAdj = 500
	_, err := s.Start(within(t, testhost.Patience), c)
	var start *StartError
	if !errors.As(err, &start) || start.Stage != StageOOMScore {
		t.Errorf("%v, want a refusal", err)
	}
	if got := s.mustRun(t, command("cat", "/proc/self/oom_score_adj")); got != "" {
		t.Errorf("%q was written to another file", got)
	}
}

// TestDirectoryOutsideTheRootIsRefused goes past the check above: the agent has
// one of its own.
func TestDirectoryOutsideTheRootIsRefused(t *testing.T) {
	s := open(t)
	root := hostRoot(t)
	c := command("true")
	c.Dir = "/proc/self/fd/0"
	payload := c.encode()
	_, setup := s.sendRequest(t, request{kind: requestExec, stdio: 1, payload: len(payload)}.encode(), payload, int(root.Fd()))
	e, _, err := setup.receive(within(t, testhost.Patience), false)
	if err != nil || e.kind != eventFailed || e.stage != StageDirectory || e.errno != unix.EXDEV {
		t.Errorf("%+v, %v, want a refusal", e, err)
	}
}

func TestExitStatusIsTheCommands(t *testing.T) {
	s := open(t)
	for status := range 256 {
		if status > 3 && status%50 != 0 && status != 255 {
			continue
		}
		_, exit := s.run(t, command("sh", "-c", fmt.Sprintf("exit %d", status)))
		if !exit.Status.Exited() || exit.Status.ExitStatus() != status {
			t.Errorf("exit %d: status %#x", status, exit.Status)
		}
	}
	for _, signal := range []syscall.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSEGV, unix.SIGCHLD + 1000} {
		if signal > 64 {
			continue
		}
		_, exit := s.run(t, command("sh", "-c", fmt.Sprintf("kill -%d $$", signal)))
		if !exit.Status.Signaled() || exit.Status.Signal() != signal {
			t.Errorf("signal %d: status %#x", signal, exit.Status)
		}
	}
}

func TestUsageIsTheCommands(t *testing.T) {
	s := open(t)
	_, exit := s.run(t, command("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"))
	if exit.UserTime < 10*time.Millisecond || exit.UserTime > 20*time.Second {
		t.Errorf("user time of a busy loop: %v", exit.UserTime)
	}
	if exit.MaxRSS < 500<<10 || exit.MaxRSS > 100<<20 {
		t.Errorf("memory of a shell: %d bytes", exit.MaxRSS)
	}
}

func TestStartErrorTellsWhy(t *testing.T) {
	s := open(t)
	with := func(change func(*Command)) Command {
		c := command("true")
		change(&c)
		return c
	}
	in := func(path string) Command {
		return with(func(c *Command) { c.Args[0], c.Env = "nowhere", []string{"PATH=" + path} })
	}
	files := uint64(0)
	fmt.Sscan(strings.Fields(s.hostFile(t, "limits")[strings.Index(s.hostFile(t, "limits"), "Max open files"):])[4], &files)
	type wantedPart struct {
		stage                   Stage
		errno                   syscall.Errno
		path                    string
		notFound, notExecutable bool
	}
	for name, test := range map[string]struct {
		command Command
		want    wantedPart
	}{
		"not on PATH":           {command("nowhere"), wantedPart{StageExec, unix.ENOENT, "nowhere", true, false}},
		"no such file":          {command("/usr/bin/nowhere"), wantedPart{StageExec, unix.ENOENT, "/usr/bin/nowhere", true, false}},
		"empty name":            {command(""), wantedPart{StageExec, unix.ENOENT, "", true, false}},
		"empty PATH":            {in(""), wantedPart{StageExec, unix.ENOENT, "nowhere", true, false}},
		"PATH of odd places":    {in("::/nowhere:/dev/null:/proc/1/root:" + strings.Repeat("x", 5000) + ":/usr/bin"), wantedPart{StageExec, unix.EACCES, "nowhere", false, true}},
		"no such interpreter":   {command("/nointerpreter"), wantedPart{StageExec, unix.ENOENT, "/nointerpreter", true, false}},
		"not executable":        {command("/plain"), wantedPart{StageExec, unix.EACCES, "/plain", false, true}},
		"a directory":           {command("/usr"), wantedPart{StageExec, unix.EACCES, "/usr", false, true}},
		"no format":             {command("/noformat"), wantedPart{StageExec, unix.ENOEXEC, "/noformat", false, true}},
		"below a file":          {command("/plain/x"), wantedPart{StageExec, unix.ENOTDIR, "/plain/x", false, true}},
		"in a closed directory": {command("/private/x"), wantedPart{StageExec, unix.EACCES, "/private/x", false, true}},
		"long name":             {command(strings.Repeat("x", 300)), wantedPart{StageExec, unix.ENAMETOOLONG, strings.Repeat("x", 300), false, true}},
		"long argument":         {command("true", strings.Repeat("x", 200_000)), wantedPart{StageExec, unix.E2BIG, "true", false, true}},
		"huge arguments":        {command(slices.Repeat([]string{"true", strings.Repeat("x", 100_000)}, 100)...), wantedPart{StageExec, unix.E2BIG, "true", false, true}},
		"no such directory":     {with(func(c *Command) { c.Dir = "/nowhere" }), wantedPart{StageDirectory, unix.ENOENT, "/nowhere", false, false}},
		"closed directory":      {with(func(c *Command) { c.Dir = "/private" }), wantedPart{StageDirectory, unix.EACCES, "/private", false, false}},
		"file as directory":     {with(func(c *Command) { c.Dir = "/plain" }), wantedPart{StageDirectory, unix.ENOTDIR, "/plain", false, false}},
		"descriptor":            {with(func(c *Command) { c.Dir = "/proc/self/fd/3" }), wantedPart{StageDirectory, unix.ENOTDIR, "/proc/self/fd/3", false, false}},
		"limit above the hard one": {with(func(c *Command) {
			c.Rlimits = []Rlimit{{unix.RLIMIT_NOFILE, 1, files + 1}}
		}), wantedPart{StageRlimits, unix.EPERM, "", false, false}},
	} {
		before := time.Now()
		_, _, err := s.try(within(t, testhost.Patience), test.command)
		var start *StartError
		if !errors.As(err, &start) {
			t.Errorf("%s: %v after %v, want a StartError", name, err, time.Since(before))
			continue
		}
		got := wantedPart{start.Stage, start.Errno, start.Path, start.NotFound(), start.NotExecutable()}
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
		if errors.Is(err, fs.ErrNotExist) != (test.want.errno == unix.ENOENT) {
			t.Errorf("%s: errors.Is(%v, fs.ErrNotExist)", name, err)
		}
	}
	s.serves(t)
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

func TestPathIsSearchedInOrder(t *testing.T) {
	s := open(t)
	s.mustRun(t, command("sh", "-c", `cd /tmp; mkdir a b c
		printf '#!/bin/sh\necho of a' >a/p
		printf '#!/bin/sh\necho of b "$@"' >b/p; chmod 755 b/p
		printf '#!/bin/sh\necho of c' >c/p; chmod 755 c/p`))
	for path, want := range map[string]string{
		"/nowhere:/tmp/a:/tmp/b:/tmp/c": "of b x",
		"/tmp/c:/tmp/b":                 "of c",
		"b:/tmp/c":                      "of b x",
		"/tmp/c/:":                      "of c",
	} {
		c := command("p", "x")
		c.Dir, c.Env = "/tmp", []string{"OTHER=1", "PATH=" + path, "PATH=/never"}
		if got := s.mustRun(t, c); got != want {
			t.Errorf("PATH=%s: %q, want %q", path, got, want)
		}
	}
	c := command("true")
	c.Env = nil
	s.mustRun(t, c)
}

// Commands that PID 1, or the host for it, has to refuse. Texts of mistakes that people make
// are in package spec.
func TestInvalidCommandsDoNotRun(t *testing.T) {
	s := open(t)
	for name, change := range map[string]func(*Command){
		"no program":         func(c *Command) { c.Args = nil },
		"NUL in argument":    func(c *Command) { c.Args = []string{"tr\x00ue"} },
		"NUL in setting":     func(c *Command) { c.Env = []string{"A=\x00"} },
		"the agent's uid":    func(c *Command) { c.UID = 65535 },
		"uid beyond the map": func(c *Command) { c.UID = 65536 },
		"uid that is -1":     func(c *Command) { c.UID = math.MaxUint32 },
		"the agent's gid":    func(c *Command) { c.GID = 65535 },
		"gid that is -1":     func(c *Command) { c.GID = math.MaxUint32 },
		"the agent's group":  func(c *Command) { c.Groups = []uint32{1, 65535} },
		"many groups":        func(c *Command) { c.Groups = make([]uint32, 257) },
		"unknown limit":      func(c *Command) { c.Rlimits = []Rlimit{{16, 0, 0}} },
		"negative limit":     func(c *Command) { c.Rlimits = []Rlimit{{-1, 0, 0}} },
		"soft above hard":    func(c *Command) { c.Rlimits = []Rlimit{{7, 2, 1}} },
		"lower oom score":    func(c *Command) { c.OOMScoreAdj = -1 },
		"higher oom score":   func(c *Command) { c.OOMScoreAdj = 1001 },
		"terminal and files": func(c *Command) { c.TTY, c.Stdin = &Winsize{}, os.Stdin },
	} {
		c := command("true")
		change(&c)
		if _, err := s.Start(t.Context(), c); err == nil {
			t.Errorf("%s: was started", name)
		}
	}
	s.serves(t)
}

func TestSignalReachesProcessOrGroup(t *testing.T) {
	s := open(t)
	script := `exec 2>/dev/null; trap 'echo parent; exit 3' USR1; (trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.01; done) & while :; do sleep 0.01; done`
	for _, test := range []struct {
		name string
		send func(*Process) error
		want []string
	}{
		{"process", func(p *Process) error { return p.Signal(unix.SIGUSR1) }, []string{"parent"}},
		{"group", func(p *Process) error { return p.SignalGroup(unix.SIGUSR1) }, []string{"child", "parent"}},
	} {
		// sh's own traps may come in either order.
		p, out := s.begin(t, command("bash", "-c", script))
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "ready" {
			t.Fatalf("%s: not ready but %q", test.name, lines.Text())
		}
		if err := test.send(p); err != nil {
			t.Fatal(err)
		}
		exit, err := p.Wait(within(t, testhost.Patience))
		if err != nil || exit.Status.ExitStatus() != 3 {
			t.Errorf("%s: status %#x, %v", test.name, exit.Status, err)
		}
		if test.name == "process" {
			s.mustRun(t, command("sh", "-c", "kill -9 -1; true")) // the child that was spared
		}
		var got []string
		out.SetReadDeadline(time.Now().Add(testhost.Patience))
		for lines.Scan() {
			got = append(got, lines.Text())
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if err := p.Signal(unix.SIGKILL); err != os.ErrProcessDone {
			t.Errorf("%s: signal after the end: %v", test.name, err)
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	s := open(t)
	s.mustRun(t, asProbe("orphans"))
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
}

func TestManyAtOnce(t *testing.T) {
	testhost.Concurrent(t)
	s := open(t)
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			for range 10 {
				out, exit, err := s.try(within(t, testhost.Patience), command("sh", "-c", fmt.Sprintf("echo %d; exit %d", n, n)))
				if err != nil || exit.Status.ExitStatus() != n || out != fmt.Sprintln(n) {
					t.Errorf("%d: %q, status %#x, %v", n, out, exit.Status, err)
				}
			}
		})
	}
	all.Wait()
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// TestFullTableRefuses also shows the table to be as large as the agent's
// descriptors allow.
func TestFullTableRefuses(t *testing.T) {
	s := open(t, setting(filesVariable, "108"))
	var running []*Process
	for range 10 {
		p, _ := s.begin(t, command("sleep", "1000"))
		running = append(running, p)
	}
	for range 3 {
		_, err := s.Start(within(t, testhost.Patience), command("true"))
		var start *StartError
		if !errors.As(err, &start) || start.Stage != StageTable {
			t.Fatalf("the eleventh of ten: %v", err)
		}
	}
	running[4].Signal(unix.SIGKILL)
	if _, err := running[4].Wait(within(t, testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	s.serves(t)
}

func TestWaitRespectsItsContext(t *testing.T) {
	testhost.Concurrent(t)
	s := open(t)
	p, _ := s.begin(t, command("sleep", "1000"))
	ctx := within(t, 20*time.Millisecond)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if _, err := p.Wait(ctx); !errors.Is(err, ctx.Err()) || ctx.Err() == nil {
				t.Errorf("wait: %v", err)
			}
		})
	}
	all.Wait()
	p.Signal(unix.SIGTERM)
	for range 3 {
		exit, err := p.Wait(within(t, testhost.Patience))
		if err != nil || exit.Status.Signal() != unix.SIGTERM {
			t.Errorf("wait again: %#x, %v", exit.Status, err)
		}
	}
}

func TestCloseKillsTheGroup(t *testing.T) {
	s := open(t)
	p, out := s.begin(t, command("sh", "-c", "sleep 1000 & sleep 1000 & echo ready; wait"))
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
	s.serves(t)
}

// TestChildInTheMakingIsBareAndMortal holds one up before its execve(2): it
// waits for a payload that does not come.
func TestChildInTheMakingIsBareAndMortal(t *testing.T) {
	s := open(t)
	other, _ := s.begin(t, command("sleep", "1000")) // has a socket, too
	exec, setup := s.sendRequest(t, request{kind: requestExec, payload: 1000}.encode(), nil)
	var child string
	testhost.Eventually(t, "a child that is only itself", func() bool {
		for _, pid := range s.children(t) {
			// The other is "sleep" by now.
			if name, _ := os.ReadFile("/proc/" + pid + "/comm"); string(name) == "sandbox-agent\n" {
				child = pid
				entries, err := os.ReadDir("/proc/" + pid + "/fd")
				return err == nil && len(entries) == 4
			}
		}
		return false
	})
	exec.close()
	testhost.Eventually(t, "no child", func() bool {
		_, err := os.Stat("/proc/" + child)
		return errors.Is(err, fs.ErrNotExist)
	})
	if _, _, err := setup.receive(within(t, testhost.Patience), false); err != io.EOF {
		t.Errorf("the child said: %v", err)
	}
	other.Close()
}

func TestEndOfControlKillsEverything(t *testing.T) {
	s := open(t)
	p, out := s.begin(t, command("sh", "-c", "setsid sleep 1000 & echo ready; exec sleep 1000"))
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(testhost.Patience, func() { s.cmd.Process.Kill() }).Stop()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("agent: %v, want status 0", err)
	}
	if _, err := p.Wait(within(t, testhost.Patience)); !errors.Is(err, ErrGone) {
		t.Errorf("wait: %v, want ErrGone", err)
	}
	// Both sleeps held the pipe.
	out.SetReadDeadline(time.Now().Add(testhost.Patience))
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Errorf("something still lives: %v", err)
	}
}

func TestDeadAgentIsGone(t *testing.T) {
	s := open(t)
	p, _ := s.begin(t, command("sleep", "1000"))
	s.cmd.Process.Kill()
	if _, err := p.Wait(within(t, testhost.Patience)); !errors.Is(err, ErrGone) {
		t.Errorf("wait: %v, want ErrGone", err)
	}
	if _, err := s.Start(within(t, testhost.Patience), command("true")); !errors.Is(err, ErrGone) {
		t.Errorf("start: %v, want ErrGone", err)
	}
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal: %v, want ErrProcessDone", err)
	}
}
