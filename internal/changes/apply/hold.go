package apply

import (
	"fmt"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// SetuidBit and Capabilities are the reasons of refusals that Options.Setuid lifts.
const (
	SetuidBit    = "its setuid or setgid bit"
	Capabilities = "its file capabilities"
)

// A holder asks Options.Hold about each change.
type holder struct {
	hold    func(spec.Change) string
	reasons map[string]string // by path
	tops    map[string]string // the new or replaced directories among reasons
	top     string            // the last of tops
	tree    *tree
}

// examine notes whether a change is left out.
func (h *holder) examine(c spec.Change) {
	if h.hold == nil {
		return
	}
	if h.top != "" && isBelow(c.Path, h.top) {
		h.reasons[c.Path] = h.tops[h.top]
		return
	}
	reason := h.hold(c)
	if reason == "" {
		return
	}
	h.reasons[c.Path] = reason
	if replaces(c) {
		h.tops[c.Path], h.top = reason, c.Path
	}
}

// setBelow leaves out the changes in directories that are left out as a whole.
func (h *holder) setBelow(changes []spec.Change, whole map[string]string) {
	if len(whole) == 0 {
		return
	}
	for _, c := range changes {
		for path := c.Path; path != "" && h.reasons[c.Path] == ""; path, _ = layer.Split(path) {
			if reason := whole[path]; reason != "" {
				h.reasons[c.Path] = reason
			}
		}
	}
}

// replaces tells whether a change brings a directory without any entry of the host.
func replaces(c spec.Change) bool {
	return c.Type == spec.TypeDirectory && c.Kind != spec.Deleted && (c.Kind == spec.Created || c.Opaque || c.Was != "")
}

// holdBack takes the changes that are left out from those that are applied.
func (p *Plan) holdBack(h *holder) error {
	if len(h.reasons) == 0 {
		return nil
	}
	h.setBelow(p.changes, h.tops) // choose adds deleted paths that examine has not seen
	if err := h.keepVictims(p.changes); err != nil {
		return err
	}
	h.dropEmpty(p.changes)
	applied := p.changes[:0]
	for _, c := range p.changes {
		reason := h.reasons[c.Path]
		if reason == "" {
			applied = append(applied, c)
			continue
		}
		same, err := p.comparison.isThere(&c)
		if err != nil {
			return err
		}
		if same {
			p.refuse(c.Path, "the host has the same content: only the time differs")
			continue
		}
		p.held = append(p.held, spec.Unapplied{Path: c.Path, Reason: reason})
	}
	clear(p.changes[len(applied):])
	p.changes = applied
	return nil
}

// keepVictims leaves out a replaced directory if the host has a path in it whose new
// version is left out: for example a clone in place of a directory with a repository.
// Otherwise the replacement would delete the host's path. All changes in the directory
// are left out, too.
func (h *holder) keepVictims(changes []spec.Change) error {
	replaced := map[string]bool{}
	for _, c := range changes {
		if replaces(c) && c.Kind != spec.Created && h.reasons[c.Path] == "" {
			replaced[c.Path] = true
		}
	}
	if len(replaced) == 0 {
		return nil
	}
	whole := map[string]string{}
	for _, c := range changes {
		parent, _ := layer.Split(c.Path)
		if h.reasons[c.Path] == "" || h.reasons[parent] != "" {
			continue // it is applied, or one above it was looked at
		}
		victim, err := h.victimAbove(c.Path, replaced)
		if err != nil {
			return err
		}
		if victim != "" && whole[victim] == "" {
			whole[victim] = fmt.Sprintf("it replaces a directory in which the host has %s, which is held back", c.Path)
		}
	}
	h.setBelow(changes, whole)
	return nil
}

// victimAbove is the topmost replaced directory above a path, if the host has the path.
func (h *holder) victimAbove(path string, replaced map[string]bool) (string, error) {
	top := ""
	for above, _ := layer.Split(path); above != ""; above, _ = layer.Split(above) {
		if replaced[above] {
			top = above
		}
	}
	if top == "" {
		return "", nil
	}
	_, err := h.tree.stat(path)
	if missing(err) || noDirectory(err) {
		return "", nil
	}
	return top, err
}

// dropEmpty leaves out new directories if all changes in them are left out.
func (h *holder) dropEmpty(changes []spec.Change) {
	holds, applied := map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		if h.reasons[c.Path] == "" {
			continue
		}
		for above, _ := layer.Split(c.Path); above != "" && !holds[above]; above, _ = layer.Split(above) {
			holds[above] = true
		}
	}
	for _, c := range slices.Backward(changes) { // entries before their directory
		if h.reasons[c.Path] != "" {
			continue
		}
		if c.Kind == spec.Created && c.Type == spec.TypeDirectory && holds[c.Path] && !applied[c.Path] {
			h.reasons[c.Path] = "everything in it is held back"
			continue
		}
		if above, _ := layer.Split(c.Path); holds[above] {
			applied[above] = true
		}
	}
}
