package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// docker29Variable chooses dockerd 29 for all tests with Docker: make test-docker29.
const docker29Variable = "SANDBOX_RUNTIME_INTEGRATION_DOCKER29"

func onDocker29() bool { return os.Getenv(docker29Variable) != "" }

// docker29Cases are those of all cases that need most of the runtime and of the daemon's
// way to talk to it: make test has no time for all of them.
var docker29Cases = []string{
	// engineCases
	"prints and returns 0",
	"not found is 127",
	"has a terminal",
	"memory limit kills with 137",
	"exec returns its status",
	// cliCases
	"namespaces are its own",
	"the default profile holds for exec",
	"a profile's system calls are denied",
	"update of limits is in force",
	"memory exceeded is told as OOMKilled",
	"forks beyond the limit of pids are refused",
	"stats count memory, tasks and time",
	"pause stops time, unpause goes on",
	"stop kills what ignores TERM",
	"restart keeps its files",
	"exec with user, environment and folder",
	"published port is reached from the host",
	"network shared with a container",
	"healthy, then not",
	"build runs, copies and sets",
}

// TestDocker29 has the most telling cases with dockerd 29; make test-docker29 has all.
func TestDocker29(t *testing.T) {
	leavesNothing(t)
	need(t, peers(), docker29())
	if onDocker29() {
		t.Skip("all cases run with dockerd 29")
	}
	d := &docker{home: t.TempDir(), folder: docker29Folder()}
	d.start(t)
	importRoot(t, d.client("import", "-", "busybox"))
	if got := run(t, d.client("version", "--format", "{{.Server.APIVersion}}")); got.code != 0 || got.stdout < "1.52" {
		t.Errorf("the API of dockerd: %+v", got)
	}
	ran := testEngine(t, d, docker29Cases...) + testCLI(d.cli(t), docker29Cases...)
	if ran != len(docker29Cases) {
		t.Errorf("%d of %d cases ran", ran, len(docker29Cases))
	}
}

// TestDocker29BuildKit: the steps of a build run with the program that the variable
// DOCKER_BUILDKIT_RUNC_COMMAND of dockerd names (docs/docker.md).
func TestDocker29BuildKit(t *testing.T) {
	leavesNothing(t)
	need(t, peers(), docker29())
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	d := &docker{home: t.TempDir(), folder: docker29Folder(), runc: filepath.Join(dir, "program")}
	if err := os.WriteFile(d.runc, []byte("#!/bin/sh\necho \"$@\" >> "+calls+"\nexec "+binary(t)+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.start(t)
	importRoot(t, d.client("import", "-", "busybox"))
	c := d.cli(t)
	t.Cleanup(c.removeAll)
	build := func(steps string) result {
		folder := t.TempDir()
		write(c, filepath.Join(folder, "Dockerfile"), "FROM busybox\n"+steps)
		cmd := d.client("build", "--progress", "plain", "--tag", "built", folder)
		cmd.Env = append(cmd.Env, "DOCKER_BUILDKIT=1")
		return run(t, cmd)
	}
	if got := build("RUN mkdir /made && chown user /made\nWORKDIR /made\nUSER user\nRUN id -u > whoami; ! touch /new\n"); got.code != 0 {
		t.Fatalf("build: %+v", got)
	}
	c.want(run(t, d.client("run", "--rm", "built", "cat", "/made/whoami")), "1000\n")
	if got := content(t, calls); strings.Count(got, "run --bundle ") != 2 {
		t.Errorf("BuildKit called %s", got)
	}
	if got := build("RUN exit 9\n"); got.code == 0 || !strings.Contains(got.stderr, "exit code: 9") {
		t.Errorf("a step that fails: %+v", got)
	}
}

// docker29Folder is where setup-docker29 put dockerd, empty if it did not run.
var docker29Folder = sync.OnceValue(func() string {
	path, err := exec.Command("./setup-docker29", "-n").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(path))
})

// docker29 says that setup-docker29 did not run.
func docker29() string {
	if docker29Folder() == "" {
		return "no dockerd 29: run integration/setup-docker29"
	}
	return ""
}

// newDocker is a docker that has not started: dockerd 20.10 of Debian, or dockerd 29.
func newDocker(t *testing.T) *docker {
	t.Helper()
	d := &docker{home: t.TempDir()}
	if onDocker29() {
		need(t, docker29())
		d.folder = docker29Folder()
	}
	return d
}

// daemon is dockerd, and its environment.
func (d *docker) daemon(flags ...string) *exec.Cmd {
	if d.folder == "" {
		cmd := exec.Command(peer("usr/sbin/dockerd"), flags...)
		cmd.Env = peerEnvironment(d.home)
		return cmd
	}
	cmd := exec.Command(filepath.Join(d.folder, "dockerd"), flags...)
	for _, e := range peerEnvironment(d.home) {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			e = "PATH=" + d.folder + ":" + path
		}
		cmd.Env = append(cmd.Env, e)
	}
	if d.runc != "" {
		cmd.Env = append(cmd.Env, "DOCKER_BUILDKIT_RUNC_COMMAND="+d.runc)
	}
	return cmd
}
