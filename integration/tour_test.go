package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// sharedSocket is the socket that ordinary users use by default.
const sharedSocket = "/run/sandbox-runtime.sock"

// annID is the user of the tour, and her group.
const annID = 4242

// A tourist is an ordinary user with a home and a copy of the program.
type tourist struct {
	t                   *testing.T
	home, proj, program string
	uid                 int
	groups              []string // of setpriv
}

// newTourist makes the home of ann, with a project.
func newTourist(t *testing.T) *tourist {
	t.Helper()
	dir := t.TempDir()
	for above := dir; above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ann := &tourist{t: t, home: filepath.Join(dir, "ann"), program: filepath.Join(dir, "sandbox-runtime"), uid: annID, groups: []string{"--clear-groups"}}
	ann.proj = filepath.Join(ann.home, "proj")
	script := `mkdir -p "$1"; cd "$1"; printf 'one\ntwo\n' > notes; echo old > old
		printf 'test:\n\t@echo tested in $$PWD\n' > Makefile; printf '#!/bin/sh\necho serving\n' > server; chmod 755 server
		chown -R 4242:4242 "$2"`
	if out, err := exec.Command("sh", "-euc", script, "sh", ann.proj, ann.home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := ocibundle.CopyProgram(binary(t), ann.program); err != nil {
		t.Fatal(err)
	}
	return ann
}

// rule writes a file with a rule for ann.
func (ann *tourist) rule() string {
	ann.t.Helper()
	path := filepath.Join(filepath.Dir(ann.home), "rules.json")
	text := fmt.Sprintf(`{"peers":[{"user":%d,"workspaces":[%q],"limits":{"memory":"2g"}}]}`, annID, ann.home)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		ann.t.Fatal(err)
	}
	return path
}

// command is a command line of the user, in the project.
func (ann *tourist) command(args ...string) *exec.Cmd {
	id := strconv.Itoa(ann.uid)
	words := append([]string{"--reuid", id, "--regid", id}, ann.groups...)
	cmd := exec.Command("setpriv", append(append(words, ann.program), args...)...)
	cmd.Dir = ann.proj
	cmd.Env = []string{"HOME=" + ann.home, "PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm"}
	return cmd
}

// prints runs a command line that must succeed, and returns its standard output.
func (ann *tourist) prints(line string) string {
	ann.t.Helper()
	return ann.printsOf("", strings.Fields(line)...)
}

// printsOf is prints with an input, and words that may have spaces.
func (ann *tourist) printsOf(input string, args ...string) string {
	ann.t.Helper()
	cmd := ann.command(args...)
	cmd.Stdin = strings.NewReader(input)
	got := run(ann.t, cmd)
	if got.code != 0 {
		ann.t.Fatalf("%q: %+v", args, got)
	}
	return got.stdout
}

// refused runs a command line that must fail with this status and these words.
func (ann *tourist) refused(code int, line string, says ...string) {
	ann.t.Helper()
	got := run(ann.t, ann.command(strings.Fields(line)...))
	for _, words := range says {
		if got.code != code || !strings.Contains(got.stderr, words) {
			ann.t.Errorf("%s: want status %d and %q, got %+v", line, code, words, got)
		}
	}
}

// file is the content of a file of the project.
func (ann *tourist) file(name string) string {
	ann.t.Helper()
	data, err := os.ReadFile(filepath.Join(ann.proj, name))
	if err != nil {
		ann.t.Fatal(err)
	}
	return string(data)
}

// tourWith starts a launcher on the default socket of ordinary users, for the group of ann.
func tourWith(t *testing.T) (*sandboxes, *tourist) {
	t.Helper()
	s, ann := newSandboxes(t), newTourist(t)
	l := s.launcher(sharedSocket, "--group", strconv.Itoa(annID), "--rules", ann.rule())
	t.Cleanup(func() { interrupt(t, l.testProcess) }) // a killed launcher leaves its socket
	return s, ann
}

// TestAnOrdinaryUserTakesTheTour: the commands of README.md, from the command line of a user with a
// rule.
func TestAnOrdinaryUserTakesTheTour(t *testing.T) {
	_, ann := tourWith(t)
	t.Run("one command", ann.oneCommand)
	t.Run("a sandbox that stays", ann.stays)
	t.Run("files, reviewed", ann.reviewed)
	t.Run("changes, undo and snapshots", ann.changes)
	if left := ann.prints("list -q"); left != "" {
		t.Errorf("left: %q", left)
	}
}

func (ann *tourist) oneCommand(t *testing.T) {
	ann.t = t
	if got := ann.printsOf("", "do", "--", "python3", "-c", "print(6 * 7)"); got != "42\n" {
		t.Errorf("got %q", got)
	}
	if got := ann.prints("do --workspace . --memory 256m --cpus 0.5 --pids 64 --timeout 30s -- cat notes"); got != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
	ann.refused(1, "do -- cat /etc/shadow", "No such file or directory")
	ann.refused(137, "do --workspace . --timeout 30s --memory 64m -- python3 -c x=bytearray(1<<30)", "killed when memory ran out at 64m")
	if got := ann.prints("do --json -- id -u"); !strings.Contains(got, `"stdout":"1000\n"`) {
		t.Errorf("got %q", got)
	}
}

