package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// containerd is a containerd of the test's own, used through ctr.
type containerd struct{ home, runtime, root string }

func TestContainerd(t *testing.T) {
	leavesNothing(t)
	need(t, peers())
	testEngine(t, startContainerd(t))
}

// startContainerd starts containerd with everything it writes below a folder
// of the test's, but for what its shims keep in /run/containerd.
func startContainerd(t *testing.T) *containerd {
	t.Helper()
	root, err := busyboxRoot()
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{home: t.TempDir(), runtime: binary(t), root: root}
	config := filepath.Join(c.home, "config.toml")
	settings := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = %q
[plugins."io.containerd.internal.v1.opt"]
  path = %q
`, filepath.Join(c.home, "root"), filepath.Join(c.home, "state"), c.socket(), filepath.Join(c.home, "opt"))
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(peer("usr/bin/containerd"), "--config", config)
	cmd.Env = peerEnvironment(c.home)
	process := daemon(t, cmd, func() { removeGround(t, "default", "/run/containerd") })
	eventually(t, "containerd answers", func() bool {
		if process.ended() {
			t.Fatalf("containerd: %s", lastLines(process.stderr(), 20))
		}
		return c.client("version").Run() == nil
	})
	return c
}

func (c *containerd) socket() string { return filepath.Join(c.home, "s") }

func (c *containerd) client(args ...string) *exec.Cmd {
	cmd := exec.Command(peer("usr/bin/ctr"), append([]string{"--address", c.socket()}, args...)...)
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
		return c.client(append(args, "--config", userConfig(t, c.root, what), what.id)...)
	}
	if what.memory != "" {
		args = append(args, "--memory-limit", what.memory)
	}
	args = append(args, "--rootfs", c.root, what.id)
	return c.client(append(args, what.args...)...)
}

// userConfig writes a config.json for a container with a user.
func userConfig(t *testing.T, root string, what container) string {
	t.Helper()
	spec := ocibundle.DockerSpec(root, what.args)
	if _, err := fmt.Sscanf(what.user, "%d:%d", &spec.Process.User.UID, &spec.Process.User.GID); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
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
