package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// isPlain says whether a message is one for a person: the name of the program once, and no entry of a log.
func isPlain(message string) bool {
	rest, ok := strings.CutPrefix(message, "sandbox-runtime: ")
	return ok && !strings.HasPrefix(rest, "sandbox-runtime") && !strings.Contains(rest, "level=")
}

func TestErrorsAboutSandboxesHaveOneForm(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for _, args := range [][]string{
		{"update", "--memory", "1", "box"}, {"update", "--pids", "0", "box"}, {"update", "--pids", "5", "--cpu-period", "5", "box"},
		{"resume", "box"}, {"ps", "box", "-o", "comm"}, {"ps", "--execs", "--format", "xml", "box"}, {"ps", "--format", "xml", "box"},
		{"events", "--interval", "0", "box"}, {"kill", "box", "NONSENSE"}, {"delete", "box"}, {"exec", "--cap", "CAP_KILL", "box", "true"},
		{"state", "box", "other"}, {"network", "box", "nonsense"}, {"stats", "other"}, {"down"},
	} {
		if got := run(t, s.command(args...)); got.code == 0 || !isPlain(got.stderr) {
			t.Errorf("%q: %+v", args, got)
		}
	}
	s.killFirst("box")
	for _, args := range [][]string{
		{"update", "--memory", "2g", "box"}, {"pause", "box"}, {"resume", "box"}, {"ps", "--execs", "box"},
		{"events", "--stats", "box"}, {"kill", "box"}, {"exec", "box", "true"}, {"stats", "box"},
	} {
		if got := run(t, s.command(args...)); got.code == 0 || !isPlain(got.stderr) || strings.Count(got.stderr, "sandbox box") > 1 {
			t.Errorf("of a stopped sandbox, %q: %+v", args, got)
		}
	}
}

// killFirst kills the first process of a sandbox.
func (s *sandboxes) killFirst(name string) {
	s.t.Helper()
	if got := run(s.t, s.command("kill", name, "KILL")); got.code != 0 {
		s.t.Fatalf("%+v", got)
	}
	eventually(s.t, "the sandbox has stopped", func() bool {
		return strings.Contains(run(s.t, s.command("state", name)).stdout, `"stopped"`)
	})
}

func TestPersonsGetPlainErrorsWithoutAName(t *testing.T) {
	for _, args := range [][]string{
		{"list", "--format", "xml"}, {"list", "extra"}, {"state", "a", "b"}, {"update", "--nope", "box"},
		{"--nope", "list"}, {"rm", "-rf", "box"}, {"stop", "box"}, {"run", "--rm", "busybox"},
	} {
		if got := run(t, exec.Command(binary(t), args...)); got.code == 0 || !isPlain(got.stderr) || strings.Contains(got.stderr, "provided") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// Engines that give neither a log nor a name of a sandbox get entries of runc's log.
func TestErrorsAboutContainersAreEntriesOfALog(t *testing.T) {
	r := ours(t)
	b := newBundle(t, []string{"sleep", "1000"})
	r.started(b)
	for _, args := range [][]string{
		{"resume", "c"}, {"kill", "c", "NONSENSE"}, {"delete", "c"}, {"update", "--nope", "c"}, {"list", "--format", "xml"},
		{"run", "--bundle", b.dir, "c"}, {"events", "--interval", "0", "c"},
	} {
		got := run(t, r.bare(append([]string{"--root", r.root}, args...)...))
		if got.code == 0 || !strings.HasPrefix(got.stderr, "time=") || !strings.Contains(got.stderr, `level=error msg="`) {
			t.Errorf("%q: %+v", args, got)
		}
		log := filepath.Join(t.TempDir(), "log")
		got = run(t, r.bare(append([]string{"--root", r.root, "--log", log}, args...)...))
		if got.code == 0 || isPlain(got.stderr) || !strings.Contains(content(t, log), "level=error") {
			t.Errorf("with --log, %q: %+v", args, got)
		}
	}
}

func TestWordsOfDockerLeadToOurs(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"rm", "-f", "box"}, "sandbox-runtime down NAME"},
		{[]string{"stop", "box"}, "sandbox-runtime down NAME"},
		{[]string{"version"}, "sandbox-runtime --version"},
		{[]string{"images", "-a"}, "sandbox-runtime image ls"},
		{[]string{"pull", "busybox"}, "sandbox-runtime image pull NAME"},
		{[]string{"do", "-m", "1g", "--", "true"}, "did you mean --memory?"},
		{[]string{"do", "-p", "80:80", "--", "true"}, "did you mean --publish?"},
		{[]string{"up", "-u", "0", "box"}, "did you mean --user?"},
		{[]string{"do", "--rm", "--", "true"}, "do removes the sandbox"},
		{[]string{"do", "-d", "--", "true"}, "exec --detach NAME COMMAND"},
		{[]string{"up", "--name", "box"}, "as in: up box"},
		{[]string{"run", "--rm", "busybox"}, "do --image NAME -- COMMAND"},
		{[]string{"run", "busybox"}, "do --image NAME -- COMMAND"},
		{[]string{"start", "busybox"}, "up NAME"},
	} {
		if got := run(t, exec.Command(binary(t), tt.args...)); got.code == 0 || !isPlain(got.stderr) || !strings.Contains(got.stderr, tt.want) {
			t.Errorf("%q: %+v, want %q", tt.args, got, tt.want)
		}
	}
}

