package server

import "golang.org/x/sync/semaphore"

// gates keep a peer from filling the launcher's memory, however many calls the peer has.
type gates struct {
	// long has a place for each long request, from before the launcher reads it until it is
	// carried out.
	long *semaphore.Weighted
	// reads has a place for each call that reads records of sandboxes. A record can hold a
	// configuration of up to maxConfig bytes.
	reads *semaphore.Weighted
	// answers has a place for each answer with records, until it is sent.
	answers *semaphore.Weighted
	// results has a place for each Result with many paths, until it is sent.
	results *semaphore.Weighted
	// lists has a place for each call that sends lists, with the layers that it has open.
	lists *semaphore.Weighted
	// builds has a place for each call that reads the content of an image. A child process with up to
	// 2.5 GiB of memory reads for it.
	builds *semaphore.Weighted
}

// The numbers of places of one peer. A rule that allows everything has rootShare times as
// many.
const (
	maxLong    = 4
	maxReads   = 8
	maxAnswers = 4
	maxResults = 16
	maxLists   = 4
	maxBuilds  = 1 // images.User has a bound that holds for one at a time
	rootShare  = 16
)

func newGates(r *Rule) gates {
	share := int64(1)
	if r.all {
		share = rootShare
	}
	return gates{
		long: semaphore.NewWeighted(share * maxLong), reads: semaphore.NewWeighted(share * maxReads),
		answers: semaphore.NewWeighted(share * maxAnswers), lists: semaphore.NewWeighted(share * maxLists),
		builds: semaphore.NewWeighted(share * maxBuilds), results: semaphore.NewWeighted(share * maxResults),
	}
}
