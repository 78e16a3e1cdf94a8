package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Each exec is a process of its own on the host: what they share is kept by the
// sandbox.
func TestUpKeepsItsStateBetweenExecs(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	s.sh("box", "echo kept > file; mkdir /tmp/made; ln -s file link")
	s.asleep("box", "1004")
	if got := s.sh("box", "cat link; ls -d /tmp/made; grep -h sleep /proc/[0-9]*/comm"); got != "kept\n/tmp/made\nsleep\n" {
		t.Errorf("the second exec sees %q", got)
	}
	if got := run(t, s.command("down", "box")); got != (result{}) {
		t.Errorf("down: %+v", got)
	}
	if left := s.state(); len(left) != 0 {
		t.Errorf("down leaves %q", left)
	}
	s.up("box")
	if got := s.sh("box", "ls; ls /tmp; cat /proc/[0-9]*/comm | grep sleep | wc -l"); got != "0\n" {
		t.Errorf("a new sandbox of the same name has %q", got)
	}
}

// A program that the host installs, and one that it replaces, are there for the next command,
// although the sandbox has looked for both before.
func TestExecSeesWhatTheHostInstalls(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The test may write to this /usr.
	if err := unix.Mount("overlay", "/usr", "overlay", 0, "lowerdir=/usr,upperdir="+dir+"/upper,workdir="+dir+"/work"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/usr", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	install := func(name, script string) {
		t.Helper()
		at := filepath.Join("/usr/local/bin", name)
		if err := os.WriteFile(at+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".new", at); err != nil {
			t.Fatal(err)
		}
	}
	install("replaced-tool", "echo old")
	s.up("box")
	const both = "replaced-tool; new-tool 2>/dev/null || echo missing"
	if got := s.sh("box", both); got != "old\nmissing\n" {
		t.Errorf("before: %q", got)
	}
	install("replaced-tool", "echo replaced")
	install("new-tool", "echo new")
	if got := s.sh("box", both); got != "replaced\nnew\n" {
		t.Errorf("after: %q", got)
	}
	wantStatus(t, s.command("down", "box"), 0)
}

// What lives there is no reason for anything to stay, and the workspace does.
func TestDownLeavesNothing(t *testing.T) {
	s := newSandboxes(t)
	before, err := readHost()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s.up("box", "--workspace", dir, "--env", "A=b")
	s.sh("box", "echo $A > mine")
	for range 3 {
		s.detached("box", "trap '' TERM; (setsid sleep 1000 &); sleep 1000")
	}
	attached := start(t, s.command("exec", "box", "sh", "-c", "echo ready; exec sleep 1000")) // it would say that it cannot fork
	attached.prints("ready\n")
	if got := run(t, s.command("down", "box")); got != (result{}) {
		t.Errorf("down: %+v", got)
	}
	if got := attached.wait(); got.code != 137 || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("exec, as its sandbox went down: %+v", got)
	}
	if left := s.state(); len(left) != 0 {
		t.Errorf("left in the state root: %q", left)
	}
	if left := before.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	if got := content(t, filepath.Join(dir, "mine")); got != "b\n" {
		t.Errorf("the workspace has %q", got)
	}
}

// A mount keeps the directory that had the path at its begin: writes to a replaced workspace would go astray.
func TestUpNamesReplacedPathsOfTheHost(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	const note = "%s/%s: the host has moved, replaced or deleted this file or directory since the sandbox began; " +
		"the sandbox keeps the old one at %s; to use the present one, remove the sandbox with down and make it again\n"
	const said = "box is up already\n"
	flags := []string{"--workspace", dir + "/work", "--overlay", dir + "/tree", "--bind", dir + "/data:/data:rw", "--bind", dir + "/key:/key",
		"--bind", dir + "/other:/other"}
	script := func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		if got := run(t, cmd); got != (result{}) {
			t.Fatalf("%s: %+v", script, got)
		}
	}
	script("mkdir work tree data other; echo 1 > key")
	s.up("box", flags...)
	upAgain := func() result { return run(t, s.command(append(append([]string{"up"}, flags...), "box")...)) }
	if got, want := upAgain(), (result{0, "box\n", said}); got != want {
		t.Errorf("as before: %+v, want %+v", got, want)
	}
	script("mv work away; mkdir work; mv tree gone; mkdir tree; mv data moved; mkdir data; echo 2 > new; mv new key; touch other/file")
	want := result{0, "box\n", said + fmt.Sprintf(note, dir, "tree", dir+"/tree") + fmt.Sprintf(note, dir, "work", "/workspace") +
		fmt.Sprintf(note, dir, "data", "/data") + fmt.Sprintf(note, dir, "key", "/key")}
	if got := upAgain(); got != want {
		t.Errorf("replaced: %+v, want %+v", got, want)
	}
}

