package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// measure runs every peer once per round, in an order drawn anew for each, and
// returns milliseconds by peer and round. The time is from before the fork to
// after the wait.
func measure(o options, peers []peer) (map[string][]float64, error) {
	times := map[string][]float64{}
	for round := range o.warmup + o.rounds {
		for _, i := range rand.Perm(len(peers)) {
			p := peers[i]
			cmd := p.command()
			time.Sleep(o.idle)
			begin := time.Now()
			err := cmd.Run()
			took := time.Since(begin)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", p.name, round, err)
			}
			if round >= o.warmup {
				times[p.name] = append(times[p.name], float64(took.Nanoseconds())/1e6)
			}
		}
	}
	return times, nil
}
