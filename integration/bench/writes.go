package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// changed is how many files a sandbox has changed where changes are measured, in
// directories of a hundred.
const (
	changed      = 10_000
	perDirectory = 100
)

// writes has the measured writes on layers, each with the things that it needs.
type writes struct {
	o       options
	dir     string
	manager *sandbox.Manager
	ends    []func() error
	// aside counts the directories that were put aside.
	aside int
}

// openOverlays measures the cost of writes on layers.
func openOverlays(o options, dir string) ([]trial, func() error, error) {
	return openWrites(o, dir, (*writes).starts, (*writes).workspaces, (*writes).files)
}

// openChanges measures the work with the changes on a layer.
func openChanges(o options, dir string) ([]trial, func() error, error) {
	return openWrites(o, dir, (*writes).lists, (*writes).applies, (*writes).forks)
}

func openWrites(o options, dir string, opens ...func(*writes) (trial, error)) (_ []trial, done func() error, err error) {
	m, err := newManager(o, dir)
	if err != nil {
		return nil, nil, err
	}
	w := &writes{o: o, dir: dir, manager: m, ends: []func() error{m.Close}}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(w.ends))
		}
	}()
	var trials []trial
	for _, open := range opens {
		t, err := open(w)
		if err != nil {
			return nil, nil, err
		}
		trials = append(trials, t)
	}
	return trials, func() error { return closeAll(w.ends) }, nil
}

// tree makes a directory with so many small files, and its owner the sandboxes'
// user.
func (w *writes) tree(name string, files int) (string, error) {
	top := filepath.Join(w.dir, name)
	for i := range files {
		sub := filepath.Join(top, fmt.Sprint(i/perDirectory))
		if i%perDirectory == 0 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return "", err
			}
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), []byte("some content\n"), 0o644); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(top, 0o755); err != nil {
		return "", err
	}
	return top, exec.Command("chown", "-R", "1000:1000", top).Run()
}

// box makes a sandbox that lives as long as the field.
func (w *writes) box(c sandbox.Config) (*sandbox.Sandbox, error) {
	box, err := w.manager.Create(context.Background(), c, sandbox.Tied())
	if err == nil {
		w.ends = append(w.ends, box.Close)
	}
	return box, err
}

// changedBox is a sandbox with an overlay of a new directory with so many files, in which it
// has made as many more as changed says. A directory of the host has the same ones.
func (w *writes) changedBox(name string, files int) (box *sandbox.Sandbox, tree, same string, err error) {
	if same, err = w.tree(name+"-same", changed); err != nil {
		return nil, "", "", err
	}
	if tree, err = w.tree(name, files); err != nil {
		return nil, "", "", err
	}
	box, err = w.box(sandbox.Config{Overlays: []string{tree}, Cwd: tree, Limits: sandbox.Limits{Files: 4 * changed}})
	if err == nil {
		err = fill(box, changed)
	}
	return box, tree, same, err
}

