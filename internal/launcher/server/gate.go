package server

import "context"

// A gate bounds how much of one kind goes on at a time for one peer.
type gate chan struct{}

// take waits for a place.
func (g gate) take(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g gate) leave() { <-g }

// gates keep a peer from filling memory, however many calls it has.
type gates struct {
	// long has a place for each long request, from before the launcher reads it until it is
	// carried out.
	long gate
	// looks has a place for each call that reads records of sandboxes. A record can have a
	// configuration of maxConfig.
	looks gate
	// answers has a place for each answer with records, until it is sent.
	answers gate
	// lists has a place for each call that sends lists, with the layers that it has open.
	lists gate
}

// These are how many of each there are for a peer. Root has rootShare times as many.
const (
	maxLong    = 4
	maxLooks   = 8
	maxAnswers = 4
	maxLists   = 4
	rootShare  = 16
)

func newGates(r *Rule) gates {
	share := 1
	if r.all {
		share = rootShare
	}
	return gates{
		long: make(gate, share*maxLong), looks: make(gate, share*maxLooks),
		answers: make(gate, share*maxAnswers), lists: make(gate, share*maxLists),
	}
}
