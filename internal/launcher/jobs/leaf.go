package jobs

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A leaf is the cgroup of one exec. The blank that is probably claimed next has the leaf of its first exec. For
// other sandboxes a launcher that serves requests makes this leaf in the background, at the end of a create. The leaf of
// the next exec is made while an exec runs. So an exec seldom waits for its leaf. The leaf of an ended exec is used
// again if it is as empty as a new leaf: see [cgroups.Leaf.Renew]. A session that is idle for idleTime removes its leaves.

// An ExecLeaf is a leaf with the id of its exec, present or past.
type ExecLeaf struct {
	Exec ExecID
	*cgroups.Leaf
	under leafTerms
	// usage has the counts of the leaf after its last process has ended.
	usage cgroups.Usage
}

// leafTerms are the limits of a sandbox that affect how its leaves are made.
type leafTerms struct {
	pids      int64              // the leaf's own limit of processes; 0: no own limit
	throttled bool               // the leaf stays out of the hierarchy with the sandbox's disk limits
	repeated  cgroups.LeafLimits // the limits of the sandbox that the leaf repeats
}

// A leafPool has the empty leaves of a sandbox: the leaf that is ready for the next exec, the
// leaves of ended execs, and leaves to remove.
type leafPool struct {
	box     *record.Sandbox
	newExec func() (ExecID, error)

	// mu guards the fields below.
	mu     sync.Mutex
	Spares []ExecLeaf
	ended  []ExecLeaf
	used   []*cgroups.Leaf
	// begun says that the sandbox has had an exec.
	begun bool
	// first is closed when the leaf of the first exec is ready. It is nil if no such leaf is being made.
	first chan struct{}
}

// MaxEnded bounds how many leaves of a sandbox are kept to be used again.
const MaxEnded = 16

// empty takes all leaves out.
func (p *leafPool) empty() []*cgroups.Leaf {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.used
	for _, leaf := range slices.Concat(p.Spares, p.ended) {
		all = append(all, leaf.Leaf)
	}
	p.Spares, p.ended, p.used, p.begun = nil, nil, nil, false
	return all
}

// takeUsed takes out the leaves to remove.
func (p *leafPool) takeUsed() []*cgroups.Leaf {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := p.used
	p.used = nil
	return used
}

// announceFirst makes [leafPool.Take] wait until makeLeaf has made the leaf of the first exec. The caller must call
// makeLeaf.
func (p *leafPool) announceFirst() (makeLeaf func()) {
	ready := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.first = ready
	return func() {
		defer close(ready)
		leaf, err := p.newLeaf()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.first = nil
		if err == nil { // else the first exec gets the error again
			p.Spares = append(p.Spares, leaf)
		}
	}
}

// hasSpare says whether a leaf is ready for the next exec.
func (p *leafPool) hasSpare() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.Spares) > 0
}

// AwaitFirst waits until the leaf of the first exec is made, if one is being made.
func (p *leafPool) AwaitFirst() {
	p.mu.Lock()
	first := p.first
	p.mu.Unlock()
	if first != nil {
		<-first
	}
}

// Take returns an empty leaf that has the limits of the sandbox and no others.
func (p *leafPool) Take() (ExecLeaf, error) {
	p.AwaitFirst()
	if leaf, ok := p.Reuse(&p.Spares); ok {
		return leaf, nil
	}
	return p.next()
}

// Reuse takes the first leaf with the present limits out of a list of the pool. The leaves
// before this leaf have old limits, and Reuse marks them for removal.
func (p *leafPool) Reuse(from *[]ExecLeaf) (ExecLeaf, bool) {
	terms := termsOf(p.box.Current())
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(*from) > 0 {
		leaf := (*from)[0]
		*from = (*from)[1:]
		if leaf.under == terms {
			return leaf, true
		}
		p.used = append(p.used, leaf.Leaf)
	}
	return ExecLeaf{}, false
}

// termsOf are the terms that a leaf of a sandbox has now.
func termsOf(r record.Record) leafTerms {
	t := leafTerms{throttled: r.Config.Limits.Throttled(), repeated: Repeated(r)}
	if r.Limits.Pids == spec.Enforced {
		t.pids = r.Config.Limits.Pids
	}
	return t
}

// Repeated are the limits of a sandbox that its leaves repeat.
func Repeated(r record.Record) (l cgroups.LeafLimits) {
	if r.Limits.Memory == spec.Enforced {
		l.Memory = int64(r.Config.Limits.Memory)
	}
	if r.Limits.CPU == spec.Enforced {
		l.CPUs = float64(r.Config.Limits.CPUs)
	}
	return l
}

