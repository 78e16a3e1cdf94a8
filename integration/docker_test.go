package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// docker is a dockerd of the test's own.
type docker struct {
	home    string
	folder  string   // of a dockerd that is not Debian's
	runc    string   // the program that BuildKit calls; runc of PATH if empty
	host    *os.File // dockerd's network namespace; nil is a new one
	process *testProcess
}

func TestDocker(t *testing.T) {
	leavesNothing(t)
	need(t, peers())
	d := startDocker(t)
	_, _, commit := parseVersion(run(t, exec.Command(binary(t), "--version")).stdout)
	if got := run(t, d.client("info", "--format", "{{.RuncCommit.ID}}")); got.code != 0 || got.stdout != commit+"\n" {
		t.Errorf("docker info: commit %+v, want %q", got, commit)
	}
	testEngine(t, d)
	testCLI(d.cli(t))
}

// startDocker starts dockerd with everything it writes below a folder of the
// test's, and imports busybox as an image.
func startDocker(t *testing.T, flags ...string) *docker {
	t.Helper()
	d := newDocker(t)
	d.start(t, flags...)
	importRoot(t, d.client("import", "-", "busybox"))
	return d
}

// start starts dockerd with the binary as default runtime, in its network
// namespace.
func (d *docker) start(t *testing.T, flags ...string) {
	t.Helper()
	config := filepath.Join(d.home, "daemon.json") // instead of the host's
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := d.daemon(append([]string{
		"--config-file", config, "--host", d.socket(),
		"--data-root", filepath.Join(d.home, "data"), "--exec-root", filepath.Join(d.home, "exec"), "--pidfile", filepath.Join(d.home, "pid"),
		"--add-runtime", "sandbox=" + binary(t), "--default-runtime", "sandbox", "--exec-opt", "native.cgroupdriver=cgroupfs",
	}, flags...)...)
	if d.host == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	} else {
		environment := cmd.Env
		cmd = netnstest.Command(cmd, d.host)
		cmd.Env = environment
	}
	d.process = daemon(t, cmd, func() { d.removeGround(t) })
	eventually(t, "dockerd answers", func() bool {
		if d.process.ended() {
			t.Fatalf("dockerd: %s", lastLines(d.process.stderr(), 20))
		}
		return d.client("version").Run() == nil
	})
}

func (d *docker) removeGround(t *testing.T) {
	t.Helper()
	// Mounted for containers in Docker's own network namespace, and for any
	// that live on without it.
	for _, mount := range []string{"exec/netns/default", "data"} {
		if err := unix.Unmount(filepath.Join(d.home, mount), 0); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			t.Errorf("unmount %s: %v", mount, err)
		}
	}
	removeGround(t, "docker", "/run/docker", "/run/containerd")
}

func (d *docker) socket() string { return "unix://" + filepath.Join(d.home, "s") }

func (d *docker) client(args ...string) *exec.Cmd {
	cmd := exec.Command(peer("usr/bin/docker"), append([]string{"--host", d.socket()}, args...)...)
	cmd.Env = append(peerEnvironment(d.home), "DOCKER_BUILDKIT=0") // dockerd 29 would say 1
	return cmd
}

func (d *docker) cli(t *testing.T) cli {
	return cli{t, "docker", d.client, d.process.cmd.Process.Pid}
}

func (d *docker) run(_ *testing.T, c container) *exec.Cmd {
	return d.client(c.dockerRun()...)
}

// dockerRun is how the container is run, in the words of docker and podman.
func (c container) dockerRun() []string {
	args := []string{"run", "--name", c.id}
	if c.detach {
		args = append(args, "--detach")
	} else {
		args = append(args, "--rm")
	}
	if c.stdin {
		args = append(args, "--interactive")
	}
	if c.tty {
		args = append(args, "--tty")
	}
	if c.user != "" {
		args = append(args, "--user", c.user)
	}
	if c.memory != "" {
		args = append(args, "--memory", c.memory)
	}
	return append(append(args, "busybox"), c.args...)
}

func (d *docker) exec(id string, tty bool, args ...string) *exec.Cmd {
	return d.client(dockerExec(id, tty, args)...)
}

func dockerExec(id string, tty bool, args []string) []string {
	flags := []string{"exec"}
	if tty {
		flags = append(flags, "--interactive", "--tty")
	}
	return append(append(flags, id), args...)
}

func (d *docker) kill(id string) *exec.Cmd   { return d.client("kill", id) }
func (d *docker) remove(id string) *exec.Cmd { return d.client("rm", id) }

func (d *docker) status(t *testing.T, id string) int {
	t.Helper()
	return printedStatus(t, run(t, d.client("wait", id)))
}

func printedStatus(t *testing.T, got result) int {
	t.Helper()
	status, err := strconv.Atoi(strings.TrimSpace(got.stdout))
	if err != nil {
		t.Fatalf("wait: %+v", got)
	}
	return status
}

func (d *docker) startFailure(status int) int { return status }
