package main

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// manyChanged is the number of files that a sandbox has changed where an apply is to
// be a large one.
const manyChanged = 100_000

// openMany measures the command apply with many changes: its time and its memory.
func openMany(o options, dir string) ([]trial, func() error, error) {
	a := &manyApplies{}
	times := func(w *writes) (trial, error) {
		if err := a.prepare(w); err != nil {
			return nil, err
		}
		return a.times(), nil
	}
	return openWrites(o, dir, times, func(*writes) (trial, error) { return a.memory(), nil })
}

// manyApplies are applies of one sandbox's changes to a directory that is emptied
// after each.
type manyApplies struct {
	*writes
	same, tree string
	box        *sandbox.Sandbox
}

func (a *manyApplies) prepare(w *writes) (err error) {
	a.writes = w
	if a.same, err = w.tree("many-same", manyChanged); err != nil {
		return err
	}
	if a.tree, err = w.tree("many", 0); err != nil {
		return err
	}
	a.box, err = w.box(sandbox.Config{
		Overlays: []string{a.tree}, Cwd: a.tree, Storage: sandbox.StorageDisk,
		Limits: sandbox.Limits{Files: 4 * manyChanged, Disk: 4 << 30},
	})
	if err != nil {
		return err
	}
	return fill(a.box, manyChanged)
}

// apply runs the command, as its users do.
func (a *manyApplies) apply() (took time.Duration, maxRSS int64, err error) {
	unix.Sync() // the work of earlier rounds does not count
	cmd := exec.Command(a.o.binary, "--root", a.o.root(a.dir, "sandboxes"), "--data", filepath.Join(a.dir, "data"),
		"apply", "--yes", "--overwrite", a.box.ID())
	begin := time.Now()
	if err := capture(cmd); err != nil {
		return 0, 0, err
	}
	took = time.Since(begin)
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		maxRSS = usage.Maxrss << 10
	}
	return took, maxRSS, a.empty(a.tree)
}

func (a *manyApplies) times() trial {
	copied := a.copyPeer("cp -a, sync", a.same, true)
	clock := copied.clock
	copied.clock = func() (time.Duration, error) {
		unix.Sync()
		return clock()
	}
	const ours = "apply, the command"
	return contest{
		title: "Apply 100,000 small files",
		about: "The command puts the files of a sandbox's layer, which is on disk, onto the host's empty directory, journal and sync included.",
		unit:  "ms", base: copied.name, rounds: max(a.o.rounds/20, 3), measure: clocked,
		peers: []peer{copied, {name: ours, version: "this tree's", clock: func() (time.Duration, error) {
			took, _, err := a.apply()
			return took, err
		}}},
		bounds: []bound{{ours, copied.name, 1.2}},
	}
}

func (a *manyApplies) memory() trial {
	const ours = "apply of 100,000 files"
	return contest{
		title: "Memory of `apply`",
		about: "The most memory that the command has while it applies 100,000 small files, its launcher included.",
		unit:  "MiB", base: ours, rounds: 3,
		measure: func(peer) (float64, error) {
			_, rss, err := a.apply()
			return float64(rss) / (1 << 20), err
		},
		peers:  []peer{{name: ours, version: "this tree's", call: func() error { return nil }}},
		limits: []limit{{ours, "", 100}},
	}
}
