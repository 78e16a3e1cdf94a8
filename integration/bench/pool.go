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

// openPool measures a launcher with a pool beside one without, and beside crun.
func openPool(o options, dir string) (_ []trial, done func() error, err error) {
	p := &poolBench{o: o, dir: dir}
	done = func() error { return closeAll(p.ends) }
	defer func() {
		if err != nil {
			err = errors.Join(err, done())
		}
	}()
	if p.bundle, err = makeBundle(o, dir, []string{"echo", "hello"}); err != nil {
		return nil, nil, err
	}
	if p.ofHost, err = p.bundle.ofHost(dir); err != nil {
		return nil, nil, err
	}
	if p.cold, err = p.manager("cold", nil); err != nil {
		return nil, nil, err
	}
	p.warm, err = p.manager("warm", &sandbox.PoolConfig{Min: 10, WarmUp: 10, Max: 50})
	if err == nil {
		err = p.listen()
	}
	if err != nil {
		return nil, nil, err
	}
	return []trial{p.lives(), p.claims(), trialFunc(p.burst), trialFunc(p.footprint)}, done, nil
}

type poolBench struct {
	o          options
	dir        string
	bundle     benchBundle
	ofHost     benchBundle
	cold, warm *sandbox.Manager
	socket     string           // of a launcher with a pool
	listening  *sandbox.Manager // a client of that launcher
	ends       []func() error
}

func (p *poolBench) program(name string) []string {
	return []string{p.o.binary, "--root", p.o.root(p.dir, name), "--data", filepath.Join(p.dir, "data"), "launcher"}
}

func (p *poolBench) manager(name string, pool *sandbox.PoolConfig) (*sandbox.Manager, error) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Launcher: append(p.program(name), "--fd", "3"), Pool: pool})
	if err == nil {
		p.ends = append(p.ends, m.Close)
	}
	return m, err
}

// listen starts a launcher with a pool, for do.
func (p *poolBench) listen() (err error) {
	p.socket = filepath.Join(p.dir, "socket")
	args := append(p.program("listening"), "--socket", p.socket, "--pool", "min=10,warmup=10")
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		return err
	}
	p.ends = append(p.ends, func() error {
		err := cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // of a launcher that was told to end
		return err
	})
	for range 500 {
		p.listening, err = sandbox.NewManager(sandbox.ManagerConfig{Socket: p.socket})
		if err == nil {
			p.ends = append(p.ends, p.listening.Close)
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// filled waits until a pool has blanks, and its launcher makes none.
func filled(m *sandbox.Manager) error {
	var s sandbox.PoolStats
	for range 12_000 {
		var err error
		if s, err = m.PoolStats(context.Background()); err != nil {
			return err
		}
		if s.Ready >= s.Config.Min && s.Total == s.Ready {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the pool does not fill: %d of %d blanks are ready; its last failure: %q", s.Ready, s.Config.Min, s.LastError)
}

// rest waits until the pools are full, and makes a pause after that.
func (p *poolBench) rest() error {
	err := errors.Join(filled(p.warm), filled(p.listening))
	time.Sleep(p.o.idle)
	return err
}

// alone measures f after a pause since the pools were full.
func (p *poolBench) alone(f func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		if err := p.rest(); err != nil {
			return 0, err
		}
		begin := time.Now()
		err := f()
		return time.Since(begin), err
	}
}

// hitting is a clock that returns an error if fewer than so many sandboxes take a blank of a pool meanwhile.
func hitting(m *sandbox.Manager, least int, clock func() (time.Duration, error)) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		before, err := m.PoolStats(context.Background())
		if err != nil {
			return 0, err
		}
		took, err := clock()
		if err != nil {
			return 0, err
		}
		after, err := m.PoolStats(context.Background())
		if hits := after.Hits - before.Hits; err == nil && hits < least {
			err = fmt.Errorf("%d sandboxes took a blank of the pool, not %d; all misses of this pool by reason: %v", hits, least, after.Misses)
		}
		return took, err
	}
}

// lives compares sandboxes for one command.
func (p *poolBench) lives() contest {
	const warm, cold, do = "create to closed, from the pool", "create to closed, without", "do, from the pool"
	crun := runtimes(p.o, p.dir)[0].peer("run", "run", "--bundle", p.ofHost.dir, "benchpool").captured()
	life := func(m *sandbox.Manager) func() error {
		return func() error {
			box, err := m.Create(context.Background(), sandbox.Config{}, sandbox.Tied())
			if err != nil {
				return err
			}
			return errors.Join(execIn(box, "echo", "hello"), box.Close())
		}
	}
	host := func() error { return capture(exec.Command(filepath.Join(p.o.peers, "bin/busybox"), "true")) }
	throughSocket := func() error {
		return capture(exec.Command(p.o.binary, "--socket", p.socket, "do", "--", "true"))
	}
	crun.clock = p.alone(crun.call)
	crun.call = nil
	return contest{
		title: "Sandboxes from a pool",
		about: "Create, `echo`, destroy, from Go, and `do -- true` by a launcher that listens. Before each run the pools are full. crun runs the host's echo, too, with the environment of a sandbox, in a bundle with Docker's seccomp profile. The host's process is busybox's true.",
		unit:  "ms", base: crunName + " run", rounds: p.o.rounds, measure: clocked,
		peers: []peer{
			{name: hostCaptured, version: "os/exec", clock: p.alone(host)},
			crun,
			{name: warm, version: "this tree's", clock: hitting(p.warm, 1, p.alone(life(p.warm)))},
			{name: cold, version: "this tree's", clock: p.alone(life(p.cold))},
			{name: do, version: "this tree's", clock: hitting(p.listening, 1, p.alone(throughSocket))},
		},
		bounds: []bound{{warm, crunName + " run", 0.15}, {cold, crunName + " run", 0.85}, {do, crunName + " run", 0.4}},
	}
}

// claims compares the creation alone with a process of the host.
func (p *poolBench) claims() contest {
	const plain, workspace, overlay = "claim", "claim with a workspace", "claim with an overlay"
	claim := func(c sandbox.Config) func() (time.Duration, error) {
		return hitting(p.warm, 1, func() (took time.Duration, err error) {
			if err := p.rest(); err != nil {
				return 0, err
			}
			begin := time.Now()
			box, err := p.warm.Create(context.Background(), c, sandbox.Tied())
			took = time.Since(begin)
			if err != nil {
				return 0, err
			}
			return took, box.Close()
		})
	}
	host := func() error { return capture(exec.Command(filepath.Join(p.o.peers, "bin/busybox"), "true")) }
	return contest{
		title: "Claims",
		about: fmt.Sprintf("Create from Go, from a full pool. The removal is not part of the time. The host's process is that of %q.", hostCaptured),
		unit:  "ms", base: hostCaptured, rounds: p.o.rounds, measure: clocked,
		peers: []peer{
			{name: hostCaptured, version: "os/exec", clock: p.alone(host)},
			{name: plain, version: "this tree's", clock: claim(sandbox.Config{})},
			{name: workspace, version: "this tree's", clock: claim(sandbox.Config{Workspace: p.bundle.root})},
			{name: overlay, version: "this tree's", clock: claim(sandbox.Config{Overlays: []string{p.bundle.root}})},
		},
		bounds: []bound{{plain, hostCaptured, 2}, {workspace, hostCaptured, 3}, {overlay, hostCaptured, 3.5}},
	}
}
