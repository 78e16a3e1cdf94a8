package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// sleeper returns a runtime with a running container "c" to exec in.
func sleeper(t *testing.T) (*ociRuntime, *bundle) {
	t.Helper()
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sleep", "1000"})
	r.started(b)
	return r, b
}

// processFile writes a process.json as Docker's shim does.
func processFile(t *testing.T, b *bundle, args []string, change func(*specs.Process)) string {
	t.Helper()
	p := *b.spec.Process
	p.Args = args
	if change != nil {
		change(&p)
	}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "process.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExecReturnsTheCommandsStatus(t *testing.T) {
	r, _ := sleeper(t)
	for script, want := range map[string]result{
		"exit 0":                       {0, "", ""},
		"exit 7":                       {7, "", ""},
		"kill -9 $$":                   {137, "", ""},
		"echo out; echo err >&2":       {0, "out\n", "err\n"},
		"cat /proc/1/comm; id -u; pwd": {0, "sleep\n0\n/\n", ""},
	} {
		if got := run(t, r.command("exec", "c", "sh", "-c", script)); got != want {
			t.Errorf("%s: %+v, want %+v", script, got, want)
		}
	}
}

func TestExecTakesUserEnvironmentAndDirectory(t *testing.T) {
	r, _ := sleeper(t)
	cmd := r.command("exec", "--user", "1000:1001", "--env", "A=b", "--cwd", "/tmp", "c", "sh", "-c", "id -u; id -g; echo $A; pwd; cat")
	cmd.Stdin = strings.NewReader("stdin\n")
	if got, want := run(t, cmd), (result{0, "1000\n1001\nb\n/tmp\nstdin\n", ""}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// docker exec -d, and every docker exec: the shim always detaches.
func TestExecDetachedAsDockerCallsIt(t *testing.T) {
	r, b := sleeper(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	process := processFile(t, b, []string{"sleep", "2000"}, nil)
	r.run("exec", "--process", process, "--detach", "--pid-file", pidFile, "c")
	pid, err := strconv.Atoi(content(t, pidFile))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return content(t, "/proc/"+strconv.Itoa(pid)+"/cmdline") == "sleep\x002000\x00" })
	r.run("delete", "--force", "c")
	eventually(t, "it ends with its container", func() bool { return !alive(pid) })
}

func TestExecOnATerminal(t *testing.T) {
	r, b := sleeper(t)
	socket := listenForConsole(t)
	process := processFile(t, b, []string{"sh", "-c", "tty; stty size; read line; echo \"got $line\""}, func(p *specs.Process) {
		p.Terminal = true
		p.ConsoleSize = &specs.Box{Height: 44, Width: 88}
	})
	r.run("exec", "--process", process, "--console-socket", socket.path, "--detach", "--pid-file", filepath.Join(t.TempDir(), "pid"), "c")
	console := socket.receive(t)
	console.shows(t, "/dev/pts/")
	console.shows(t, "44 88")
	console.typeIn(t, "hello\n")
	console.shows(t, "got hello")
}

func TestExecPreservesDescriptors(t *testing.T) {
	r, _ := sleeper(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := r.command("exec", "--preserve-fds", "1", "c", "sh", "-c", "echo through >&3")
	cmd.ExtraFiles = []*os.File{f}
	if got := run(t, cmd); got.code != 0 || content(t, f.Name()) != "through\n" {
		t.Errorf("got %+v, file %q", got, content(t, f.Name()))
	}
}

func TestExecStaysInsideTheContainersWalls(t *testing.T) {
	r, _ := sleeper(t)
	script := "for n in pid net ipc uts mnt; do test $(readlink /proc/self/ns/$n) = $(readlink /proc/1/ns/$n) || echo differs: $n; done;" +
		"grep CapBnd /proc/self/status; cmp /proc/self/cgroup /proc/1/cgroup"
	got := r.run("exec", "c", "sh", "-c", script)
	if want := "CapBnd:\t00000000a80425fb\n"; got.stdout != want {
		t.Errorf("%q, want %q; stderr %s", got.stdout, want, got.stderr)
	}
}