// fill has a sandbox make so many files in its working directory, some in each of as many
// directories as needed.
func fill(box *sandbox.Sandbox, files int) error {
	script := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do d=$((i/%d)); [ -d $d ] || mkdir $d; echo some content > $d/$i; i=$((i+1)); done`, files, perDirectory)
	return execIn(box, "sh", "-c", script)
}

// clocked measures a peer by its own clock: its preparation and clean-up do not count.
func clocked(p peer) (float64, error) {
	took, err := p.clock()
	return float64(took.Nanoseconds()) / 1e6, err
}

// timed is a clock of f, after which undo takes back its effects.
func timed(f, undo func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		begin := time.Now()
		err := f()
		took := time.Since(begin)
		return took, errors.Join(err, undo())
	}
}

func nothing() error { return nil }

// creation is a clock of the creation of a sandbox, which is removed after that.
func (w *writes) creation(config sandbox.Config, options ...sandbox.CreateOption) func() (time.Duration, error) {
	var made *sandbox.Sandbox
	return timed(func() (err error) {
		made, err = w.manager.Create(context.Background(), config, append(options, sandbox.Tied())...)
		return err
	}, func() error {
		if made == nil {
			return nil
		}
		return made.Close()
	})
}

// few is the number of rounds for work that takes a second: as many as fit into a minute
// or two.
func (w *writes) few() int { return max(w.o.rounds/10, 1) }

func (w *writes) starts() (trial, error) {
	const plain = "create"
	c := contest{
		title: "Create with an overlay",
		about: "A sandbox is made, by a launcher that is up, without and with an overlay of a directory with so many files. Its removal does not count.",
		unit:  "ms", base: plain, rounds: w.o.rounds, measure: clocked,
	}
	add := func(name string, config sandbox.Config) {
		c.peers = append(c.peers, peer{name: name, version: "this tree's", clock: w.creation(config)})
	}
	add(plain, sandbox.Config{})
	for _, n := range []int{10, 100_000} {
		tree, err := w.tree(fmt.Sprintf("home%d", n), n)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s, overlay of %d files", plain, n)
		add(name, sandbox.Config{Overlays: []string{tree}})
		c.limits = append(c.limits, limit{name, plain, 1})
	}
	return c, nil
}

// copyPeer copies a directory, and perhaps has it on the disk.
func (w *writes) copyPeer(name, from string, sync bool) peer {
	to := filepath.Join(w.dir, "copy")
	return peer{name: name, version: "cp", clock: timed(
		func() error {
			if err := capture(exec.Command("cp", "-a", from, to)); err != nil || !sync {
				return err
			}
			return capture(exec.Command("sync", "-f", to))
		},
		func() error { return w.putAside(to) })}
}

// putAside takes a file or directory out of the way, to be deleted at the end of the run.
func (w *writes) putAside(path string) error {
	w.aside++
	return os.Rename(path, filepath.Join(w.dir, fmt.Sprintf("aside%d", w.aside)))
}

// empty takes all out of a directory.
func (w *writes) empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, w.putAside(filepath.Join(dir, e.Name())))
	}
	return err
}

func (w *writes) lists() (trial, error) {
	box, _, same, err := w.changedBox("listed", 10)
	if err != nil {
		return nil, err
	}
	list := func(names bool) func() error {
		return func() error {
			c, err := box.Changes(context.Background())
			if err != nil {
				return err
			}
			n := 0
			for _, err := range c.List(sandbox.ListOptions{Names: names}) {
				if err != nil {
					return errors.Join(err, c.Close())
				}
				n++
			}
			if n < changed {
				err = fmt.Errorf("%d changes are listed", n)
			}
			return errors.Join(err, c.Close())
		}
	}
	const base, byName, whole = "cp -a of the same files", "list by name", "list with sizes"
	return contest{
		title: "List 10,000 changes",
		about: "What a sandbox has made on its layer, in directories of a hundred: opened, listed and closed by a Go program.",
		unit:  "ms", base: base, rounds: w.few(), measure: clocked,
		peers: []peer{
			w.copyPeer(base, same, false),
			{name: byName, version: "this tree's", clock: timed(list(true), nothing)},
			{name: whole, version: "this tree's", clock: timed(list(false), nothing)},
		},
		bounds: []bound{{byName, base, 0.1}, {whole, base, 0.1}},
		limits: []limit{{byName, "", 15}, {whole, "", 100}},
	}, nil
}

func (w *writes) applies() (trial, error) {
	box, tree, same, err := w.changedBox("applied", 0)
	if err != nil {
		return nil, err
	}
	apply := func() error {
		c, err := box.Changes(context.Background())
		if err != nil {
			return err
		}
		done, err := c.Apply(context.Background(), sandbox.ApplyOptions{Overwrite: true})
		if err == nil && len(done.Changes) < changed {
			err = fmt.Errorf("%d changes are applied", len(done.Changes))
		}
		return errors.Join(err, c.Close())
	}
	empty := func() error { return w.empty(tree) }
	const base, ours = "cp -a, sync", "apply"
	return contest{
		title: "Apply 10,000 small files",
		about: "The files of a sandbox's layer are put onto the host's empty directory, journal and sync included.",
		unit:  "ms", base: base, rounds: w.few(), measure: clocked,
		peers:  []peer{w.copyPeer(base, same, true), {name: ours, version: "this tree's", clock: timed(apply, empty)}},
		bounds: []bound{{ours, base, 1.5}},
	}, nil
}

func (w *writes) workspaces() (trial, error) {
	box, err := w.box(sandbox.Config{})
	if err != nil {
		return nil, err
	}
	var dirs [2]string
	for i := range dirs {
		if dirs[i], err = w.tree(fmt.Sprintf("workspace%d", i), 10); err != nil {
			return nil, err
		}
	}
	turn := 0
	attach := func() error {
		turn++
		return box.SetWorkspace(context.Background(), dirs[turn%2])
	}
	first := func() (took time.Duration, err error) {
		fresh, err := w.manager.Create(context.Background(), sandbox.Config{}, sandbox.Tied())
		if err != nil {
			return 0, err
		}
		time.Sleep(w.o.idle) // as one that is taken from a pool
		return timed(func() error { return fresh.SetWorkspace(context.Background(), dirs[0]) }, fresh.Close)()
	}
	const base, ours, again = "create with the workspace", "attach to a live sandbox", "attach in place of another"
	return contest{
		title: "Attach a workspace",
		about: "A directory of the host's comes to be the workspace of a sandbox that is up, the first or in place of the one before.",
		unit:  "ms", base: base, rounds: w.o.rounds, measure: clocked,
		peers:  []peer{{name: base, version: "this tree's", clock: w.creation(sandbox.Config{Workspace: dirs[0]})}, {name: ours, version: "this tree's", clock: first}, {name: again, version: "this tree's", clock: timed(attach, nothing)}},
		limits: []limit{{ours, "", 1}},
	}, nil
}

// inARow is how many execs make one value, where microseconds are looked for.
const inARow = 20

func (w *writes) files() (trial, error) {
	box, err := w.box(sandbox.Config{})
	if err != nil {
		return nil, err
	}
	run := func(c sandbox.Command) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			var took []float64
			for range inARow {
				begin := time.Now()
				if err := succeed(box.Exec(context.Background(), c)); err != nil {
					return 0, err
				}
				took = append(took, float64(time.Since(begin)))
			}
			return time.Duration(median(took)), nil
		}
	}
	const base, idle, busy = "exec of true, not watched", "exec of true", "exec that makes 100 files, removed by the next"
	const unwatched = busy + ", not watched"
	making := []string{"sh", "-c", "if [ -d d ]; then rm -r d; fi; mkdir d; i=0; while [ $i -lt 100 ]; do : > d/$i; i=$((i+1)); done"}
	return contest{
		title: "Files of an exec",
		about: fmt.Sprintf("Which files a command has changed is told in its Result, unless Command.NoFiles says not to watch. A value is the median of %d in a row.", inARow),
		unit:  "ms", base: base, rounds: max(w.o.rounds/2, 1), measure: clocked,
		peers: []peer{
			{name: base, version: "this tree's", clock: run(sandbox.Command{Args: []string{"true"}, NoFiles: true})},
			{name: idle, version: "this tree's", clock: run(sandbox.Command{Args: []string{"true"}})},
			{name: unwatched, version: "this tree's", clock: run(sandbox.Command{Args: making, NoFiles: true})},
			{name: busy, version: "this tree's", clock: run(sandbox.Command{Args: making})},
		},
		limits: []limit{{idle, base, 0.03}},
	}, nil
}

// forks are of a sandbox whose layer holds ten thousand files and a gigabyte.
func (w *writes) forks() (trial, error) {
	tree, err := w.tree("forked", 10)
	if err != nil {
		return nil, err
	}
	config := sandbox.Config{
		Overlays: []string{tree}, Cwd: tree, Storage: sandbox.StorageDisk,
		Limits: sandbox.Limits{Files: 4 * changed, Disk: 4 << 30, FileSize: 2 << 30},
	}
	box, err := w.box(config)
	if err != nil {
		return nil, err
	}
	if err := fill(box, changed); err != nil {
		return nil, err
	}
	if err := execIn(box, "sh", "-c", "head -c 1G /dev/zero > large"); err != nil {
		return nil, err
	}
	number := 0
	name := func() string { return fmt.Sprintf("bench-%d-%d", os.Getpid(), number) }
	remove := func() error { return w.manager.RemoveSnapshot(context.Background(), name()) }
	snapshot := func() error {
		number++
		return box.Snapshot(context.Background(), name())
	}
	fork := func() (time.Duration, error) {
		if err := snapshot(); err != nil {
			return 0, err
		}
		took, err := w.creation(config, sandbox.From(name()))()
		return took, errors.Join(err, remove())
	}
	const base, taken, forked = "create, on disk", "snapshot", "create from the snapshot"
	return contest{
		title: "Fork",
		about: "A sandbox has made 10,000 files and one of 1 GB on its layer. A snapshot of it is taken, and a sandbox made that begins with these files; each in the end removed again.",
		unit:  "ms", base: base, rounds: w.few(), measure: clocked,
		peers: []peer{
			{name: base, version: "this tree's", clock: w.creation(config)},
			{name: taken, version: "this tree's", clock: timed(snapshot, remove)},
			{name: forked, version: "this tree's", clock: fork},
		},
		limits: []limit{{taken, "", 20}, {forked, "", 20}},
	}, nil
}