func TestUpReusesWhatIsUp(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "200m")
	file := func(config string) string {
		name := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--config " + name
	}
	same, other := file(`{"limits": {"memory": "200m"}}`), file(`{"limits": {"memory": "300m"}, "env": {"A": "b"}}`)
	pid := s.pid("box")
	s.sh("box", "echo kept > file")
	for flags, says := range map[string]string{
		"":                      "box is up already\n",
		"--memory 200m":         "box is up already\n",
		"--memory 204800k":      "box is up already\n",
		same:                    "box is up already\n",
		other:                   "box is up already; --config had no effect (to change the sandbox, first run: " + s.program() + " down box)\n",
		"--network full":        "box is up already; --network had no effect (to change the network of a sandbox that is up, see: " + s.program() + " network --help)\n",
		"--memory 1g --env A=b": "box is up already; --memory --env had no effect (to change the sandbox, first run: " + s.program() + " down box)\n",
	} {
		got := run(t, s.command(append(append([]string{"up"}, strings.Fields(flags)...), "box")...))
		if want := (result{0, "box\n", says}); got != want {
			t.Errorf("up %s: %+v, want %+v", flags, got, want)
		}
	}
	if now := s.pid("box"); now != pid || s.sh("box", "cat file") != "kept\n" {
		t.Errorf("PID %d was reused as %d", pid, now)
	}
}

// pid is that of a sandbox's first process.
func (s *sandboxes) pid(name string) int {
	s.t.Helper()
	var state containerState
	decode(s.t, s.oci("state", name).stdout, &state)
	return state.PID
}

func TestUpReplacesWhatIsNotHealthy(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	s.sh("box", "echo kept > file")
	pid := s.pid("box")
	killAndWait(t, pid)
	got := run(t, s.command("up", "box"))
	name := keptName(got.stderr)
	if got.code != 0 || got.stdout != "box\n" || name == "" {
		t.Errorf("up: %+v", got)
	}
	s.ok("snapshot", "--remove", name)
	if s.pid("box") == pid || s.sh("box", "ls") != "" {
		t.Error("the dead one was reused")
	}
}

