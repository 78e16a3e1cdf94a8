package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A trialFunc is a trial that opens things for itself alone.
type trialFunc func(w io.Writer, o options) error

func (f trialFunc) run(w io.Writer, o options) error { return f(w, o) }

// Sizes of the trials of many blanks.
const (
	burstCreates = 100
	burstPool    = 50
	footprints   = 200
)

// burst compares many creates at once, twice as many as the pool has blanks.
func (p *poolBench) burst(w io.Writer, o options) error {
	const with, without = "with a pool", "without a pool"
	full, err := p.manager("full", &sandbox.PoolConfig{Min: burstPool, WarmUp: burstPool, Max: burstPool})
	if err != nil {
		return err
	}
	creates := func(m *sandbox.Manager) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			if err := filled(full); err != nil {
				return 0, err
			}
			time.Sleep(o.idle)
			return burstOf(m)
		}
	}
	return contest{
		title: "A burst of creates",
		about: fmt.Sprintf("%d creates at once, from Go, until the last sandbox is there: with a full pool of %d blanks, and without a pool.", burstCreates, burstPool),
		unit:  "ms", base: without, rounds: max(o.rounds/20, 3), measure: clocked,
		peers: []peer{
			{name: without, version: "this tree's", clock: creates(p.cold)},
			{name: with, version: "this tree's", clock: hitting(full, burstPool-1, creates(full))}, // a blank can be under check
		},
		bounds: []bound{{with, without, 1}},
	}.run(w, o)
}

// burstOf makes sandboxes at once, and removes them after the time that counts.
func burstOf(m *sandbox.Manager) (took time.Duration, err error) {
	boxes := make([]*sandbox.Sandbox, burstCreates)
	var group errgroup.Group
	begin := time.Now()
	for i := range boxes {
		group.Go(func() (err error) {
			boxes[i], err = m.Create(context.Background(), sandbox.Config{}, sandbox.Tied())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err // the sandboxes end with this process
	}
	took = time.Since(begin)
	return took, remove(boxes)
}

// footprint compares the memory of blanks with that of sandboxes.
func (p *poolBench) footprint(w io.Writer, o options) error {
	const blank, box, fresh = "an idle blank", "a sandbox after its first command", "a sandbox before its first command"
	o.warmup = 0
	costs := map[string]func() (int64, error){
		blank: p.blankMemory,
		box:   func() (int64, error) { return p.sandboxMemory("true") },
		fresh: func() (int64, error) { return p.sandboxMemory("") },
	}
	return contest{
		title: "Memory of a blank",
		about: fmt.Sprintf("The difference in MemAvailable that %d more blanks make, or as many sandboxes, divided by their number. All have been idle for %v. The memory of the kernel, of the launcher and of its client is part of it.", footprints, dropsAfter),
		unit:  "kB", base: box, rounds: 3,
		measure: func(of peer) (float64, error) {
			bytes, err := costs[of.name]()
			return float64(bytes) / footprints / 1024, err
		},
		peers: []peer{
			{name: box, version: "this tree's", call: func() error { return nil }},
			{name: blank, version: "this tree's", call: func() error { return nil }},
			{name: fresh, version: "this tree's", call: func() error { return nil }},
		},
		bounds: []bound{{blank, box, 1}},
	}.run(w, o)
}

// blankMemory is the memory that the blanks of a pool take.
func (p *poolBench) blankMemory() (used int64, err error) {
	m, err := p.manager("blanks", &sandbox.PoolConfig{Min: 1, WarmUp: 1, Max: 1})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return memoryOf(func() error { return filled(m) }, func() error {
		const all = 1 + footprints
		if _, err := m.ResizePool(context.Background(), sandbox.PoolConfig{Min: all, Max: all}); err != nil {
			return err
		}
		return filled(m)
	})
}

// sandboxMemory is the memory that as many sandboxes take. Each has run the command, if it is not empty.
func (p *poolBench) sandboxMemory(command string) (used int64, err error) {
	m, err := p.manager("boxes", nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	first, err := m.Create(context.Background(), sandbox.Config{}, sandbox.Tied())
	if err != nil {
		return 0, err
	}
	boxes := []*sandbox.Sandbox{first}
	defer func() { err = errors.Join(err, remove(boxes)) }()
	run := func(boxes []*sandbox.Sandbox) error {
		for _, box := range boxes {
			if command == "" {
				return nil
			}
			if err := execIn(box, command); err != nil {
				return err
			}
		}
		return nil
	}
	return memoryOf(func() error { return run(boxes) }, func() error {
		more, _, err := crowd{m, footprints}.create(0)
		boxes = append(boxes, more...)
		return errors.Join(err, run(more))
	})
}

// dropsAfter is a time after which a launcher has dropped what it keeps for the next command of an idle sandbox.
const dropsAfter = 2*time.Second + settle

// memoryOf is the memory that a step takes, when all is idle again. before comes first, and does not count.
func memoryOf(before, step func() error) (int64, error) {
	if err := before(); err != nil {
		return 0, err
	}
	free, err := memAvailable()
	if err != nil {
		return 0, err
	}
	if err := step(); err != nil {
		return 0, err
	}
	time.Sleep(dropsAfter - settle)
	left, err := memAvailable()
	return free - left, err
}
