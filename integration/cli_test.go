package integration

import (
	"hash/crc32"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A cli is an engine used through Docker's command line, which podman has too:
// one set of cases serves both.
type cli struct {
	*testing.T
	name    string // docker or podman
	command func(args ...string) *exec.Cmd
	pid     int // of a process in the engine's namespaces
}

// A cliCase runs for one engine where only names it, and for both if empty.
type cliCase struct {
	name string
	only string
	test func(cli)
}

// enginesVariable being "all" has each engine run all cases.
const enginesVariable = "SANDBOX_RUNTIME_INTEGRATION_ENGINES"

// has says whether the engine runs a case. There is no time for all cases with both: of the cases that are for both,
// docker has a quarter and podman an eighth, other ones for each commit. A short run has a quarter of these.
func (c cli) has(one cliCase, commit string, names []string) bool {
	switch {
	case one.only != "" && one.only != c.name:
		return false
	case len(names) > 0:
		return slices.Contains(names, one.name)
	case one.only != "" || os.Getenv(enginesVariable) == "all":
		return true
	}
	parts := uint32(8)
	if testing.Short() {
		parts *= 4
	}
	part := crc32.ChecksumIEEE([]byte(commit+one.name)) % parts
	return c.name == "docker" && part < 2 || c.name == "podman" && part == 2
}

// testCLI runs the cases that the engine has, or those that are named, and returns their
// number. After each the host is as before it. Each runs a container at least: with a runtime
// that starts none, every case fails.
func testCLI(c cli, names ...string) (ran int) {
	c.Helper()
	cases := slices.Concat(optionCases(), limitCases, privilegeCases, sharingCases, networkCases, lifeCases, changeCases, streamCases, fileCases, dockerCases, podmanCases)
	_, _, commit := parseVersion(run(c, exec.Command(binary(c), "--version")).stdout)
	// Docker keeps a mount for containers in its own network namespace.
	before := processes(c)
	c.once("true", "--network", "host")
	eventually(c, "its keepers are gone", func() bool { return before.diff(processes(c)) == "" })
	for _, one := range cases {
		if !c.has(one, commit, names) {
			continue
		}
		ran++
		c.Run(one.name, func(t *testing.T) {
			leavesNothing(t)
			c := cli{t, c.name, c.command, c.pid}
			c.TempDir() // the first registers the removal of all: after that of containers that write there
			t.Cleanup(c.removeAll)
			one.test(c)
		})
	}
	return ran
}

// ok runs a client command that must work and returns what it printed.
func (c cli) ok(args ...string) string {
	c.Helper()
	got := run(c, c.command(args...))
	if got.code != 0 {
		c.Fatalf("%s %q: status %d, stdout %s, stderr %s", c.name, args, got.code, got.stdout, got.stderr)
	}
	return got.stdout
}

// once runs a script in a container that is removed at its end.
func (c cli) once(script string, flags ...string) result {
	c.Helper()
	return run(c, c.command(runArgs(script, append([]string{"--rm"}, flags...)...)...))
}

func runArgs(script string, flags ...string) []string {
	return slices.Concat([]string{"run"}, flags, []string{"busybox", "sh", "-c", script})
}

// start runs a script in a container in the background and returns its id.
func (c cli) start(script string, flags ...string) string {
	c.Helper()
	return strings.TrimSpace(c.ok(runArgs(script, append([]string{"--detach"}, flags...)...)...))
}

// removal removes containers at once. podman, unlike Docker, would wait for
// them to stop first.
func (c cli) removal(ids ...string) *exec.Cmd {
	args := []string{"rm", "--force", "--volumes"}
	if c.name == "podman" {
		args = append(args, "--time", "0")
	}
	return c.command(append(args, ids...)...)
}

// removeAll removes the containers there are, as each case's end does, and as
// must be done before a network or volume that they use is removed.
func (c cli) removeAll() {
	c.Helper()
	// podman's rm can be in the way of the command that conmon cleans up with.
	eventually(c, "all containers are removed", func() bool {
		ids := strings.Fields(c.ok("ps", "--all", "--quiet"))
		return len(ids) == 0 || run(c, c.removal(ids...)).code == 0
	})
}

// inside runs a script in a running container.
func (c cli) inside(id, script string, flags ...string) result {
	c.Helper()
	return run(c, c.command(slices.Concat([]string{"exec"}, flags, []string{id, "sh", "-c", script})...))
}

// field reads a field of a container's description.
func (c cli) field(id, template string) string {
	c.Helper()
	return strings.TrimSpace(c.ok("inspect", "--type", "container", "--format", "{{"+template+"}}", id))
}

// hostPID is the container's PID 1, as the world sees it.
func (c cli) hostPID(id string) int {
	c.Helper()
	pid, err := strconv.Atoi(c.field(id, ".State.Pid"))
	if err != nil || pid == 0 {
		c.Fatalf("pid of %s: %d, %v", id, pid, err)
	}
	return pid
}

// status waits until a container has stopped.
func (c cli) status(id string) int {
	c.Helper()
	return printedStatus(c.T, run(c, c.command("wait", id)))
}

// says waits until a container has printed text.
func (c cli) says(id, text string) {
	c.Helper()
	eventually(c, id+" says "+text, func() bool {
		return strings.Contains(c.ok("logs", id), text)
	})
}

// want fails the test unless the command printed just that and returned 0.
func (c cli) want(got result, stdout string) {
	c.Helper()
	if got.code != 0 || got.stdout != stdout {
		c.Errorf("%+v, want %q", got, stdout)
	}
}