// kill sends a signal to a process that is there.
func kill(t testing.TB, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil || pid < 2 {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// killAndWait kills a process and returns when it is dead.
func killAndWait(t testing.TB, pid int) {
	t.Helper()
	kill(t, pid, syscall.SIGKILL)
	eventually(t, fmt.Sprintf("%d is dead", pid), func() bool { return !alive(pid) })
}

// The sandbox knows of limits that the OCI command has changed, and its memory stays
// memory and swap: on cgroup v1 the one could not grow past the other.
func TestUpdateChangesASandboxsLimits(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "64m")
	hungry := []string{"box", "sh", "-c", "head -c 90m /dev/zero | tail -c 90m | wc -c"}
	if o := s.execJSON(hungry...); o.Stdout == "94371840\n" || !o.hit("limit", "64m") {
		t.Errorf("before: %+v", o)
	}
	for _, flags := range []string{"--memory 256m", "--memory 128m --memory-swap 128m --pids-limit 40"} {
		s.oci(append(append([]string{"update"}, strings.Fields(flags)...), "box")...)
	}
	if o := s.execJSON(hungry...); o.Stdout != "94371840\n" {
		t.Errorf("after: %+v", o)
	}
	var info struct {
		Config struct{ Limits map[string]any }
	}
	decode(t, run(t, s.command("up", "--json", "box")).stdout, &info)
	if l := info.Config.Limits; l["memory"] != "128m" || l["pids"] != 40.0 {
		t.Errorf("the sandbox says it has %v", l)
	}
	got := run(t, s.command("update", "--memory", "1k", "box"))
	if got.code != 1 || !strings.Contains(got.stderr, "--memory: 1k") {
		t.Errorf("too little: %+v", got)
	}
}

func TestUpdateTakesTheLimitFlagsOfUp(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	got := run(t, s.command("update", "--memory", "300m", "--cpus", "0.5", "--pids", "77", "--nofile", "99", "--file-size", "1m", "box"))
	if got != (result{}) {
		t.Errorf("update: %+v", got)
	}
	var info struct {
		Config struct{ Limits map[string]any }
	}
	decode(t, s.oci("inspect", "box").stdout, &info)
	l := info.Config.Limits
	if l["memory"] != "300m" || l["cpus"] != 0.5 || l["pids"] != 77.0 || l["nofile"] != 99.0 || l["file_size"] != "1m" {
		t.Errorf("the sandbox says it has %v", l)
	}
	if got := s.sh("box", "ulimit -n; ulimit -f"); got != "99\n2048\n" { // blocks of 512 bytes
		t.Errorf("a later command has %q", got)
	}
	for flags, says := range map[string]string{
		"--disk 2g":                  "--disk: cannot be changed after the creation of a sandbox; make another sandbox",
		"--cpus 9999":                "--cpus: 9999 is not between 0.01 and 4096",
		"--cpus x":                   `--cpus: cpus "x": write it like 0.5, 1 or 2.5`,
		"--cpus 1 --cpu-quota 50000": `--cpus and --cpu-quota do not go together: for a sandbox use the flags of "up"`,
	} {
		got := run(t, s.command(append(append([]string{"update"}, strings.Fields(flags)...), "box")...))
		if got != (result{1, "", "sandbox-runtime: " + says + "\n"}) {
			t.Errorf("update %s: %+v", flags, got)
		}
	}
	if got := run(t, s.command("update", "--cpus", "1", "nope")); got.code != 1 || strings.Count(got.stderr, "\n") != 1 ||
		!strings.HasPrefix(got.stderr, "sandbox-runtime: nope does not exist") {
		t.Errorf("an unknown name: %+v", got)
	}
}

// Above the sandbox's limit that of a command would have no effect, and raising it none either.
func TestExecRefusesALimitAboveTheSandboxs(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "300m", "--nofile", "100")
	for _, flag := range []string{"--memory 4g", "--nofile 200", "--pids 513", "--cpus 2"} {
		args := append(append([]string{"exec"}, strings.Fields(flag)...), "box", "true")
		got := run(t, s.command(args...))
		raise := s.program() + " update " + flag + " box"
		if got.code != 125 || !strings.HasPrefix(got.stderr, "sandbox-runtime: "+flag+" is above the limit of the sandbox, which is ") ||
			!strings.HasSuffix(got.stderr, "raise that first: "+raise+"\n") {
			t.Errorf("%s: %+v", flag, got)
		}
		if got := run(t, s.command(append(append([]string{"update"}, strings.Fields(flag)...), "box")...)); got.code != 0 {
			t.Errorf("update %s: %+v", flag, got)
		}
		if got := run(t, s.command(args...)); got != (result{}) {
			t.Errorf("%s after the update: %+v", flag, got)
		}
	}
}

// A sandbox that somebody holds keeps what it has.
func TestUpDoesNotReplaceAPausedOne(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	s.sh("box", "echo kept > file")
	s.oci("pause", "box")
	got := run(t, s.command("up", "box"))
	if want := (result{0, "box\n", "box is up already, paused (to go on: " + s.program() + " resume box)\n"}); got != want {
		t.Errorf("up of a paused one: %+v", got)
	}
	s.oci("resume", "box")
	if got := s.sh("box", "cat file"); got != "kept\n" {
		t.Errorf("after it: %q", got)
	}
}

func TestUpOfOneNameAtOnceIsOneSandbox(t *testing.T) {
	s := newSandboxes(t)
	t.Cleanup(func() { s.downIfUp("box") })
	var all []*testProcess
	for range 8 {
		all = append(all, start(t, s.command("up", "box")))
	}
	made := 0
	for _, p := range all {
		got := p.wait()
		if got.code != 0 || got.stdout != "box\n" {
			t.Errorf("up: %+v", got)
		}
		if got.stderr == "" {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d of them say that they made it", made)
	}
	if got := s.oci("list", "-q").stdout; got != "box\n" {
		t.Errorf("list: %q", got)
	}
	s.sh("box", "true")
}

// Whoever wins, each says what is so, and the end is one sandbox or none.
func TestUpAndDownOfOneNameAtOnce(t *testing.T) {
	s := newSandboxes(t)
	t.Cleanup(func() { s.downIfUp("box") })
	for range 5 {
		ups, downs := start(t, s.command("up", "box")), start(t, s.command("down", "box"))
		execs := start(t, s.command("exec", "box", "true"))
		for _, p := range []*testProcess{ups, downs, execs} {
			if got := p.wait(); got.code != 0 && strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%q: %+v", p.cmd.Args[3:], got)
			}
		}
		if got := run(t, s.command("up", "box")); got.code != 0 {
			t.Errorf("up afterwards: %+v", got)
		}
		s.sh("box", "true")
	}
}