func (ann *tourist) stays(t *testing.T) {
	ann.t = t
	t.Cleanup(func() { run(t, ann.command("down", "box")) })
	if got := ann.prints("up --workspace . --memory 2g box"); got != "box\n" {
		t.Errorf("up: %q", got)
	}
	if got := ann.prints("exec box make test"); got != "tested in /workspace\n" {
		t.Errorf("exec: %q", got)
	}
	term, p := onTerminal(t, ann.command("exec", "-it", "box", "bash"))
	term.typeIn(t, "echo $((6 * 7)); exit 3\n")
	term.shows(t, "42\r\n")
	if got := p.wait(); got.code != 3 {
		t.Errorf("bash: %+v", got)
	}
	id := strings.TrimSpace(ann.prints("exec --detach box ./server"))
	if got := ann.prints("ps --execs box"); !strings.Contains(got, id) {
		t.Errorf("ps --execs: %q", got)
	}
	eventually(t, "the output of the server", func() bool { return strings.Contains(ann.prints("logs box "+id), "serving") })
	ann.prints("cp notes box:/tmp/notes")
	ann.prints("cp box:/tmp/notes copy")
	if got := ann.file("copy"); got != "one\ntwo\n" {
		t.Errorf("cp: %q", got)
	}
	if got := ann.prints("attach box " + id); got != "serving\n" {
		t.Errorf("attach: %q", got)
	}
	sleeping := strings.TrimSpace(ann.prints("exec --detach box sleep 1000"))
	for line, want := range map[string]string{
		"list": "running", "list -q": "box\n", "list --format json": `"id":"box"`, "state box": `"status": "running"`,
		"ps box": "sleep 1000", "inspect box": `"box"`, "stats box": "box", "ps --format json box": "[",
	} {
		if got := ann.prints(line); !strings.Contains(got, want) {
			t.Errorf("%s: want %q, got %q", line, want, got)
		}
	}
	ann.prints("pause box")
	if got := ann.prints("state box"); !strings.Contains(got, `"status": "paused"`) {
		t.Errorf("state: %q", got)
	}
	ann.prints("resume box")
	ann.prints("update --memory 1g box")
	ann.refused(137, "attach --kill box "+sleeping, "the caller killed the command")
	ann.prints("down box")
	ann.refused(1, "down box", "box does not exist")
}

func (ann *tourist) reviewed(t *testing.T) {
	ann.t = t
	ann.printsOf("a\n", "do", "--overlay", ".", "--review", "--", "sh", "-c", "echo three >> notes; rm old")
	if got := ann.file("notes"); got != "one\ntwo\nthree\n" {
		t.Errorf("notes: %q", got)
	}
	if exists(filepath.Join(ann.proj, "old")) {
		t.Error("old is still there")
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(ann.proj, "notes"), &st); err != nil || st.Uid != annID {
		t.Errorf("notes belongs to %d, %v", st.Uid, err)
	}
}

func (ann *tourist) changes(t *testing.T) {
	ann.t = t
	t.Cleanup(func() { run(t, ann.command("down", "box", "box-2")) })
	ann.prints("up --overlay . box")
	write := func(text, name string) []string {
		return []string{"exec", "--transaction", "--cwd", ann.proj, "box", "sh", "-c", "echo " + text + " > " + name}
	}
	ann.printsOf("", write("first", "first")...)
	ann.printsOf("", write("second", "second")...)
	ann.prints("undo box")
	if got := ann.prints("changes --names box"); !strings.Contains(got, "/first") || strings.Contains(got, "/second") {
		t.Errorf("changes: %q", got)
	}
	if got := ann.prints("diff box"); !strings.Contains(got, "+first") {
		t.Errorf("diff: %q", got)
	}
	ann.prints("save box " + filepath.Join(ann.home, "box.patch"))
	ann.prints("snapshot box ready")
	if got := ann.prints("snapshot --list"); got != "ready\n" {
		t.Errorf("snapshot --list: %q", got)
	}
	ann.prints("up --from ready --overlay . box-2")
	if got := ann.prints("exec box-2 cat " + filepath.Join(ann.proj, "first")); got != "first\n" {
		t.Errorf("box-2: %q", got)
	}
	ann.prints("apply --dry-run box")
	ann.prints("apply --yes box first")
	if got := ann.file("first"); got != "first\n" {
		t.Errorf("first: %q", got)
	}
	ann.prints("discard box-2")
	if got := ann.prints("changes box-2"); got != "" {
		t.Errorf("discard left %q", got)
	}
	ann.prints("snapshot --remove ready")
	ann.prints("down box box-2")
}

