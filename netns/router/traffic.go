package router

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A trafficNote keeps the traffic of a sandbox that was disconnected, so that a used quota stays
// used. The traffic of a sandbox is the note and the counters of its link together. Received and
// Sent of a note can be negative: see [ledger.resume].
type trafficNote struct {
	spec.Traffic
	// Index is the index of the link whose counters the note already has. 0: the sandbox was
	// connected again.
	Index int
}

// notePrefix begins the names of the notes in the router's directory. A link's name follows.
const notePrefix = "traffic-"

// A ledger has the notes in the directory of a router.
type ledger string

func (r Router) ledger() ledger { return ledger(r.Dir) }

func (l ledger) path(link string) string { return filepath.Join(string(l), notePrefix+link) }

// HasNote says that the sandbox with this link was connected earlier, and is not gone.
func (r Router) HasNote(link string) bool { return statedir.Exists(r.ledger().path(link)) }

// Traffic is the traffic of the sandbox with this link, over all its connections.
func (r Router) Traffic(ctx context.Context, link string) (spec.Traffic, error) {
	if !statedir.Exists(r.Dir) { // there was no router
		return spec.Traffic{}, nil
	}
	unlock, err := r.inTurn(ctx, descriptor.Shared)
	if err != nil {
		return spec.Traffic{}, err
	}
	defer unlock()
	namespace, err := r.namespace()
	if errors.Is(err, fs.ErrNotExist) {
		n, err := r.ledger().read(link)
		return n.Traffic, err
	}
	if err != nil {
		return spec.Traffic{}, err
	}
	defer namespace.Close()
	n, err := r.ledger().present(namespace, link)
	return n.Traffic, err
}

// present adds the present link to the note.
func (l ledger) present(namespace *os.File, name string) (trafficNote, error) {
	n, err := l.read(name)
	if err != nil {
		return n, err
	}
	inner, err := handleAt(namespace)
	if err != nil {
		return n, err
	}
	defer inner.Close()
	link, err := inner.LinkByName(name)
	if isNoDevice(err) {
		return n, nil
	}
	if err != nil {
		return n, fmt.Errorf("find the device %s: %w", name, err)
	}
	a := link.Attrs()
	if a.Index == n.Index {
		return n, nil
	}
	n.Index = a.Index
	if s := a.Statistics; s != nil {
		n.Received += int64(s.TxBytes)
		n.Sent += int64(s.RxBytes)
	}
	charged, hasQuota, err := chargedTo(namespace, name)
	if hasQuota {
		n.Charged = int64(charged)
	}
	return n, err
}

// read returns an empty note for a sandbox that was never disconnected.
func (l ledger) read(link string) (trafficNote, error) {
	n, err := readJSON[trafficNote](l.path(link))
	if err := erase.IgnoreMissing(err); err != nil {
		return n, fmt.Errorf("read the traffic of a sandbox: %w", err)
	}
	return n, nil
}

// resume returns the note of a sandbox that is connected again, and forgets the index of its
// link: a new link can have the same index. The counters of a silent link continue, so
// resume subtracts their present values from the note.
func (l ledger) resume(name string, silent netlink.Link) (trafficNote, error) {
	n, err := l.read(name)
	if err != nil || n.Index == 0 {
		return n, err
	}
	n.Index = 0
	if silent != nil && silent.Attrs().Statistics != nil {
		n.Received -= int64(silent.Attrs().Statistics.TxBytes)
		n.Sent -= int64(silent.Attrs().Statistics.RxBytes)
	}
	return n, statedir.ReplaceJSON(l.path(name), n)
}

func (l ledger) note(namespace *os.File, link string) error {
	n, err := l.present(namespace, link)
	if err != nil {
		return err
	}
	return statedir.ReplaceJSON(l.path(link), n)
}

// prune removes the notes of sandboxes that are not live.
func (l ledger) prune(isLive func(link string) (bool, error)) error {
	return eachStaleFile(string(l), notePrefix, isLive, func(path, _ string) error { return erase.IgnoreMissing(os.Remove(path)) })
}
