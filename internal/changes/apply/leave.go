package apply

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// HostsOwn is the reason of a refusal that Options.Overwrite lifts.
const HostsOwn = "the host has changed or deleted it since it was applied, and the sandbox has not"

// leaveToHost leaves out the files that the host has changed or deleted since an apply,
// and that the sandbox has not touched since: the sandbox's content is an old version of
// the host's.
func (p *Plan) leaveToHost() error {
	if p.o.Overwrite || len(p.o.Stamps) == 0 {
		return nil
	}
	linked := map[string]bool{}
	for i := range p.changes {
		linked[p.changes[i].HardLink] = true
	}
	replaced := "" // the topmost directory that comes anew: its files come with it
	kept := p.changes[:0]
	for _, c := range p.changes {
		if replaced == "" || !isBelow(c.Path, replaced) {
			replaced = ""
			if replaces(c) {
				replaced = c.Path
			}
		}
		leave := false
		if c.Type == spec.TypeFile && c.Kind != spec.Deleted && c.HardLink == "" && !linked[c.Path] && replaced == "" {
			var err error
			if leave, err = p.isHosts(&c); err != nil {
				return err
			}
		}
		if leave {
			p.refuse(c.Path, HostsOwn)
			continue
		}
		kept = append(kept, c)
	}
	clear(p.changes[len(kept):])
	p.changes = kept
	return nil
}

// isHosts tells whether only the host has changed an applied file since.
func (p *Plan) isHosts(c *spec.Change) (bool, error) {
	stamp, ok := p.o.Stamps[c.Path]
	if !ok || stamp.Source == 0 {
		return false, nil
	}
	e, err := p.tree.stat(c.Path)
	gone := missing(err) || noDirectory(err)
	if err != nil && !gone {
		return false, err
	}
	if !gone && (e.dir() || p.seen.isStamped(c.Path, e)) {
		return false, nil
	}
	fd, err := p.stack.OpenListed(c.Path)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, errorAbout(c.Path, err)
	}
	return layer.SourceOf(&st) == stamp.Source, nil
}