// makeAhead makes the leaf of the next exec while the present exec runs. During the first exec of
// a sandbox it makes none: the first exec may be the only one.
func (p *leafPool) makeAhead() {
	p.mu.Lock()
	wanted := p.begun && len(p.Spares) == 0
	p.begun = true
	p.mu.Unlock()
	if !wanted {
		return
	}
	leaf, err := p.next()
	if err != nil {
		return // the next exec gets the error again
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Spares = append(p.Spares, leaf)
}

// next renews a leaf, or makes one.
func (p *leafPool) next() (ExecLeaf, error) {
	for {
		leaf, ok := p.Reuse(&p.ended)
		if !ok {
			return p.newLeaf()
		}
		if next, err := p.renew(leaf); err == nil {
			return next, nil
		}
		p.retire(leaf.Leaf)
	}
}

// renew makes a used leaf ready for another exec. It fails if the leaf still counts something;
// this happens at times.
func (p *leafPool) renew(leaf ExecLeaf) (ExecLeaf, error) {
	e, err := p.newExec()
	if err != nil {
		return ExecLeaf{}, err
	}
	next, err := leaf.Renew(e.Leaf(), leaf.usage)
	return ExecLeaf{Exec: e, Leaf: next, under: leaf.under}, err
}

func (p *leafPool) newLeaf() (ExecLeaf, error) {
	return makeLeaf(p.box.Group, p.box.Current(), p.newExec)
}

// makeLeaf makes a leaf in the group of the sandbox that the record describes.
func makeLeaf(group *cgroups.Group, r record.Record, newExec func() (ExecID, error)) (ExecLeaf, error) {
	for {
		e, err := newExec()
		if err != nil {
			return ExecLeaf{}, err
		}
		terms := termsOf(r)
		opts := cgroups.LeafOptions{Owner: record.HostID(r.UIDMappings, spec.AgentID), Pids: terms.pids, Repeated: terms.repeated}
		leaf, err := group.CreateLeaf(e.Leaf(), opts)
		if errors.Is(err, fs.ErrExist) {
			continue // another launcher in this process
		}
		return ExecLeaf{Exec: e, Leaf: leaf, under: terms}, err
	}
}

// retire marks a leaf for removal: while the next exec runs, or when the session drops its
// leaves.
func (p *leafPool) retire(leaf *cgroups.Leaf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = append(p.used, leaf)
}

// recycle keeps a leaf to be used again, if there is room.
func (p *leafPool) recycle(leaf ExecLeaf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ended) < MaxEnded {
		p.ended = append(p.ended, leaf)
	} else {
		p.used = append(p.used, leaf.Leaf)
	}
}

// limit sets the limits of one exec, within those of the sandbox.
func (l ExecLeaf) limit(limits spec.Limits) error {
	own := cgroups.LeafLimits{Memory: int64(limits.Memory), CPUs: float64(limits.CPUs), Pids: limits.Pids}
	if own == (cgroups.LeafLimits{}) {
		return nil
	}
	return l.Limit(own)
}

// discard removes leaves in which nothing runs.
func discard(box *record.Sandbox, leaves []*cgroups.Leaf) {
	for _, leaf := range leaves {
		// The removal of the sandbox removes a leaf that stays. Delete has a time limit of its
		// own. On a full disk the counts of a leaf are lost.
		_ = removeLeaf(context.Background(), box, leaf)
	}
}

// removeLeaf removes a leaf in which nothing runs. The sandbox keeps the leaf's counts of refusals.
func removeLeaf(ctx context.Context, box *record.Sandbox, leaf *cgroups.Leaf) error {
	usage, unread := leaf.Usage()
	if err := leaf.Delete(ctx); err != nil || unread != nil || usage.OOMKills <= 0 && usage.PidsLimitHits <= 0 {
		return err
	}
	more := record.Refusals{OOMKills: max(usage.OOMKills, 0), ForksRefused: max(usage.PidsLimitHits, 0)}
	return erase.IgnoreMissing(box.AddRefusals(more)) // the sandbox can be gone
}

// killTime is how long the launcher waits for the end of killed processes. A process in a long
// system call, or in a paused sandbox, takes longer; nothing waits for it.
const killTime = 5 * time.Second

// aloneIn says that no other leaf of the sandbox has processes.
func aloneIn(box *record.Sandbox, leaf *cgroups.Leaf) bool {
	names, err := box.Group.Leaves()
	return err == nil && !slices.ContainsFunc(names, func(name string) bool { return name != leaf.Name() && runsIn(box, name) })
}

// runsIn says whether a leaf has processes. It returns true if this is unknown.
func runsIn(box *record.Sandbox, name string) bool {
	leaf, err := box.Group.OpenLeaf(name)
	if err != nil {
		return erase.IgnoreMissing(err) != nil
	}
	defer func() { _ = leaf.Close() }() // closes a descriptor only
	alive, err := leaf.Populated()
	return alive || erase.IgnoreMissing(err) != nil
}