// userCommands makes commands of the program for an ordinary user.
func userCommands(t *testing.T, uid uint32) func(args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "program") // t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "program")
	if err := errors.Join(os.Chmod(dir, 0o755), ocibundle.CopyProgram(binary(t), program)); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd
	}
}

// asUserOf is a function that runs the program as an ordinary user of a launcher.
func asUserOf(t *testing.T, socket string, uid uint32) func(args ...string) result {
	t.Helper()
	command := userCommands(t, uid)
	return func(args ...string) result { return run(t, command(append([]string{"--socket", socket}, args...)...)) }
}

// launcherFor starts a launcher for an ordinary user, and returns the launcher's socket.
func (s *sandboxes) launcherFor(uid uint32) string {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "launcher")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	rules := filepath.Join(dir, "rules.json")
	text := fmt.Sprintf(`{"peers": [{"user": %d, "sandboxes": 4}]}`, uid)
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(rules, []byte(text), 0o600)); err != nil {
		s.t.Fatal(err)
	}
	socket := filepath.Join(dir, "socket")
	s.launcher(socket, "--rules", rules, "--mode", "0666")
	return socket
}

func TestDoctorJudgesTheLauncherOfAUser(t *testing.T) {
	s := newSandboxes(t)
	socket := s.launcherFor(1234)
	var report doctorReport
	got := asUserOf(t, socket, 1234)("doctor", "--json")
	decode(t, got.stdout, &report)
	if got.code != 0 || !report.Ready || !strings.Contains(report.Verdict, socket) {
		t.Errorf("with a rule: status %d, %q, %s", got.code, report.Verdict, got.stderr)
	}
	for name, got := range map[string]result{
		"without a rule":     asUserOf(t, socket, 1235)("doctor"),
		"without a launcher": asUserOf(t, "/nowhere/socket", 1234)("doctor"),
	} {
		if got.code != 1 || !strings.Contains(got.stdout, "\nnot ready: ") || strings.Contains(got.stdout, "provider") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The names of providers are for programs in Go.
func TestAMissingLauncherIsToldWithoutInnerWords(t *testing.T) {
	as := asUserOf(t, "/nowhere/socket", 1234)
	for _, args := range [][]string{{"do", "--", "true"}, {"up", "box"}, {"list"}, {"state", "box"}, {"stats", "box"}, {"image", "ls"}} {
		got := as(args...)
		if got.code == 0 || !isPlain(got.stderr) || strings.Contains(got.stderr, "provider") || !strings.Contains(got.stderr, "run this as root, or ask root for") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// A command without a name is about no name, also if the socket keeps the user out.
func TestAClosedSocketIsNoMissingName(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir() // which is root's alone
	as := asUserOf(t, s.launcher(filepath.Join(dir, "socket")).socket, 1234)
	for _, args := range [][]string{{"list"}, {"list", "--quiet"}, {"state", "box"}, {"down", "box"}, {"stats", "box"}} {
		got := as(args...)
		if got.code == 0 || !isPlain(got.stderr) || strings.Contains(got.stderr, "does not exist") || !strings.Contains(got.stderr, "keeps you out") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestTheNetworkAloneIsShown(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--allow", "example.com", "--deny", "10.0.0.0/8", "--sensitivity", "internal")
	if got := run(t, s.command("network", "box")); got != (result{0, "network proxied, sensitivity internal; allow example.com; deny 10.0.0.0/8\n", ""}) {
		t.Errorf("%+v", got)
	}
	const proxied = `{"network":"proxied","allow":["example.com"],"deny":["10.0.0.0/8"],"from":"proxied","to":"proxied","sensitivity":"internal",`
	if got := run(t, s.command("network", "--json", "box")); got.code != 0 || !strings.HasPrefix(got.stdout, proxied) {
		t.Errorf("%+v", got)
	}
	if got := run(t, s.command("network", "box", "none")); got.code != 0 || !strings.Contains(got.stdout, "from proxied to none") {
		t.Errorf("a change: %+v", got)
	}
	if got := run(t, s.command("network", "box")); got != (result{0, "network none, sensitivity internal\n", ""}) {
		t.Errorf("%+v", got)
	}
}

func TestListsHaveJSON(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for _, tt := range []struct{ short, long []string }{
		{[]string{"list", "--json"}, []string{"list", "--format", "json"}},
		{[]string{"ps", "--json", "box"}, []string{"ps", "--format", "json", "box"}},
		{[]string{"ps", "--execs", "--json", "box"}, []string{"ps", "--execs", "--format", "json", "box"}},
	} {
		got, want := run(t, s.command(tt.short...)), run(t, s.command(tt.long...))
		if got.code != 0 || got != want || !strings.HasPrefix(got.stdout, "[") {
			t.Errorf("%q: %+v, want %+v", tt.short, got, want)
		}
	}
	if got := run(t, s.command("snapshot", "--list", "--json")); got.code != 0 || !strings.HasPrefix(got.stdout, "[") {
		t.Errorf("snapshot --list --json: %+v", got)
	}
	name := fmt.Sprintf("words-%d", os.Getpid())
	if got := run(t, s.command("snapshot", "box", name)); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { run(t, s.command("snapshot", "--remove", name)) })
	if got := run(t, s.command("snapshot", "--list", "--json")); !strings.Contains(got.stdout, `{"name":"`+name+`"}`) {
		t.Errorf("%+v", got)
	}
}

func TestThePoolHasStats(t *testing.T) {
	s := newSandboxes(t)
	socket := filepath.Join(t.TempDir(), "socket")
	s.launcher(socket, "--pool", "min=1,max=2,warmup=1")
	with := func(args ...string) result {
		return run(t, exec.Command(binary(t), append([]string{"--socket", socket}, args...)...))
	}
	if got := with("stats", "--pool"); got.code != 0 || !strings.Contains(got.stdout, "min=1,max=2,warmup=1") || !strings.Contains(got.stdout, "hits") {
		t.Errorf("%+v", got)
	}
	var stats sandbox.PoolStats
	decode(t, with("stats", "--pool", "--json").stdout, &stats)
	if stats.Config.Max != 2 {
		t.Errorf("%+v", stats)
	}
	if got := with("stats", "--pool", "box"); got.code != 1 || !strings.Contains(got.stderr, "takes no sandbox") {
		t.Errorf("with a name: %+v", got)
	}
}

func TestALauncherWithoutAPoolSaysSo(t *testing.T) {
	s := newSandboxes(t)
	socket := s.launcher(filepath.Join(t.TempDir(), "socket")).socket
	if got := run(t, exec.Command(binary(t), "--socket", socket, "stats", "--pool")); got.code != 1 || !isPlain(got.stderr) || !strings.Contains(got.stderr, "--pool") || strings.Contains(got.stderr, "unknown") {
		t.Errorf("%+v", got)
	}
}

func TestAPoolOfAnOrdinaryUserIsRefused(t *testing.T) {
	dir, err := os.MkdirTemp("", "pool") // the user's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	p := start(t, userCommands(t, 1234)("--root", dir+"/root", "--data", dir+"/data", "launcher", "--socket", dir+"/socket", "--pool", "min=1"))
	eventually(t, "the launcher to end", p.ended)
	if got := p.wait(); got.code != 1 || !isPlain(got.stderr) || !strings.Contains(got.stderr, "--pool: only a launcher of root") {
		t.Errorf("%+v", got)
	}
}

func TestAllWrongFlagsAreNamedAtOnce(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for _, tt := range []struct{ args, want []string }{
		{[]string{"do", "--pids", "0", "--cpus", "many", "--memory", "1", "--network", "fll", "--", "true"}, []string{"--pids", "--cpus", "--memory", "--network"}},
		{[]string{"up", "--timeout", "soon", "--disk", "x", "--hostname", "a b", "other"}, []string{"--timeout", "--disk", "--hostname"}},
		{[]string{"update", "--pids", "x", "--cpus", "many", "box"}, []string{"--pids", "--cpus"}},
	} {
		got := run(t, s.command(tt.args...))
		for _, want := range tt.want {
			if got.code == 0 || !isPlain(got.stderr) || strings.Count(got.stderr, want+": ") != 1 {
				t.Errorf("%q: %+v, want %s", tt.args, got, want)
			}
		}
	}
}
