package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A crowd is many idle sandboxes at once.
type crowd struct {
	manager *sandbox.Manager
	size    int
}

// Bounds of a crowd of 1,000.
const (
	lastByFirst  = 2.0
	leastPerGiB  = 1000
	mostTeardown = 5 * time.Second
)

// ends is how many at the beginning and at the end make the figures "first" and
// "last": one alone says nothing.
const crowdEnds = 20

func openCrowd(o options, dir string) ([]trial, func() error, error) {
	m, err := newManager(o, dir)
	if err != nil {
		return nil, nil, err
	}
	return []trial{crowd{m, o.crowd}}, m.Close, nil
}

func (c crowd) run(w io.Writer, o options) error {
	if err := c.warm(o.warmup); err != nil {
		return err
	}
	free, err := memAvailable()
	if err != nil {
		return err
	}
	boxes, times, err := c.create(o.idle)
	if err != nil {
		return errors.Join(err, remove(boxes))
	}
	left, err := memAvailable()
	if err != nil {
		return errors.Join(err, remove(boxes))
	}
	begin := time.Now()
	if err := remove(boxes); err != nil {
		return err
	}
	took := time.Since(begin)
	rest, err := c.manager.List(context.Background())
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d sandboxes are left", len(rest))
	}
	if err != nil {
		return err
	}
	c.report(w, times, free-left, took)
	return nil
}

func (c crowd) warm(rounds int) error {
	for range rounds {
		box, err := c.manager.Create(context.Background(), sandbox.Config{})
		if err != nil {
			return err
		}
		if err := box.Close(); err != nil {
			return err
		}
	}
	return nil
}

// create makes the crowd, one after the other, and returns how long each took.
func (c crowd) create(idle time.Duration) (boxes []*sandbox.Sandbox, times []float64, err error) {
	for range c.size {
		time.Sleep(idle)
		begin := time.Now()
		// Tied: a benchmark that is interrupted leaves none behind.
		box, err := c.manager.Create(context.Background(), sandbox.Config{}, sandbox.Tied())
		if err != nil {
			return boxes, times, fmt.Errorf("sandbox %d: %w", len(boxes)+1, err)
		}
		times = append(times, float64(time.Since(begin).Nanoseconds())/1e6)
		boxes = append(boxes, box)
	}
	return boxes, times, nil
}

// remove closes all of them, some at once.
func remove(boxes []*sandbox.Sandbox) error {
	var group errgroup.Group
	group.SetLimit(workers)
	for _, box := range boxes {
		group.Go(box.Close)
	}
	return group.Wait()
}

func (c crowd) report(w io.Writer, times []float64, used int64, took time.Duration) {
	n := min(crowdEnds, len(times))
	first, last := median(times[:n]), median(times[len(times)-n:])
	each := float64(used) / float64(c.size)
	perGiB := float64(1<<30) / each
	fmt.Fprintf(w, "\n## %d idle sandboxes\n\nMade one after the other with the host's root; none ever ran a command. Their memory is the difference in MemAvailable, the launcher's own included; %d goroutines close them.\n\n", c.size, workers)
	fmt.Fprintln(w, "| what | measured | bound | |")
	fmt.Fprintln(w, "|---|---|---|---|")
	row := func(what, measured, bound string, holds bool) {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", what, measured, bound, map[bool]string{true: "holds", false: "missed"}[holds])
	}
	row(fmt.Sprintf("start of the last %d by that of the first %[1]d, medians", n), fmt.Sprintf("%.2f (%.1f ms by %.1f ms)", last/first, last, first),
		fmt.Sprintf("at most %.0f", lastByFirst), last <= lastByFirst*first)
	row("memory", fmt.Sprintf("%.0f kB each, %.0f per GiB", each/1024, perGiB), fmt.Sprintf("at least %d per GiB", leastPerGiB), perGiB >= leastPerGiB)
	row("all gone", took.Round(time.Millisecond).String(), "at most "+mostTeardown.String(), took <= mostTeardown)
}

// settle is how long the kernel may take to hand back memory that it frees later.
const settle = 2 * time.Second

// memAvailable is the memory that could be had without swapping, in bytes
// (proc_meminfo(5)).
func memAvailable() (int64, error) {
	time.Sleep(settle)
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
