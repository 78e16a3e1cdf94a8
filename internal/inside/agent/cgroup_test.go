package agent

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// ownGroup is the directory of this process's group, in the hierarchy of a v1
// controller or, if that is empty, of v2. It is empty where there is none.
func ownGroup(t testing.TB, controller string) string {
	t.Helper()
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		f := append(strings.Fields(before), strings.Fields(after)...)
		kind, options := f[len(f)-3], strings.Split(f[len(f)-1], ",")
		if kind == "cgroup2" && controller == "" || kind == "cgroup" && slices.Contains(options, controller) {
			path, err := filepath.Rel(f[3], groupPath(t, "self", controller))
			if err != nil {
				t.Fatal(err)
			}
			return filepath.Join(f[4], path)
		}
	}
	return ""
}

// groupPath is the line of a hierarchy in /proc/PID/cgroup.
func groupPath(t testing.TB, pid, controller string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if slices.Contains(strings.Split(f[1], ","), controller) {
			return f[2]
		}
	}
	t.Fatalf("no group of %q in %s", controller, text)
	return ""
}

// newGroup makes a group, removed once nothing is in it.
func newGroup(t testing.TB, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testhost.Eventually(t, "removal of "+dir, func() bool { return unix.Rmdir(dir) == nil })
	})
	return dir
}

func groupName() string { return fmt.Sprintf("agent-test-%d", os.Getpid()) }

// TestExecEntersGroupsOfV1 passes the tasks files of two.
func TestExecEntersGroupsOfV1(t *testing.T) {
	controllers := []string{"pids", "memory"}
	var files []*os.File
	for _, controller := range controllers {
		own := ownGroup(t, controller)
		if own == "" {
			t.Skip("needs the controllers on v1")
		}
		f, err := os.OpenFile(filepath.Join(newGroup(t, own, groupName()), "tasks"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	s := open(t)
	c := command("cat", "/proc/self/cgroup", "/proc/1/cgroup")
	c.Cgroup.Tasks = files
	got := s.mustRun(t, c)
	for _, controller := range controllers {
		if n := strings.Count(got, controller+":"+filepath.Join(groupPath(t, "self", controller), groupName())+"\n"); n != 1 {
			t.Errorf("%d of two processes are in the group of %s:\n%s", n, controller, got)
		}
	}
}

// openGroupsOfV2 makes what a sandbox has: its group, with the agent's and an
// exec's below, whose members the agent may move.
func openGroupsOfV2(t *testing.T) (s *sandbox, exec string) {
	own := ownGroup(t, "")
	if own == "" {
		t.Skip("needs a mount of cgroup v2")
	}
	top := newGroup(t, own, groupName())
	agents, exec := newGroup(t, top, "agent"), newGroup(t, top, "exec")
	s = open(t)
	if err := os.WriteFile(filepath.Join(agents, "cgroup.procs"), fmt.Append(nil, s.cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.cmd.Process.Kill(); s.cmd.Wait() })
	for _, dir := range []string{top, agents, exec} {
		if err := os.Chown(filepath.Join(dir, "cgroup.procs"), 1<<30+agentID, -1); err != nil {
			t.Fatal(err)
		}
	}
	return s, exec
}

func TestExecIsForkedIntoTheGroupOfV2(t *testing.T) {
	s, group := openGroupsOfV2(t)
	for _, flags := range []int{unix.O_RDONLY, unix.O_PATH} {
		fd, err := unix.Open(group, flags|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir := os.NewFile(uintptr(fd), group)
		defer dir.Close()
		c := command("cat", "/proc/self/cgroup")
		c.Cgroup.Dir = dir
		if got := s.mustRun(t, c); !strings.HasSuffix(got, "/"+groupName()+"/exec") {
			t.Errorf("%#x: the command is in %s", flags, got)
		}
		// A detached one, whose drainer stays with the agent.
		c.Args = []string{"sh", "-c", "read line </tmp/fifo"}
		s.mustRun(t, command("sh", "-c", "rm -f /tmp/fifo; mkfifo -m 666 /tmp/fifo"))
		detach(t, &c, 1000)
		p, err := s.Start(within(t, testhost.Patience), c)
		if err != nil {
			t.Fatal(err)
		}
		if got := groupPath(t, s.drainerOnHost(t), ""); !strings.HasSuffix(got, "/agent") {
			t.Errorf("the drainer is in %s", got)
		}
		s.mustRun(t, command("sh", "-c", "echo go >/tmp/fifo"))
		finish(t, p)
	}
}

// TestExecThatCannotEnterItsGroupDoesNotRun, on either version.
func TestExecThatCannotEnterItsGroupDoesNotRun(t *testing.T) {
	s, group := openGroupsOfV2(t)
	file := func(path string, flags int) *os.File {
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	removed := newGroup(t, filepath.Dir(group), "removed")
	gone := file(removed, os.O_RDONLY)
	if err := unix.Rmdir(removed); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(removed, 0o755); err != nil { // for the clean-up
		t.Fatal(err)
	}
	c := command("touch", "/tmp/ran")
	for name, g := range map[string]Cgroup{
		"no group":        {Dir: file("/tmp", os.O_RDONLY)},
		"another's group": {Dir: file(filepath.Dir(filepath.Dir(group)), os.O_RDONLY)},
		"removed":         {Dir: gone},
		"tasks to read":   {Tasks: []*os.File{file(filepath.Join(group, "cgroup.procs"), os.O_RDONLY)}},
		"full":            {Tasks: []*os.File{file("/dev/null", os.O_WRONLY), file("/dev/full", os.O_WRONLY)}},
	} {
		for _, detached := range []bool{false, true} {
			c.Cgroup, c.Detach = g, nil
			if detached {
				detach(t, &c, 1000)
			}
			p, err := s.Start(within(t, testhost.Patience), c)
			var refused *StartError
			if !errors.As(err, &refused) || refused.Stage != StageCgroup {
				t.Errorf("%s: %v, %v", name, p, err)
			}
		}
	}
	if got := s.mustRun(t, command("ls", "/tmp")); got != "" {
		t.Errorf("a command ran: %s", got)
	}
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}
