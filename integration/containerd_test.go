package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// containerd is a containerd of the test's own, used through ctr.
type containerd struct {
	t                   *testing.T // whose end stops it
	home, runtime, root string
	folder              string // of a containerd that is not Debian's
	settings            string // path of config.toml
	process             *testProcess
	insides             int // containers of inside
}

func TestContainerd(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers())
	testEngine(t, startContainerd(t))
}

// startContainerd starts containerd with everything it writes below a folder
// of the test's, but for what its shims keep in /run/containerd. More settings
// may be given; without any, the CRI plugin is off. It has the tests' patience:
// what it gives up after some seconds, a task among it, is lost.
func startContainerd(t *testing.T, settings ...string) *containerd {
	t.Helper()
	root, err := busyboxRoot()
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{t: t, home: openFolder(t), runtime: binary(t), root: root}
	if len(settings) == 0 {
		settings = []string{`disabled_plugins = ["io.containerd.grpc.v1.cri"]`}
	}
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
%s
[grpc]
  address = %q
[plugins."io.containerd.internal.v1.opt"]
  path = %q
[timeouts]
  "io.containerd.timeout.shim.cleanup" = %[6]q
  "io.containerd.timeout.shim.load" = %[6]q
  "io.containerd.timeout.shim.shutdown" = %[6]q
  "io.containerd.timeout.task.state" = %[6]q
`, filepath.Join(c.home, "root"), filepath.Join(c.home, "state"), strings.Join(settings, "\n"), c.socket(), filepath.Join(c.home, "opt"), patience)
	c.settings = filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(c.settings, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.start(t)
	return c
}

// start starts the daemon, and stops it at the test's end.
func (c *containerd) start(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { // after the process was stopped
		removeGround(t, "default", "/run/containerd")
		if t.Failed() && c.process != nil {
			t.Logf("containerd: %s", lastLines(c.process.stderr(), 40))
		}
	})
	t.Cleanup(func() { // whichever process it is by then: tests restart it
		if c.process != nil {
			interrupt(t, c.process)
		}
	})
	c.launch(t)
}

// openFolder is a temporary folder with a short path, for sockets, that the
// ids of user namespaces can walk through.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// launch starts the daemon, also anew where one ran before.
func (c *containerd) launch(t *testing.T) {
	t.Helper()
	cmd := exec.Command(c.program("containerd"), "--config", c.settings)
	cmd.Env = c.withRunc(t, peerEnvironment(c.home))
	c.process = begin(c.t, cmd)
	eventually(t, "containerd answers", func() bool {
		if c.process.ended() {
			t.Fatalf("containerd: %s", lastLines(c.process.stderr(), 20))
		}
		return c.client("version").Run() == nil
	})
}

// withRunc puts the binary into an environment's PATH by the name of runc, for
// where nobody names a runtime: ctr forgets --runc-binary where the container
// has a user namespace.
func (c *containerd) withRunc(t *testing.T, environment []string) []string {
	t.Helper()
	dir := filepath.Join(c.home, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(c.runtime, filepath.Join(dir, "runc")); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	for i, variable := range environment {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			if c.folder != "" { // its shim, not that of Debian's containerd
				path = c.folder + ":" + path
			}
			environment[i] = "PATH=" + dir + ":" + path
		}
	}
	return environment
}

func (c *containerd) socket() string { return filepath.Join(c.home, "s") }

// program is the path of containerd or ctr.
func (c *containerd) program(name string) string {
	if c.folder == "" {
		return peer("usr/bin/" + name)
	}
	return filepath.Join(c.folder, name)
}

func (c *containerd) client(args ...string) *exec.Cmd {
	cmd := exec.Command(c.program("ctr"), append([]string{"--address", c.socket()}, args...)...)
	cmd.Env = peerEnvironment(c.home)
	return cmd
}

func (c *containerd) run(t *testing.T, what container) *exec.Cmd {
	args := []string{"run", "--runtime", "io.containerd.runc.v2", "--runc-binary", c.runtime, "--env", "PATH=/bin"} // --rootfs comes without an environment
	if what.detach {
		args = append(args, "--detach")
	} else {
		args = append(args, "--rm")
	}
	if what.tty {
		args = append(args, "--tty")
	}
	if what.user != "" { // ctr run has no --user
		config := c.config(t, what.args, func(s *specs.Spec) {
			if _, err := fmt.Sscanf(what.user, "%d:%d", &s.Process.User.UID, &s.Process.User.GID); err != nil {
				t.Fatal(err)
			}
		})
		return c.client(append(args, "--config", config, what.id)...)
	}
	if what.memory != "" {
		args = append(args, "--memory-limit", what.memory)
	}
	args = append(args, "--rootfs", c.root, what.id)
	return c.client(append(args, what.args...)...)
}

func (c *containerd) exec(id string, tty bool, args ...string) *exec.Cmd {
	flags := []string{"task", "exec", "--exec-id", "e"}
	if tty {
		flags = append(flags, "--tty")
	}
	return c.client(append(append(flags, id), args...)...)
}

func (c *containerd) kill(id string) *exec.Cmd { return c.client("task", "kill", "--signal", "9", id) }

func (c *containerd) remove(id string) *exec.Cmd { return c.client("container", "rm", id) }

// status removes the stopped task: only that tells its status, in a warning.
func (c *containerd) status(t *testing.T, id string) int {
	t.Helper()
	eventually(t, "task "+id+" stopped", func() bool {
		for line := range strings.Lines(run(t, c.client("task", "ls")).stdout) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == id {
				return f[2] == "STOPPED"
			}
		}
		return false
	})
	got := run(t, c.client("task", "rm", id))
	_, warning, _ := strings.Cut(got.stderr, "exit with non-zero exit code ")
	var status int
	if _, err := fmt.Sscanf(warning, "%d", &status); err != nil {
		t.Fatalf("task rm: %+v", got)
	}
	return status
}

// ctr knows no statuses of a shell for what could not start.
func (c *containerd) startFailure(int) int { return 1 }

// config writes a config.json, for what ctr run has no option for.
func (c *containerd) config(t *testing.T, args []string, changes ...func(*specs.Spec)) string {
	t.Helper()
	return filepath.Join(newBundle(t, args, changes...).dir, "config.json")
}

// configured runs a script in a container with a changed specification. What
// it prints, on both streams, is in stdout.
func (c *containerd) configured(t *testing.T, script string, changes ...func(*specs.Spec)) result {
	t.Helper()
	config := c.config(t, []string{"sh", "-c", livesOn("exec 2>&1; " + script)}, changes...)
	text, status := c.logged(t, "configured", func(flags ...string) *exec.Cmd {
		return c.client(append(append([]string{"run", "--runc-binary", c.runtime}, flags...), "--config", config, "configured")...)
	})
	return result{code: status, stdout: text}
}

// logged starts a container whose script lives on, by a command that takes the
// flags, and returns what is in its log. It goes through a file: ctr loses what a
// container prints that ends soon. The test's end removes the container.
func (c *containerd) logged(t *testing.T, id string, command func(flags ...string) *exec.Cmd) (text string, status int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	t.Cleanup(func() { c.discard(id) })
	cmd := command("--detach", "--log-uri", "file://"+log)
	if got := run(t, cmd); got.code != 0 {
		t.Fatalf("%q: %+v", cmd.Args, got)
	}
	return told(t, func() string { return content(t, log) })
}
