package sandboxtest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// commandClaims are about a command: its surroundings and its Result.
var commandClaims = []claim{
	{"a Result has the exit code", "", checkExitCode},
	{"a Result has the signal", "", checkSignal},
	{"a Result tells that a command cannot be executed", Refusals, checkRefusals},
	{"a command has the environment of both", "", checkEnvironment},
	{"a command starts in the workspace of the host", HostWorkspaces, checkWorkspace},
	{"a command starts in its directory", Directories, checkDirectory},
	{"files stay for the next command", "", checkFilesStay},
	{"commands run at the same time", "", checkManyAtOnce},
	{"Started returns beside Wait", "", checkStarted},
	{"all calls of Wait return the Result", "", checkWait},
	{"a signal reaches the command", "", checkSignals},
	{"commands leave no descriptor open", "", checkDescriptors},
}

func checkExitCode(w *world) {
	sb := w.box()
	info, err := sb.Info(w.Context())
	w.must(err)
	for _, code := range []int{0, 1, 255} {
		r := w.run(sb, fmt.Sprint("exit ", code))
		if r.Status != sandbox.StatusExited || r.ExitCode != code || r.OK() != (code == 0) || r.Reason == "" || r.Duration <= 0 {
			w.Errorf("exit %d: %+v", code, r)
		}
		if r.ID != sb.ID() || r.Isolation != info.Isolation {
			w.Errorf("sandbox %s with isolation %s: %+v", sb.ID(), info.Isolation, r)
		}
	}
}

func checkSignal(w *world) {
	r := w.run(w.box(), "kill -USR1 $$")
	if r.Status != sandbox.StatusSignaled || r.Signal != "SIGUSR1" || r.ExitCode != 128+int(unix.SIGUSR1) || r.Reason == "" {
		w.Errorf("%+v", r)
	}
}

func checkRefusals(w *world) {
	sb := w.box()
	for name, code := range map[string]int{"no-such-command": 127, "/no/such/file": 127, "/etc/passwd": 126} {
		c := sandbox.Command{Args: []string{name}}
		if r := w.exec(sb, c); r.Status != sandbox.StatusError || r.ExitCode != -1 || !strings.Contains(r.Reason, name) || r.ID != sb.ID() {
			w.Errorf("%s: %+v", name, r)
		}
		p, _ := w.start(sb, c)
		var refused *sandbox.NotRunError
		if err := p.Started(w.Context()); !errors.As(err, &refused) || refused.Code != code {
			w.Errorf("%s: Started returns %v", name, err)
		}
		if err := p.Close(); err != nil {
			w.Error(err)
		}
	}
}

func checkEnvironment(w *world) {
	config := w.config()
	config.Env = map[string]string{"SUITE_A": "of the sandbox", "SUITE_B": "of the sandbox"}
	c := shell(`echo "$SUITE_A, $SUITE_B, $SUITE_C"`)
	c.Env = map[string]string{"SUITE_B": "of the command", "SUITE_C": "its own"}
	if r := w.exec(w.create(config), c); string(r.Stdout) != "of the sandbox, of the command, its own\n" {
		w.Errorf("%q", r.Stdout)
	}
}

func checkWorkspace(w *world) {
	config := w.config()
	sb := w.create(config)
	if r := w.run(sb, "echo inside > made"); !r.OK() {
		w.Errorf("%+v", r)
	}
	if text, err := os.ReadFile(config.Workspace + "/made"); err != nil || string(text) != "inside\n" {
		w.Errorf("on the host: %q, %v", text, err)
	}
	w.must(os.WriteFile(config.Workspace+"/given", []byte("outside"), 0o644))
	w.output(sb, "cat given", "outside")
}

func checkDirectory(w *world) {
	c := shell("pwd")
	c.Cwd = "/tmp"
	if r := w.exec(w.box(), c); !strings.HasSuffix(string(r.Stdout), "/tmp\n") {
		w.Errorf("%q", r.Stdout)
	}
}

func checkFilesStay(w *world) {
	sb := w.box()
	w.output(sb, "echo kept > f", "")
	w.output(sb, "cat f", "kept\n")
}

