package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// A disconnection has the addresses of disconnected sandboxes. Others are the addresses of the sandboxes that rules
// connected with them.
type disconnection struct {
	Addresses []netip.Addr `json:"addresses"`
	Others    []netip.Addr `json:"others,omitempty"`
}

// A severance notes the addresses in a file before their elements are removed. Without the file, a process that is
// killed before the connections are forgotten leaves them to the next sandbox with the address. The rules of that
// sandbox may forbid them.
type severance struct {
	file string
	host hostSide
}

func (r Router) severance() severance {
	return severance{filepath.Join(r.Dir, "severed"), r.hostSide()}
}

// begin disconnects sandboxes. remove removes their elements.
func (v severance) begin(namespace *os.File, s disconnection, remove func() error) error {
	if len(s.Addresses) == 0 {
		return remove()
	}
	if earlier, err := v.read(); err == nil { // they could not be forgotten
		s = disconnection{slices.Concat(earlier.Addresses, s.Addresses), slices.Concat(earlier.Others, s.Others)}
	}
	// A full disk keeps no sandbox connected. The file matters only if this process is killed.
	_ = statedir.ReplaceJSON(v.file, s)
	if err := remove(); err != nil {
		return err
	}
	if used, err := isUsed(namespace); err == nil && !used {
		return nil // the router goes now, with all connections and the file
	}
	return v.forget(namespace, s)
}

// read reads the file. A damaged file is as good as none: only a crash of the host damages a file, and no
// connection outlives the crash.
func (v severance) read() (s disconnection, err error) {
	text, err := statedir.ReadOwn(v.file)
	if err == nil && json.Unmarshal(text, &s) != nil {
		s = disconnection{}
	}
	return s, err
}

// finish completes the work of a process that was killed after begin.
func (v severance) finish(namespace *os.File) error {
	s, err := v.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the addresses of disconnected sandboxes: %w", err)
	}
	return v.forget(namespace, s)
}

// forget removes the sandboxes from the host's table, and their tracked connections from the router and
// the host.
func (v severance) forget(namespace *os.File, s disconnection) error {
	errs := []error{v.host.forget(s.Addresses)}
	for _, a := range s.Addresses { // an error about one keeps no other connected
		errs = append(errs, forgetAll(namespace, a), forgetAll(nil, a))
		if len(s.Others) > 0 { // they can have opened connections to the address
			errs = append(errs, forgetConnections(namespace, a, noneStays))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return statedir.RemoveJSON(v.file)
}
