package cgroups

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A sandbox's ids, as the host has them.
const (
	idBase  = 300_000
	agentID = 65535
)

// starter is a process as a sandbox's first one is: in a user namespace of its
// own, its group the root of its cgroup namespace, without privileges on the
// host. It starts programs in groups whose directories it is handed.
type starter struct {
	*program
	socket *os.File
}

// newStarter starts one in the box's group. uid is what it is inside; 0 has all
// capabilities there.
func newStarter(t *testing.T, b *box, host *Host, uid uint32) *starter {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, its := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "its")
	defer its.Close()
	t.Cleanup(func() { ours.Close() })
	unified, _ := host.unified()
	dir, err := unified.open(b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	p := newProgram("starter")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: idBase, Size: agentID + 1}}
	p.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()),
		Cloneflags: syscall.CLONE_NEWUSER, Unshareflags: syscall.CLONE_NEWCGROUP,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: uid, Gid: uid},
	}
	p.ExtraFiles = []*os.File{its}
	p.start(t)
	p.release(t)
	return &starter{p, ours}
}

// startProgram hands the starter a directory and has it start a program there, as uid.
// It returns the program's pid here, or why not.
func (s *starter) startProgram(t *testing.T, dir *os.File, uid int) (pid int, refusal string) {
	t.Helper()
	answer := s.request(t, "start "+strconv.Itoa(uid), dir)
	if _, err := fmt.Sscanf(answer, "started %d", &pid); err != nil {
		return 0, answer
	}
	return pid, ""
}

