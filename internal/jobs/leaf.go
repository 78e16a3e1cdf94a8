package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/throttle"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A leaf is the cgroup of one exec. The next one is made ready while an exec
// runs, so that an exec seldom waits for it: from one whose exec has ended and
// which counts nothing any more, or else anew; a sandbox in which nothing ever
// ran has none.

// A MadeLeaf is a leaf with the name of the exec that will be in it, or was.
type MadeLeaf struct {
	Exec ExecID
	*cgroups.Leaf
	under leafTerms
	// usage has the counts of the leaf, once nothing lives in it any more.
	usage cgroups.Usage
}

// leafTerms are those limits of a sandbox by which a leaf is made: its own limit
// of processes, and whether it has to keep out of the hierarchy in which the
// sandbox's disk limits hold.
type leafTerms struct {
	pids      int64 // 0: none of its own
	throttled bool
}

// A leafPool has the leaf that is ready, those that may come to be the next ones,
// and those that have to be removed. It is guarded by its live's mu.
type leafPool struct {
	Spares []MadeLeaf
	ended  []MadeLeaf
	used   []*cgroups.Leaf
	// begun says that there was an exec.
	begun bool
}

// MaxEnded bounds how many leaves are kept to be used again in a sandbox.
const MaxEnded = 16

// empty takes them all out.
func (p *leafPool) empty() []*cgroups.Leaf {
	all := p.used
	for _, leaf := range slices.Concat(p.Spares, p.ended) {
		all = append(all, leaf.Leaf)
	}
	*p = leafPool{}
	return all
}

// TakeLeaf returns a leaf that only has the limits of the sandbox.
func (v *Session) TakeLeaf() (MadeLeaf, error) {
	if leaf, ok := v.Take(&v.Leaves.Spares); ok {
		return leaf, nil
	}
	return v.nextLeaf()
}

// Take takes a leaf out of those of the pool.
func (v *Session) Take(from *[]MadeLeaf) (MadeLeaf, bool) {
	terms := termsOf(v.Current())
	v.Mu.Lock()
	defer v.Mu.Unlock()
	for len(*from) > 0 {
		leaf := (*from)[0]
		*from = (*from)[1:]
		if leaf.under == terms {
			return leaf, true
		}
		v.Leaves.used = append(v.Leaves.used, leaf.Leaf) // made before a limit was changed
	}
	return MadeLeaf{}, false
}

// termsOf are the terms that a leaf of a sandbox has now.
func termsOf(r record.Record) leafTerms {
	t := leafTerms{throttled: throttle.Limited(r)}
	if r.Limits.Pids == spec.Enforced {
		t.pids = r.Config.Limits.Pids
	}
	return t
}

// makeAhead makes the leaf of the exec that comes next, while the one that has
// just begun runs, and removes those that were used. A sandbox's first exec may
// be its only one.
func (v *Session) makeAhead() {
	v.Mu.Lock()
	used := v.Leaves.used
	v.Leaves.used = nil
	wanted := v.Leaves.begun && len(v.Leaves.Spares) == 0
	v.Leaves.begun = true
	if len(used) > 0 {
		v.Busy++
		v.all.tending.Go(func() {
			defer v.Leave()
			v.discard(used)
		})
	}
	v.Mu.Unlock()
	if !wanted {
		return
	}
	leaf, err := v.nextLeaf()
	if err != nil {
		return // the exec that needs it says why
	}
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.Leaves.Spares = append(v.Leaves.Spares, leaf)
}

// nextLeaf renews a leaf, or makes one.
func (v *Session) nextLeaf() (MadeLeaf, error) {
	for {
		leaf, ok := v.Take(&v.Leaves.ended)
		if !ok {
			return v.makeLeaf()
		}
		if next, err := v.renew(leaf); err == nil {
			return next, nil
		}
		v.retire(leaf.Leaf)
	}
}

// renew fails where the leaf still counts something, which is no news.
func (v *Session) renew(leaf MadeLeaf) (MadeLeaf, error) {
	e, err := v.all.newExec()
	if err != nil {
		return MadeLeaf{}, err
	}
	next, err := leaf.Renew(e.Leaf(), leaf.usage)
	return MadeLeaf{Exec: e, Leaf: next, under: leaf.under}, err
}

func (v *Session) makeLeaf() (MadeLeaf, error) {
	r := v.Current()
	for {
		e, err := v.all.newExec()
		if err != nil {
			return MadeLeaf{}, err
		}
		terms := termsOf(r)
		opts := cgroups.LeafOptions{Owner: record.HostID(r.UIDMappings, spec.AgentID), Pids: terms.pids}
		leaf, err := v.Group.CreateLeaf(e.Leaf(), opts)
		if errors.Is(err, fs.ErrExist) {
			continue // another launcher in this process
		}
		return MadeLeaf{Exec: e, Leaf: leaf, under: terms}, err
	}
}

// limitLeaf sets the limits of one exec, within those of the sandbox, and names
// those that this host can't hold.
func (v *Session) limitLeaf(leaf MadeLeaf, l spec.Limits) error {
	limits := cgroups.LeafLimits{Memory: int64(l.Memory), CPUs: float64(l.CPUs), Pids: l.Pids}
	if limits == (cgroups.LeafLimits{}) {
		return nil
	}
	return leaf.Limit(limits)
}

// discard removes leaves in which nothing runs any more.
func (v *Session) discard(leaves []*cgroups.Leaf) {
	for _, leaf := range leaves {
		// A leaf that cannot be removed goes with the sandbox.
		_ = leaf.Delete(context.Background()) // it has its own patience
	}
}

// retire has a leaf removed that is not needed any more: beside the next exec,
// or when there is none.
func (v *Session) retire(leaf *cgroups.Leaf) {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.Leaves.used = append(v.Leaves.used, leaf)
	v.startIdleTimer()
}

// recycle is retire, but for a leaf that may come to be the next one.
func (v *Session) recycle(leaf MadeLeaf) {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	if len(v.Leaves.ended) < MaxEnded {
		v.Leaves.ended = append(v.Leaves.ended, leaf)
	} else {
		v.Leaves.used = append(v.Leaves.used, leaf.Leaf)
	}
	v.startIdleTimer()
}

// killTime is how long killed processes may take to be gone. One that is deep in
// a system call, or in a paused sandbox, takes longer; it is not waited for.
const killTime = 5 * time.Second

// endLeaf kills all processes of a leaf and removes the leaf.
func endLeaf(ctx context.Context, leaf *cgroups.Leaf) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if err := errors.Join(leaf.Kill(ctx), leaf.Delete(ctx)); err != nil {
		return fmt.Errorf("end exec %s: %w", leaf.Name(), err)
	}
	return nil
}
