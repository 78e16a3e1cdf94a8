package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// DetachedExecs returns the detached execs that have a directory in the sandbox's state.
func (v *Session) DetachedExecs() ([]ExecID, error) { return execsIn(v.ExecsDir()) }

// execsIn returns the execs that have an entry in a directory, sorted by name. For a missing
// directory it returns none.
func execsIn(dir string) ([]ExecID, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []ExecID
	for _, entry := range entries {
		if e, ok := parseExec(entry.Name()); ok {
			all = append(all, e)
		}
	}
	return all, nil
}

// describe describes an exec. It returns false if the leaf is empty, such as the leaf that is
// ready for the next exec.
func (v *Session) describe(e ExecID) (spec.ExecInfo, bool, error) {
	x := spec.ExecInfo{ID: e.String()}
	leaf, err := v.Group.OpenLeaf(e.Leaf())
	if err != nil {
		return x, false, erase.IgnoreMissing(err)
	}
	defer func() { _ = leaf.Close() }() // closes a descriptor only
	if x.Pids, err = leaf.Pids(); err != nil {
		return x, false, err
	}
	if r, err := readExecRecord(v.execDir(e)); err == nil {
		x.Args, x.Started, x.Detached, x.Ended = r.Args, r.Started, true, len(x.Pids) == 0
		return x, true, nil
	}
	v.Mu.Lock()
	p := v.running[x.ID]
	v.Mu.Unlock()
	if p != nil {
		x.Args, x.Started = p.Args, p.StartedAt
		return x, true, nil
	}
	if len(x.Pids) > 0 {
		// Another process has started it: the kernel knows its command line and its start.
		x.Args, x.Started = commandOf(x.Pids[0])
	}
	return x, len(x.Pids) > 0, nil
}

// commandOf returns the command line of a process, which the process can change, and the time of
// its start. It returns nothing if the process has ended.
func commandOf(pid int) (args []string, started time.Time) {
	text, err := os.ReadFile(process.Dir(pid) + "/cmdline")
	if err != nil {
		return nil, started
	}
	args = strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	if info, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		started = info.ModTime()
	}
	return shortArgs(args), started
}

// shownLength bounds the bytes that are kept of a command's arguments, for a list of commands.
// Arguments can have megabytes, and each detached command keeps its own. Each argument takes
// stringSize bytes beyond its text.
const (
	shownLength = 4 << 10
	stringSize  = 16
)

// shortArgs is the beginning of a command's arguments.
func shortArgs(args []string) []string {
	left := shownLength
	for i, arg := range args {
		if left -= len(arg) + stringSize; left < 0 {
			short := arg[:max(len(arg)+left, 0)] + "…"
			return append(slices.Clone(args[:i]), strings.ToValidUTF8(short, ""))
		}
	}
	return args
}

// Execs describes the running commands of the sandbox, which any process can have started. It
// also describes ended detached commands until a client has their result.
func (v *Session) Execs(context.Context) ([]spec.ExecInfo, error) {
	if !v.Up() {
		return nil, v.Why(context.Background(), &fault.SandboxError{ID: v.ID, Err: fault.ErrNotRunning})
	}
	v.Enter()
	defer v.Leave()
	names, err := v.Group.Leaves()
	if err != nil {
		return nil, err
	}
	var all []spec.ExecInfo
	for _, name := range names {
		e, ok := parseLeaf(name)
		if !ok {
			continue
		}
		exec, ok, err := v.describe(e)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, exec)
		}
	}
	slices.SortFunc(all, func(a, b spec.ExecInfo) int { return a.Started.Compare(b.Started) })
	return all, nil
}
