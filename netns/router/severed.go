package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// severed are the addresses of sandboxes that were disconnected, and the addresses of those with which
// rules connected them.
type severed struct {
	Addresses []netip.Addr `json:"addresses"`
	Others    []netip.Addr `json:"others,omitempty"`
}

// severedFile has the addresses between two steps: the router removes the elements of sandboxes, and
// then the router and the host forget their connections. Without the file, a process that is killed in
// between leaves connections to the next sandbox with the address, also those that its rules forbid.
func (r Router) severedFile() string { return filepath.Join(r.Dir, "severed") }

// sever disconnects sandboxes. remove removes their elements.
func (r Router) sever(namespace *os.File, s severed, remove func() error) error {
	if len(s.Addresses) == 0 {
		return remove()
	}
	// A full disk keeps no sandbox connected. The file matters only if this process is killed.
	_ = statedir.ReplaceJSON(r.severedFile(), s)
	if err := remove(); err != nil {
		return err
	}
	return r.forgetSevered(namespace, s)
}

// finishSevering ends the work of a process that was killed in [Router.sever].
func (r Router) finishSevering(namespace *os.File) error {
	text, err := statedir.ReadOwn(r.severedFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var s severed
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return fmt.Errorf("the addresses of disconnected sandboxes: %w", err)
	}
	return r.forgetSevered(namespace, s)
}

// forgetSevered has the router and the host forget all of the sandboxes.
func (r Router) forgetSevered(namespace *os.File, s severed) error {
	if err := r.leaveHost(s.Addresses); err != nil {
		return err
	}
	for _, a := range s.Addresses {
		if err := errors.Join(forgetAll(namespace, a), forgetAll(nil, a)); err != nil {
			return err
		}
		if len(s.Others) > 0 { // they can have opened connections to the address
			if err := forgetConnections(namespace, a, noneStays); err != nil {
				return err
			}
		}
	}
	return removeNoted(r.severedFile())
}

// removeNoted removes a file of [statedir.ReplaceJSON]. A process that was killed while it wrote the file
// has left the draft.
func removeNoted(file string) error {
	for _, path := range []string{file + draftSuffix, file} {
		if err := erase.IgnoreMissing(os.Remove(path)); err != nil {
			return err
		}
	}
	return nil
}