// TestAnOrdinaryUserNeedsALauncher: the errors name both ways.
func TestAnOrdinaryUserNeedsALauncher(t *testing.T) {
	_, ann := newSandboxes(t), newTourist(t)
	for line, code := range map[string]int{
		"do -- true": 125, "up box": 1, "down box": 1, "changes box": 1, "list": 1, "exec box true": 255, "ps box": 1, "state box": 1,
	} {
		ann.refused(code, line, sharedSocket, "run this as root", "or ask root for a launcher with a rule")
	}
	ann.refused(125, "--socket /nope/x do -- true", "/nope/x", "or ask root for a launcher with a rule")
	ann.refused(125, "do --socket= -- true", "--socket is empty")
	if exists("/nope") {
		t.Error("/nope was made")
	}
	if got := ann.prints("do --local -- echo here"); got != "here\n" {
		t.Errorf("do --local: %q", got)
	}
}

// TestAnOrdinaryUserNeedsARule: a user in the group without a rule, and a user outside the group.
func TestAnOrdinaryUserNeedsARule(t *testing.T) {
	s, ann := tourWith(t)
	bob := *ann
	bob.uid, bob.groups = annID+1, []string{"--groups", strconv.Itoa(annID)}
	bob.refused(125, "do -- true", "no rule for user 4243", "run this as root", "or ask root for a rule")
	bob.groups = []string{"--clear-groups"}
	bob.refused(125, "do -- true", sharedSocket, "permission denied", "run this as root", "or ask root for")
	ann.refused(125, "do --memory 3g -- true", "refused")
	ann.refused(125, "do --workspace /usr -- true", "refused")

	// Ann does not see the sandboxes of root.
	s.up("roots")
	for line, code := range map[string]int{"exec roots true": 125, "state roots": 1, "down roots": 1, "delete roots": 1, "changes roots": 1} {
		ann.refused(code, line, "roots does not exist")
	}
	if got := ann.prints("list -q"); got != "" {
		t.Errorf("list: %q", got)
	}
}

// TestRootNamesASocket: the sandboxes of that launcher, and no others.
func TestRootNamesASocket(t *testing.T) {
	s := newSandboxes(t)
	l := s.launcher(filepath.Join(t.TempDir(), "s"))
	s.up("box")
	root := func(args ...string) result { return run(t, exec.Command(binary(t), args...)) }
	for _, args := range [][]string{{"--socket", l.socket, "list", "-q"}, {"list", "--socket", l.socket, "-q"}} {
		if got := root(args...); got.stdout != "box\n" {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := root("do", "--socket", l.socket, "--overlay", t.TempDir(), "--keep", "--", "true"); got.code != 0 ||
		!strings.Contains(got.stderr, "sandbox-runtime --socket "+l.socket) {
		t.Errorf("do --keep: %+v", got)
	}
	kept := strings.Fields(root("list", "--socket", l.socket, "-q").stdout)
	if got := root(append([]string{"--socket", l.socket, "down"}, kept...)...); got.code != 0 || len(kept) != 2 {
		t.Errorf("down %q: %+v", kept, got)
	}
	for _, name := range []string{"create", "run", "start", "kill", "events", "prune", "register", "checkpoint", "restore", "spec", "features"} {
		if got := root("--socket", l.socket, name, "box"); got.code == 0 || !strings.Contains(got.stderr, "--socket is not for "+name) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := root("--root", s.root, "--socket", l.socket, "down", "box"); got.code != 1 || !strings.Contains(got.stderr, "--socket and --root do not go together") {
		t.Errorf("two launchers: %+v", got)
	}
}

// TestALauncherWithRulesListensBesideTheStateRoot: where other users can reach the socket.
func TestALauncherWithRulesListensBesideTheStateRoot(t *testing.T) {
	leavesNothing(t)
	ann := newTourist(t)
	l := start(t, exec.Command(binary(t), "launcher", "--rules", ann.rule(), "--group", strconv.Itoa(annID)))
	eventually(t, "the launcher to listen", func() bool { return strings.Contains(l.stderr(), "listening") })
	var st unix.Stat_t
	if err := unix.Stat(sharedSocket, &st); err != nil || st.Gid != annID || st.Mode&0o777 != 0o660 {
		t.Errorf("group %d, mode %o, %v", st.Gid, st.Mode, err)
	}
	if got := ann.prints("list -q"); got != "" {
		t.Errorf("list: %q", got)
	}
	interrupt(t, l)
	if exists(sharedSocket) {
		t.Error("the socket is still there")
	}
	got := run(t, exec.Command(binary(t), "--root", t.TempDir(), "launcher", "--rules", ann.rule()))
	if got.code != 1 || !strings.Contains(got.stderr, "name a --socket") {
		t.Errorf("with --root: %+v", got)
	}
}