func (s *starter) request(t *testing.T, what string, dir *os.File) string {
	t.Helper()
	if err := unix.Sendmsg(int(s.socket.Fd()), []byte(what), unix.UnixRights(int(dir.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	return s.line(t)
}

func v2View(t *testing.T) *Host {
	t.Helper()
	for _, host := range views(t) {
		if host.Mode == V2 {
			return host
		}
	}
	t.Skip("no v2 hierarchy")
	return nil
}

func TestDividedGroupIsTheAgents(t *testing.T) {
	host := v2View(t)
	b := newBox(t, nil)
	s := newStarter(t, b, host, agentID)
	g := b.group(host)
	t.Cleanup(func() { g.Close() })
	for range 2 {
		if err := g.Divide(s.Process.Pid, idBase+agentID); err != nil {
			t.Fatal(err)
		}
	}
	unified, _ := host.unified()
	if got := readString(t, fmt.Sprintf("/proc/%d/cgroup", s.Process.Pid)); !strings.HasSuffix(got, b.path+"/agent") {
		t.Errorf("the agent is in %s", got)
	}
	l := newLeaf(t, g, "exec-1", LeafOptions{Owner: idBase + agentID})
	dir, _ := l.Join()
	pid, refusal := s.startProgram(t, dir, 1000)
	if refusal != "" {
		t.Fatalf("start in a leaf: %s", refusal)
	}
	if pids, err := l.Pids(); err != nil || len(pids) != 1 || pids[0] != pid {
		t.Errorf("in the leaf: %v, %v, want %d", pids, err, pid)
	}

	refuses(t, "a leaf of somebody else", "permission denied", s, newLeaf(t, g, "exec-2", LeafOptions{}).dir)
	outside := b.parent + "/outside"
	if err := os.Mkdir(unified.path(outside), 0o755); err != nil {
		t.Fatal(err)
	}
	refusal = "permission denied"
	if delegating(t) { // even if the files were the agent's
		refusal = "no such file"
		for _, dir := range []string{b.parent, outside} {
			if err := os.Chown(unified.path(dir)+"/cgroup.procs", idBase+agentID, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	refuses(t, "a group outside", refusal, s, openDir(t, unified, outside))
	if enabled := readString(t, unified.path(b.path)+"/cgroup.subtree_control"); enabled != "" { // else there is no such rule
		refuses(t, "the group itself", "busy", s, openDir(t, unified, b.path))
	}
	if got := s.request(t, "climb", dir); got != "agent exec-1 exec-2" {
		t.Errorf("what a leaf's directory leads up to: %q", got)
	}
	if got := s.request(t, "unlimit", dir); !strings.Contains(got, "permission denied") {
		t.Errorf("write cgroup.kill and cgroup.freeze: %q", got)
	}
	if err := l.Kill(bounded(t)); err != nil {
		t.Error(err)
	}
	if err := l.Delete(bounded(t)); err != nil {
		t.Error(err)
	}
	if !exists(fmt.Sprintf("/proc/%d", s.Process.Pid)) {
		t.Error("the agent is dead")
	}
}

// Root inside has rights over what belongs to its ids, and no others: the
// files' group is the host's.
func TestDividedGroupIsNotOfTheRootInside(t *testing.T) {
	host := v2View(t)
	b := newBox(t, nil)
	s := newStarter(t, b, host, 0)
	g := b.group(host)
	t.Cleanup(func() { g.Close() })
	if err := g.Divide(s.Process.Pid, idBase+agentID); err != nil {
		t.Fatal(err)
	}
	l := newLeaf(t, g, "exec-1", LeafOptions{Owner: idBase + agentID})
	dir, _ := l.Join()
	if pid, refusal := s.startProgram(t, dir, 0); pid != 0 || !strings.Contains(refusal, "permission denied") {
		t.Errorf("%d, %s", pid, refusal)
	}
	if got := s.request(t, "unlimit", dir); !strings.Contains(got, "permission denied") {
		t.Errorf("write cgroup.kill and cgroup.freeze: %q", got)
	}
}

func TestDivideRefusesAGroupWithOthersInIt(t *testing.T) {
	b := newBox(t, nil)
	if b.host.Mode != V2 {
		t.Skip("needs the controllers on v2")
	}
	agent, other := b.run("echo"), b.run("echo")
	g := b.group(nil)
	t.Cleanup(func() { g.Close() })
	if err := g.Divide(agent.Process.Pid, 0); !contains(err, errPopulated.Error()) {
		t.Errorf("got %v", err)
	}
	if !other.echoes(t, patience) {
		t.Error("no answer")
	}
}

// Threads that end as the agent is moved are not, and live on for a moment.
func TestDivideWaitsForThreadsThatEnd(t *testing.T) {
	b := newBox(t, nil)
	if b.host.Mode != V2 {
		t.Skip("needs the controllers on v2")
	}
	agent := b.run("threads")
	g := b.group(nil)
	t.Cleanup(func() { g.Close() })
	unified, _ := b.host.unified()
	dir := unified.path(b.path)
	pid := strconv.Itoa(agent.Process.Pid)
	for range 200 {
		if err := g.Divide(agent.Process.Pid, 0); err != nil {
			t.Fatal(err)
		}
		enabled := readString(t, dir+"/cgroup.subtree_control")
		if enabled == "" {
			t.Fatal("no controller is enabled")
		}
		writeString(t, dir+"/cgroup.subtree_control", "-"+strings.Join(strings.Fields(enabled), " -"))
		writeString(t, dir+"/cgroup.procs", pid)
	}
}

// refuses fails the test if the starter can start something in a directory.
func refuses(t *testing.T, what, reason string, s *starter, dir *os.File) {
	t.Helper()
	if pid, refusal := s.startProgram(t, dir, 1000); pid != 0 || !strings.Contains(refusal, reason) {
		t.Errorf("start in %s: pid %d, %q, want %q", what, pid, refusal, reason)
	}
}

// delegating tells whether the v2 hierarchy is mounted with nsdelegate.
func delegating(t *testing.T) bool {
	t.Helper()
	for line := range strings.Lines(readString(t, "/proc/mounts")) {
		if f := strings.Fields(line); f[2] == "cgroup2" && slices.Contains(strings.Split(f[3], ","), "nsdelegate") {
			return true
		}
	}
	return false
}

func openDir(t *testing.T, in tree, path string) *os.File {
	t.Helper()
	dir, err := in.open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}