func TestUpPrintsWhatItIs(t *testing.T) {
	s := newSandboxes(t)
	t.Cleanup(func() { s.downIfUp("box") })
	for _, reused := range []bool{false, true} {
		got := run(t, s.command("up", "--json", "--memory", "200m", "box"))
		var info struct {
			ID, Status, Isolation string
			Reused                bool
			Pid                   int
			Created               string
			Config                struct {
				Limits struct{ Memory, Pids json.RawMessage }
			}
			Limits struct{ Memory string }
		}
		decode(t, got.stdout, &info)
		if info.ID != "box" || info.Status != "running" || info.Isolation != "full" || info.Reused != reused || info.Pid != s.pid("box") || info.Created == "" ||
			string(info.Config.Limits.Memory) != `"200m"` || string(info.Config.Limits.Pids) != "512" || info.Limits.Memory != "enforced" {
			t.Errorf("got %s", got.stdout)
		}
	}
}

func TestDownTellsWhatThereIsNot(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	got := run(t, s.command("down", "nobody", "box", "../box"))
	if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "nobody does not exist") || !strings.Contains(got.stderr, "../box") {
		t.Errorf("got %+v", got)
	}
	if left := s.state(); len(left) != 0 {
		t.Errorf("the other one was not removed: %q", left)
	}
	if got := run(t, s.command("down")); got.code != 1 || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("down of nothing: %+v", got)
	}
}

func TestDownLeavesContainersAlone(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	r.create(newBundle(t, []string{"sleep", "1000"}), "c")
	got := run(t, r.bare("--root", r.root, "down", "c"))
	if got.code != 1 || !strings.Contains(got.stderr, "c is a container") {
		t.Errorf("down: %+v", got)
	}
	if got := run(t, r.bare("--root", r.root, "up", "c")); got.code != 1 || !strings.Contains(got.stderr, "exists already") {
		t.Errorf("up: %+v", got)
	}
	if r.state("c").Status != "created" {
		t.Error("the container is not as it was")
	}
}

func TestDownOfAHalfDeadSandbox(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, s *sandboxes, dir string){
		"its first process was killed": func(t *testing.T, s *sandboxes, _ string) { killAndWait(t, s.pid("box")) },
		"it is paused":                 func(_ *testing.T, s *sandboxes, _ string) { s.oci("pause", "box") },
		"deleted as a container":       func(_ *testing.T, s *sandboxes, _ string) { s.oci("delete", "--force", "box") },
		"without its record":           func(t *testing.T, _ *sandboxes, dir string) { remove(t, filepath.Join(dir, "sandbox.json")) },
		"its record is damaged":        func(t *testing.T, _ *sandboxes, dir string) { overwrite(t, filepath.Join(dir, "sandbox.json")) },
		"without its socket":           func(t *testing.T, _ *sandboxes, dir string) { remove(t, filepath.Join(dir, "agent.sock")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandboxes(t)
			s.up("box")
			s.detached("box", "sleep 1000")
			dir := filepath.Join(s.root, "@sandboxes", "box")
			harm(t, s, dir)
			if got := s.exec("box", "true"); got.code < 125 || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("exec: %+v", got)
			}
			if got := run(t, s.command("down", "box")); got.code != 0 && exists(dir) {
				t.Errorf("down: %+v", got)
			}
			if left := s.state(); len(left) != 0 {
				t.Errorf("left in the state root: %q", left)
			}
		})
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t testing.TB, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(`{"version":`), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A sandbox of up is a container to the commands of containers.
func TestUpIsAContainerToOCICommands(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	s.detached("box", "exec sleep 1005")
	var list []containerState
	decode(t, s.oci("list", "--format", "json").stdout, &list)
	if len(list) != 1 || list[0].ID != "box" || list[0].Status != "running" || list[0].PID != s.pid("box") {
		t.Errorf("list: %+v", list)
	}
	if got := s.oci("ps", "box").stdout; !strings.Contains(got, "sleep 1005") {
		t.Errorf("ps: %q", got)
	}
	s.oci("update", "--memory", "300m", "--memory-swap", "300m", "box")
	if got := s.oci("events", "--stats", "box").stdout; !strings.Contains(got, fmt.Sprint(300<<20)) {
		t.Errorf("events: %q", got)
	}
	if got := run(t, s.command("delete", "box")); got.code != 1 || !strings.Contains(got.stderr, "not stopped: running") {
		t.Errorf("delete of a running one: %+v", got)
	}
	s.oci("kill", "box", "KILL")
	eventually(t, "it has stopped", func() bool { return strings.Contains(s.oci("state", "box").stdout, `"status": "stopped"`) })
	s.oci("delete", "box")
	if left := s.state(); len(left) != 0 {
		t.Errorf("delete leaves %q", left)
	}
}

