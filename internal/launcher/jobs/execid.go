package jobs

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// An ExecID names one exec of a sandbox, and the process that asked for the exec. If that
// process has ended, the remaining state of the exec is stale.
type ExecID struct {
	Pid   uint32
	Start uint64
	N     uint32
}

// leafPrefix begins the name of an exec's cgroup.
const leafPrefix = "exec-"

// newExec returns an id that is unique while the host is up.
func (l *Sessions) newExec() (ExecID, error) {
	self, err := l.Self()
	return ExecID{Pid: uint32(self.Pid), Start: self.Start, N: l.execs.Add(1)}, err
}

// numbered says whether this launcher has made the id. Another launcher, also one of the same
// process, has other ids.
func (l *Sessions) numbered(e ExecID) bool {
	self, err := l.Self()
	return err == nil && e.Pid == uint32(self.Pid) && e.Start == self.Start && e.N-l.first-1 < l.execs.Load()-l.first
}

// String is the form that clients have.
func (e ExecID) String() string {
	base36 := func(n uint64) string { return strconv.FormatUint(n, 36) }
	return base36(uint64(e.Pid)) + "-" + base36(e.Start) + "-" + base36(uint64(e.N))
}

// Leaf is the name of the exec's cgroup.
func (e ExecID) Leaf() string { return leafPrefix + e.String() }

// agent is the id as the agent knows a detached exec.
func (e ExecID) agent() (id agent.ExecID) {
	binary.BigEndian.PutUint32(id[0:], e.Pid)
	binary.BigEndian.PutUint64(id[4:], e.Start)
	binary.BigEndian.PutUint32(id[12:], e.N)
	return id
}

// ownerLives says whether the process that asked for the exec lives. It is true if that cannot be told.
func (e ExecID) ownerLives() bool {
	start, err := process.Started(int(e.Pid))
	return err == nil && process.IsSameStart(start, e.Start) || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// parseExec reads an id that [ExecID.String] has written.
func parseExec(s string) (ExecID, bool) {
	parts := strings.Split(s, "-")
	if len(parts) != 3 {
		return ExecID{}, false
	}
	pid, errPid := strconv.ParseUint(parts[0], 36, 31)
	start, errStart := strconv.ParseUint(parts[1], 36, 64)
	n, errN := strconv.ParseUint(parts[2], 36, 32)
	e := ExecID{Pid: uint32(pid), Start: start, N: uint32(n)}
	return e, errPid == nil && errStart == nil && errN == nil && e.String() == s
}

// parseLeaf reads the name of an exec's cgroup.
func parseLeaf(name string) (ExecID, bool) {
	id, ok := strings.CutPrefix(name, leafPrefix)
	if !ok {
		return ExecID{}, false
	}
	return parseExec(id)
}
