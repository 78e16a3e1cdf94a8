package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// burst is how many runs of a peer make its figure for "back to back".
const burst = 3

// openSandboxes measures the costs of a Go program with the package sandbox and a launcher
// of its own, beside those with os/exec and with OCI runtimes. All run the same busybox,
// and capture its output.
func openSandboxes(o options, dir string) (_ []trial, done func() error, err error) {
	b, err := makeBundle(o, dir, []string{"sleep", "100000"})
	if err != nil {
		return nil, nil, err
	}
	peers, end := execPeers(o, dir, b)
	ends := []func() error{end}
	done = func() error { return closeAll(ends) }
	defer func() {
		if err != nil {
			err = errors.Join(err, done())
		}
	}()
	m, err := newManager(o, dir)
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, m.Close)
	box, err := m.Create(context.Background(), sandbox.Config{Rootfs: b.root}, sandbox.Tied())
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, box.Close)
	lives, err := wholeLives(o, dir, m, b)
	if err != nil {
		return nil, nil, err
	}
	return []trial{liveExecs(o, peers, box), parallelExecs(o, peers, box), lives}, done, nil
}

// closeAll closes the last opened first.
func closeAll(ends []func() error) error {
	var errs []error
	for i := len(ends) - 1; i >= 0; i-- {
		errs = append(errs, ends[i]())
	}
	return errors.Join(errs...)
}

// newManager starts a launcher of the program under test that is ours alone.
func newManager(o options, dir string) (*sandbox.Manager, error) {
	return sandbox.NewManager(sandbox.ManagerConfig{Launcher: []string{
		o.binary, "--root", o.root(dir, "sandboxes"), "--data", filepath.Join(dir, "data"), "launcher", "--fd", "3",
	}})
}

// The names of peers in a table of their own kind.
const (
	hostCaptured = hostPeer + ", captured"
	liveSandbox  = ourName + ", exec in a live sandbox"
)

func hostExec(o options, args ...string) peer {
	program := filepath.Join(o.peers, "bin/busybox")
	return peer{name: hostCaptured, version: "os/exec", call: func() error {
		return capture(exec.Command(program, args...))
	}}
}

// succeed makes an error of a command that did not go as it should.
func succeed(r sandbox.Result, err error) error {
	if err == nil && (r.Status != sandbox.StatusExited || r.ExitCode != 0) {
		err = fmt.Errorf("%s: %s", r.Status, r.Reason)
	}
	return err
}

func execIn(box *sandbox.Sandbox, args ...string) error {
	return succeed(box.Exec(context.Background(), sandbox.Command{Args: args}))
}

// execContest has the host, the OCI runtimes and a sandbox run true.
func execContest(o options, runtimes []peer, box *sandbox.Sandbox) contest {
	c := contest{unit: "ms", base: hostCaptured, rounds: o.rounds, measure: milliseconds}
	c.peers = append(c.peers, hostExec(o, "true"))
	for _, p := range runtimes {
		c.peers = append(c.peers, p.captured())
	}
	c.peers = append(c.peers, peer{name: liveSandbox, version: "this tree's", call: func() error { return execIn(box, "true") }})
	return c
}

func liveExecs(o options, runtimes []peer, box *sandbox.Sandbox) contest {
	c := execContest(o, runtimes, box)
	c.title = "Exec of `true` from Go"
	c.about = "A Go program runs busybox's `true` and captures both output streams: by os/exec on the host, by the OCI runtimes' `exec`, and by Sandbox.Exec in a sandbox that is up, with a cgroup of its own and the seccomp filter."
	c.burst = burst
	c.bounds = []bound{{liveSandbox, hostCaptured, 1.5}, {liveSandbox, crunName + " exec", 0.12}, {liveSandbox, runcName + " exec", 0.05}}
	return c
}

// The number of runs at once, and of those that make one figure.
const (
	workers = 16
	batch   = 8 * workers
)

func parallelExecs(o options, runtimes []peer, box *sandbox.Sandbox) contest {
	c := execContest(o, runtimes, box)
	c.title = "Execs of `true` from Go, 16 at once"
	c.about = fmt.Sprintf("The same, by %d goroutines in one sandbox or container: the time of %d divided by their number. A throughput of at least 0.8 of the host's is a time of at most 1.25.", workers, batch)
	c.unit = "ms each"
	c.rounds = max(o.rounds/8, 1)
	c.measure = millisecondsEach
	c.bounds = []bound{{liveSandbox, hostCaptured, 1.25}}
	return c
}

// millisecondsEach is the time of one run when many go on at once.
func millisecondsEach(p peer) (float64, error) {
	var group errgroup.Group
	begin := time.Now()
	for range workers {
		group.Go(func() (err error) {
			for range batch / workers {
				err = errors.Join(err, p.run())
			}
			return err
		})
	}
	err := group.Wait()
	took := time.Since(begin)
	return float64(took.Nanoseconds()) / 1e6 / batch, err
}

// wholeLives compares a sandbox that is made for one command with a container.
func wholeLives(o options, dir string, m *sandbox.Manager, b benchBundle) (contest, error) {
	ours := ourName + ", create to closed"
	echo := []string{"echo", "hello"}
	b.dir = filepath.Join(dir, "echo")
	b.spec.Process.Args = echo
	if err := errors.Join(os.Mkdir(b.dir, 0o755), b.write()); err != nil {
		return contest{}, err
	}
	c := contest{
		title: "Create, `echo`, destroy, from Go",
		about: "From the call until everything of it is gone, with a launcher that is up. The sandboxes have the host's root, or the bundle's; the runtimes `run` the bundle.",
		unit:  "ms", base: crunName + " run", rounds: o.rounds, burst: burst, measure: milliseconds,
		bounds: []bound{{ours, crunName + " run", 0.7}},
	}
	for _, r := range runtimes(o, dir) {
		if r.name != ourName {
			c.peers = append(c.peers, r.peer("run", "run", "--bundle", b.dir, "benchecho").captured())
		}
	}
	life := func(config sandbox.Config) func() error {
		return func() error {
			box, err := m.Create(context.Background(), config, sandbox.Tied())
			if err != nil {
				return err
			}
			return errors.Join(execIn(box, echo...), box.Close())
		}
	}
	c.peers = append(c.peers,
		peer{name: ours, version: "this tree's", call: life(sandbox.Config{})},
		peer{name: ours + ", bundle's root", version: "this tree's", call: life(sandbox.Config{Rootfs: b.root})})
	return c, nil
}
