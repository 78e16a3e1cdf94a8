package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A series holds measured values by peer and round.
type series map[string][]float64

// A measurement has the results of a contest's rounds: of the runs after a pause, and of
// those that followed at once.
type measurement struct{ spaced, together series }

// values runs every peer in each round, in an order drawn anew.
func (c contest) values(o options) (measurement, error) {
	m := measurement{series{}, series{}}
	peers := present(c.peers)
	for round := range o.warmup + c.rounds {
		for _, i := range rand.Perm(len(peers)) {
			p := peers[i]
			spaced, together, err := c.turn(p, o.idle)
			if err != nil {
				return m, fmt.Errorf("%s, round %d: %w", p.name, round, err)
			}
			if round < o.warmup {
				continue
			}
			m.spaced[p.name] = append(m.spaced[p.name], spaced)
			if c.burst > 0 {
				m.together[p.name] = append(m.together[p.name], together)
			}
		}
	}
	return m, nil
}

// turn runs one peer after a pause, and then as often as burst says.
func (c contest) turn(p peer, idle time.Duration) (spaced, together float64, err error) {
	time.Sleep(idle)
	if spaced, err = c.measure(p); err != nil {
		return 0, 0, err
	}
	for range c.burst {
		value, err := c.measure(p)
		if err != nil {
			return 0, 0, err
		}
		together += value / float64(c.burst)
	}
	return spaced, together, nil
}

// milliseconds is the time from before the fork to after the wait.
func milliseconds(p peer) (float64, error) {
	begin := time.Now()
	err := p.run()
	took := time.Since(begin)
	if err != nil {
		return 0, err
	}
	return float64(took.Nanoseconds()) / 1e6, p.undo()
}