// upRefusals are arguments of up that it must refuse, and what its one line must
// say. What describes the sandbox is refused as do does.
var upRefusals = []struct{ args, says string }{
	{"", "name"},
	{"a b", "name"},
	{"-it box", "--interactive.*exec|--tty.*exec"},
	{"--local box", "--local"},
	{"--nonsense box", "--nonsense"},
	{"--memory 12x box", "12x"},
	{"--workspace /etc box", "/etc"},
	{"--overlay /proc box", "overlay /proc is forbidden"},
	{"--config /nowhere box", "/nowhere"},
	{"-- ../box", "../box"},
	{"@box", "@box"},
	{"-- -box", "-box"},
	{strings.Repeat("x", 300), "xxx"},
	{"a/b", "a/b"},
	{".", `"\."`},
}

func TestUpRefusesBadInput(t *testing.T) {
	for _, row := range upRefusals {
		t.Run(fmt.Sprintf("%.20s", row.args), func(t *testing.T) {
			s := newSandboxes(t)
			got := run(t, s.command(append([]string{"up"}, strings.Fields(row.args)...)...))
			got.code += 124 // as do's
			wantRefusal(t, got, row.says)
		})
	}
}

// prune leaves what stays up alone, and takes what its PID 1 has left.
func TestPruneSparesWhatIsUp(t *testing.T) {
	s := newSandboxes(t)
	s.up("living")
	s.up("dead")
	s.sh("living", "echo kept > file")
	kill(t, s.pid("dead"), syscall.SIGKILL)
	eventually(t, "prune takes the dead one", func() bool {
		return strings.Contains(run(t, s.command("prune")).stdout, "removed dead\n")
	})
	if s.sh("living", "cat file") != "kept\n" {
		t.Error("the living one is another")
	}
	if ids := strings.Fields(s.oci("list", "-q").stdout); !slices.Equal(ids, []string{"living"}) {
		t.Errorf("list: %q", ids)
	}
}

// A name or a path that is not there gets an answer that says so.
func TestUnknownNamesOfASandboxAreSaid(t *testing.T) {
	s := newSandboxes(t)
	for _, name := range []string{"h", "help"} {
		s.up(name) // the names are words of the command line, too
	}
	if names := s.names(); !slices.Contains(names, "h") || !slices.Contains(names, "help") {
		t.Fatalf("up are %q", names)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.up("box", "--overlay", dir)
	if got := s.oci("changes", "box"); got != (result{}) {
		t.Errorf("without changes: %+v", got)
	}
	s.sh("box", "touch "+dir+"/made")
	made := s.oci("changes", "--json", "box").stdout
	for _, test := range []struct {
		args []string
		want result
	}{
		{[]string{"attach", "box", "bogus"}, result{125, "", "sandbox-runtime: sandbox box: detached exec \"bogus\" does not exist; a command whose result a client has got is forgotten, ps --execs shows the others\n"}},
		{[]string{"changes", "box", "nothere"}, result{1, "", "sandbox-runtime: \"nothere\" does not exist, and nothing has changed at it\n"}},
		{[]string{"changes", "box", "there"}, result{0, "", "nothing has changed at \"there\"\n"}},
		{[]string{"changes", "--json", "box", "made", "nothere", "there"}, result{1, made + `{"note":"nothing has changed at \"there\""}` + "\n", "sandbox-runtime: \"nothere\" does not exist, and nothing has changed at it\n"}},
		{[]string{"up", "--memory", "0", "b"}, result{1, "", "sandbox-runtime: --memory: 0 is too little; give more than 0, or leave the flag out for the default\n"}},
	} {
		if got := run(t, s.command(test.args...)); got != test.want {
			t.Errorf("%q: %+v", test.args, got)
		}
	}
}

// up replaces a sandbox that has ended. Too few descriptors do not show that the sandbox has ended.
func TestUpReplacesNoSandboxForWantOfDescriptors(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--storage", "memory")
	s.sh("box", "echo precious > file")
	refused := 0
	for n := 6; n <= 40; n++ {
		up := s.command("up", "--storage", "memory", "box")
		up.Path, up.Args = "/bin/sh", append([]string{"sh", "-c", `ulimit -n "$0"; exec "$@"`, fmt.Sprint(n)}, up.Args...)
		got := run(t, up)
		if got.code != 0 {
			refused++
		}
		if file := s.sh("box", "cat file"); file != "precious\n" {
			t.Fatalf("with %d descriptors: %+v, and the file is %q", n, got, file)
		}
	}
	if refused == 0 || refused == 35 {
		t.Errorf("%d of 35 refused", refused)
	}
}
