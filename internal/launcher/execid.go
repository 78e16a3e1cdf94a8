package launcher

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// An execID names one exec of a sandbox. It says which process asked for it, so
// that what an exec left is known to be nobody's any more.
type execID struct {
	pid   uint32
	start uint64
	n     uint32
}

// leafPrefix begins the name of an exec's cgroup.
const leafPrefix = "exec-"

// newExec is unique while the host is up.
func (l *sessions) newExec() (execID, error) {
	self, err := l.self()
	return execID{pid: uint32(self.Pid), start: self.Start, n: l.execs.Add(1)}, err
}

// numbered says whether the launcher has made the id up, and not another one, of
// this process or not.
func (l *sessions) numbered(e execID) bool {
	self, err := l.self()
	return err == nil && e.pid == uint32(self.Pid) && e.start == self.Start && e.n-l.first-1 < l.execs.Load()-l.first
}

func (e execID) String() string {
	b := make([]byte, 0, 32)
	b = strconv.AppendUint(b, uint64(e.pid), 36)
	b = strconv.AppendUint(append(b, '-'), e.start, 36)
	b = strconv.AppendUint(append(b, '-'), uint64(e.n), 36)
	return string(b)
}

// leaf is the name of the exec's cgroup.
func (e execID) leaf() string { return leafPrefix + e.String() }

// agent is the id as the agent knows a detached exec.
func (e execID) agent() (id agent.ExecID) {
	binary.BigEndian.PutUint32(id[0:], e.pid)
	binary.BigEndian.PutUint64(id[4:], e.start)
	binary.BigEndian.PutUint32(id[12:], e.n)
	return id
}

// ownerLives is whether the process that asked for the exec does.
func (e execID) ownerLives() bool {
	start, err := process.Started(int(e.pid))
	return err == nil && start == e.start
}

// parseExec reads an id that [execID.String] has written.
func parseExec(s string) (execID, bool) {
	parts := strings.Split(s, "-")
	if len(parts) != 3 {
		return execID{}, false
	}
	pid, errPid := strconv.ParseUint(parts[0], 36, 31)
	start, errStart := strconv.ParseUint(parts[1], 36, 64)
	n, errN := strconv.ParseUint(parts[2], 36, 32)
	e := execID{pid: uint32(pid), start: start, n: uint32(n)}
	return e, errPid == nil && errStart == nil && errN == nil && e.String() == s
}

// parseLeaf reads the name of an exec's cgroup.
func parseLeaf(name string) (execID, bool) {
	id, ok := strings.CutPrefix(name, leafPrefix)
	if !ok {
		return execID{}, false
	}
	return parseExec(id)
}
