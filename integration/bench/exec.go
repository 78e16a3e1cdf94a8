package main

import (
	"errors"
	"fmt"
)

// openExecs compares execs in a container that each runtime keeps running.
func openExecs(o options, dir string) ([]trial, func() error, error) {
	b, err := makeBundle(o, dir, []string{"sleep", "100000"})
	if err != nil {
		return nil, nil, err
	}
	peers, end := execPeers(o, dir, b)
	return []trial{contest{
		title: "Exec of `true` in a running container",
		about: "`exec` of the OCI runtimes, each in a container of its own from the bundle above.",
		unit:  "ms", base: runcName + " exec", peers: peers, rounds: o.rounds, measure: milliseconds,
		bounds: []bound{{ourName + " exec", runcName + " exec", 1.0}},
	}}, end, nil
}

// execPeers are the OCI runtimes' execs of true, each in a container of the bundle
// that runs until end.
func execPeers(o options, dir string, b benchBundle) (peers []peer, end func() error) {
	var ends [][]string
	for i, r := range runtimes(o, dir) {
		id := fmt.Sprintf("bench%d", i) // also the names of their cgroups
		p := r.peer("exec", "exec", id, "true")
		// Its output goes nowhere: the container would hold a pipe open.
		if err := p.commandOf(r.args("run", "--detach", "--bundle", b.dir, id)).Run(); err != nil {
			p.missing = fmt.Sprintf("run --detach: %v", err)
		}
		ends = append(ends, r.args("delete", "--force", id))
		peers = append(peers, p)
	}
	end = func() error {
		var errs []error
		for i, p := range peers {
			if p.missing == "" {
				p.after = [][]string{ends[i]}
				errs = append(errs, p.undo())
			}
		}
		return errors.Join(errs...)
	}
	return peers, end
}
