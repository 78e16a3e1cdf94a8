package main

// A contest measures peers that do the same against each other.
type contest struct {
	title string
	about string // what is compared, and what is the same for all
	unit  string // of the measured values
	base  string // name of the peer that ratios refer to
	peers []peer
	// bounds are what the project holds itself to.
	bounds []bound
	// measure runs a peer once and returns what that cost, in unit.
	measure func(peer) (float64, error)
	// rounds is how often each peer runs, beside the rounds that warm up.
	rounds int
}

// A bound is a peer's cost as a share of the base's, at most.
type bound struct {
	peer string
	most float64
}

// A field is a group of contests with what they need while they run.
type field struct {
	name string
	// open prepares below dir; done ends what open started.
	open func(o options, dir string) (contests []contest, done func() error, err error)
}

// fields are all there are, in the order of the report.
var fields = []field{
	{"start", openStarts},
	{"exec", openExecs},
	{"memory", openMemory},
	{"docker", openDocker},
}

func nothingToClose() error { return nil }
