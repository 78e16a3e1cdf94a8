package main

import (
	"fmt"
	"io"
)

// A trial is one thing that is measured, and a part of the report.
type trial interface {
	run(w io.Writer, o options) error
}

// A contest measures peers that do the same against each other.
type contest struct {
	title string
	about string // the compared cost, and the common conditions
	unit  string // of the measured values
	base  string // name of the peer that the tables' ratios refer to
	peers []peer
	// bounds are the project's own bounds.
	bounds []bound
	limits []limit
	extras []extra
	// measure runs a peer once and returns the cost, in unit.
	measure func(peer) (float64, error)
	// rounds is how often each peer runs, beside the rounds that warm up.
	rounds int
	// burst is how many runs of the peer follow in a round at once, without a
	// pause; their mean is reported as well.
	burst int
}

// A bound is a peer's cost as a share of another one's, at most.
type bound struct {
	peer, base string
	most       float64
}

// A limit is a peer's cost in the contest's unit, at most: all of it, or the part beyond
// that of another one.
type limit struct {
	peer, beyond string
	most         float64
}

// An extra is the part of a peer's cost beyond that of another one, as a share of a third
// one's, at most.
type extra struct {
	peer, beyond, base string
	most               float64
}

// A field is a group of trials with the things that they need while they run.
type field struct {
	name string
	// open prepares below dir; done ends it.
	open func(o options, dir string) (trials []trial, done func() error, err error)
}

// fields are all there are, in the order of the report.
var fields = []field{
	{"start", openStarts},
	{"exec", openExecs},
	{"sandbox", openSandboxes},
	{"pool", openPool},
	{"network", openNetworks},
	{"proxied", openProxied},
	{"crowd", openCrowd}, // before those that leave the kernel with much to write
	{"memory", openMemory},
	{"overlay", openOverlays},
	{"changes", openChanges},
	{"images-start", openImages((*imageWork).starts, (*imageWork).startsInUse)},
	{"images-import", openImages((*imageWork).imports, (*imageWork).removals)},
	{"images-pull", openImages((*imageWork).memory, (*imageWork).pulls)},
	{"images-read", openImages((*imageWork).reads)},
	{"many", openMany},
	{"docker", openDocker},
}

func (c contest) run(w io.Writer, o options) error {
	for i := range c.peers {
		c.peers[i].look(c)
	}
	values, err := c.values(o)
	if err != nil {
		return fmt.Errorf("%s: %w", c.title, err)
	}
	c.report(w, values)
	return nil
}
