package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// run runs every peer once per round, in an order drawn anew for each, and
// returns what it measured by peer and round.
func (c contest) run(o options) (map[string][]float64, error) {
	values := map[string][]float64{}
	peers := present(c.peers)
	for round := range o.warmup + c.rounds {
		for _, i := range rand.Perm(len(peers)) {
			p := peers[i]
			time.Sleep(o.idle)
			value, err := c.measure(p)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", p.name, round, err)
			}
			if round >= o.warmup {
				values[p.name] = append(values[p.name], value)
			}
		}
	}
	return values, nil
}

// milliseconds is the time from before the fork to after the wait.
func milliseconds(p peer) (float64, error) {
	cmd := p.command()
	begin := time.Now()
	err := cmd.Run()
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", p.args, err)
	}
	return float64(took.Nanoseconds()) / 1e6, p.undo()
}
