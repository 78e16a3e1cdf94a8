package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A storm is a place where the runtime is killed again and again: a state root
// and a bundle below /run, where the comparison of hosts sees all files, with a
// container and a sandbox beside that must not notice.
type storm struct {
	t      *testing.T
	oci    *ociRuntime
	bundle string
	living []int // the processes beside
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	leavesNothing(t)
	need(t, peers())
	dir, err := os.MkdirTemp("/run", "storm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &storm{t: t, bundle: filepath.Join(dir, "bundle")}
	s.oci = ours(t)
	s.oci.root = filepath.Join(dir, "root")
	if err := os.Mkdir(s.bundle, 0o755); err != nil {
		t.Fatal(err)
	}
	s.runs([]string{"sleep", "1000"})
	s.startLiving()
	return s
}

// runs makes the bundle's container run args.
func (s *storm) runs(args []string, changes ...func(*specs.Spec)) {
	s.t.Helper()
	config := content(s.t, filepath.Join(newBundle(s.t, args, changes...).dir, "config.json"))
	(&bundle{dir: s.bundle}).write(s.t, config)
}

// startLiving starts what must live on: a container and a sandbox in the same
// state root.
func (s *storm) startLiving() {
	s.t.Helper()
	s.oci.run("run", "--detach", "--bundle", s.bundle, "living")
	s.t.Cleanup(func() { s.oci.run("delete", "--force", "living") })
	container := s.oci.state("living").PID
	eventually(s.t, "the container's program runs", func() bool { return strings.HasPrefix(commandOf(container), "sleep") })
	// Ready is said when its processes are those that stay.
	const script = "sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo ready; wait"
	sandbox := start(s.t, s.oci.command("do", "--", "sh", "-c", script))
	sandbox.prints("ready\n")
	s.t.Cleanup(func() { interrupt(s.t, sandbox) })
	s.living = []int{container, sandbox.cmd.Process.Pid}
	// Beside the start the launcher moves to its own group, which can take longer: see cgroups.Wake.
	eventually(s.t, "the launcher's move has ended", func() bool { return !s.moves(sandbox.cmd.Process.Pid) })
}

// moves says whether a process has opened a file that moves processes to a group.
func (s *storm) moves(pid int) bool {
	open := host{}
	addDescriptors(open, pid)
	for line := range open {
		if strings.HasSuffix(line, "/cgroup.procs") {
			return true
		}
	}
	return false
}

// host is the host as all tests see it, and the namespaces of all processes,
// and the descriptors and mounts of the living.
func (s *storm) host() host {
	s.t.Helper()
	h, err := s.readHost()
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}

func (s *storm) readHost() (host, error) {
	h, err := readHost()
	if err != nil {
		return nil, err
	}
	addNamespaces(h)
	for _, pid := range s.living {
		addDescriptors(h, pid)
		// A garbage collector closes those of processes whose end is known, such as a removal's.
		maps.DeleteFunc(h, func(line string, _ bool) bool { return strings.HasSuffix(line, "is anon_inode:[pidfd]") })
		h[fmt.Sprintf("mounts of process %d: %x", pid, sha256.Sum256(mountsOf(pid)))] = true
	}
	return h, nil
}

func addNamespaces(h host) {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/*")
	for _, link := range links {
		if ns, err := os.Readlink(link); err == nil {
			h["namespace "+ns] = true
		}
	}
}

func addDescriptors(h host, pid int) {
	links, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, link := range links {
		if what, err := os.Readlink(link); err == nil {
			h["descriptor "+link+" is "+what] = true
		}
	}
}

func mountsOf(pid int) []byte {
	mounts, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	return mounts
}

// recover runs the command that recovers from what happened, and holds that the
// host is then as it was before.
func (s *storm) recover(what string, args []string, before host) {
	s.t.Helper()
	if got := run(s.t, s.oci.command(args...)); got.code != 0 || got.stderr != "" {
		s.t.Errorf("%s: %q: %s", what, args, answered(got))
	}
	// The pid file is the caller's.
	if err := os.Remove(s.pidFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Error(err)
	}
	if left := s.remains(before); left != "" {
		s.t.Errorf("%s: left behind:\n%s", what, left)
	}
}

// remains waits until the host is as it was before, and returns what is not.
func (s *storm) remains(before host) string { return before.differsFrom(s.readHost) }

func (s *storm) pidFile() string { return filepath.Join(s.bundle, "pid") }

// stop kills the container's init past the runtime.
func (s *storm) stop(id string) {
	s.t.Helper()
	if err := unix.Kill(s.oci.state(id).PID, unix.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	s.oci.waitUntil(id, "stopped")
}

// of is the storm for a subtest.
func (s *storm) of(t *testing.T) *storm {
	own, oci := *s, *s.oci
	own.t, oci.t = t, t
	own.oci = &oci
	return &own
}

// crash starts a sandbox and kills the runtime when its command runs.
func (s *storm) crash() {
	s.t.Helper()
	p := start(s.t, s.oci.command("do", "--", "sh", "-c", "echo ready; sleep 1000"))
	p.prints("ready\n")
	if err := p.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	<-p.done
}

// status is what state says of the container, "" if it does not exist.
func (s *storm) status(id string) string {
	s.t.Helper()
	got := run(s.t, s.oci.command("state", id))
	if got.code != 0 && strings.Contains(got.stderr, "container does not exist") {
		return ""
	}
	if got.code != 0 {
		return answered(got)
	}
	var state containerState
	decode(s.t, got.stdout, &state)
	return state.Status
}

// answered says what a failed call answered, in one line.
func answered(r result) string {
	return fmt.Sprintf("status %d, %s", r.code, strings.TrimSpace(r.stdout+r.stderr))
}