func checkManyAtOnce(w *world) {
	sb := w.box()
	var together sync.WaitGroup
	for n := range 32 { // each one waits for seven others
		together.Go(func() {
			c := shell(fmt.Sprintf("echo %d; touch of-%d; until [ $(ls | grep -c of-) -ge 8 ]; do sleep 0.02; done; exit %d", n, n, n))
			c.Timeout = w.patience
			if r, err := sb.Exec(w.Context(), c); err != nil || r.ExitCode != n || string(r.Stdout) != fmt.Sprintln(n) {
				w.Errorf("%d: %+v, %v", n, r, err)
			}
		})
	}
	together.Wait()
}

func checkStarted(w *world) {
	p, _ := w.start(w.box(), shell("sleep 1000"))
	waited := make(chan error)
	go func() {
		_, err := p.Wait()
		waited <- err
	}()
	time.Sleep(50 * time.Millisecond) // Wait receives the answers now
	started := make(chan error, 1)
	go func() { started <- p.Started(w.Context()) }()
	select {
	case err := <-started:
		if err != nil {
			w.Error(err)
		}
	case <-time.After(w.patience):
		w.Error("Started does not return")
	}
	if err := errors.Join(p.Kill(), <-waited); err != nil {
		w.Error(err)
	}
}

// checkWait asks the Execution: a Process keeps its Result.
func checkWait(w *world) {
	instance, err := w.provider.Create(w.Context(), sandbox.Request{Name: w.name(), Config: w.config()})
	w.must(err)
	defer func() { w.must(w.Remove(w.Context(), instance.Info().ID)) }()
	e, err := instance.Start(w.Context(), shell("exit 7"), [3]*os.File{})
	w.must(err)
	var together sync.WaitGroup
	for range 3 {
		together.Go(func() {
			for range 2 {
				if r, err := e.Wait(w.Context()); err != nil || r.ExitCode != 7 {
					w.Errorf("%+v, %v", r, err)
				}
			}
		})
	}
	together.Wait()
	for range 2 {
		if err := e.Close(); err != nil {
			w.Error(err)
		}
	}
}

func checkSignals(w *world) {
	sb := w.box()
	c := shell("trap 'exit 9' USR1; echo ready; while :; do sleep 0.01; done")
	for what, end := range map[string]struct {
		by   func(p *sandbox.Process) error
		want func(r sandbox.Result) bool
	}{
		"Signal": {func(p *sandbox.Process) error { return p.Signal(unix.SIGUSR1) },
			func(r sandbox.Result) bool { return r.ExitCode == 9 || r.Signal == "SIGUSR1" }},
		"Kill": {(*sandbox.Process).Kill, func(r sandbox.Result) bool { return r.Status == sandbox.StatusSignaled && r.Signal == "SIGKILL" }},
	} {
		p, out := w.start(sb, c)
		w.await(out, "ready\n")
		w.must(end.by(p))
		if r, err := w.end(p); err != nil || !end.want(r) {
			w.Errorf("%s: %+v, %v", what, r, err)
		}
		if err := errors.Join(p.Signal(unix.SIGTERM), p.Kill(), p.Resize(sandbox.Winsize{Rows: 1}), p.Close(), p.Close()); err != nil {
			w.Errorf("after the end by %s: %v", what, err)
		}
	}
	p, out := w.start(sb, c)
	w.await(out, "ready\n")
	w.must(p.Close()) // the command ends
	w.output(sb, "echo on", "on\n")
}

func checkDescriptors(w *world) {
	sb := w.box()
	round := func() {
		for _, c := range []sandbox.Command{
			shell("exit 0"), shell("sleep 0.01; echo x"), {Args: []string{"no-such-command"}},
			{Args: []string{"cat"}, Stdin: strings.NewReader("x")},
			{Args: []string{"cat"}, Stdin: strings.NewReader(strings.Repeat("x", 1<<17)), Stdout: &buffer{}},
			{Args: []string{"sleep", "100"}, Timeout: time.Millisecond},
		} {
			w.exec(sb, c)
		}
	}
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		w.must(err)
		return len(entries)
	}
	round()
	before := descriptors()
	for range 5 {
		round()
	}
	w.eventually(fmt.Sprintf("no more than %d descriptors", before), func() bool { return descriptors() <= before })
}
