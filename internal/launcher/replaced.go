package launcher

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A shownPath of the host is in the sandbox at a target.
type shownPath struct{ source, target string }

// replacedNotes names the paths of the configuration that lead to another file of the host by now: a mount
// keeps the file that had the path at the sandbox's begin. A path that cannot be compared is left out.
func (s *Sandbox) replacedNotes() (notes []string) {
	r := s.session.Current()
	for _, t := range r.Trees {
		if t.Image == "" && !leadsTo(t.Path, t.Device, t.Inode) {
			notes = append(notes, replacedNote(shownPath{t.Path, t.Path}))
		}
	}
	mounted := mountedPaths(r)
	if len(mounted) == 0 {
		return notes
	}
	thread, err := mountns.Enter(r.Init)
	if err != nil {
		return notes // the sandbox has just ended, and the caller's next step notices this
	}
	defer thread.Stop()
	for _, m := range mounted {
		var inside unix.Stat_t
		err := thread.Do(func() (err error) {
			inside, err = statInside(m.target)
			return err
		})
		if err == nil && !leadsTo(m.source, inside.Dev, inside.Ino) {
			notes = append(notes, replacedNote(m))
		}
	}
	return notes
}

// mountedPaths are the workspace and the binds. An overlaid workspace is one of the trees.
func mountedPaths(r record.Record) (all []shownPath) {
	if dir := r.Config.Workspace; dir != "" && !slices.Contains(r.Config.Overlays, dir) {
		all = append(all, shownPath{dir, spec.WorkspacePath})
	}
	for _, b := range r.Config.Binds {
		all = append(all, shownPath{b.Source, b.Target})
	}
	return all
}

func statInside(path string) (st unix.Stat_t, err error) {
	f, err := mountns.OpenInside(path, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer f.Close()
	return st, unix.Fstat(int(f.Fd()), &st)
}

// leadsTo says that the path of the host leads to this file. A missing path leads to none.
func leadsTo(path string, device, inode uint64) bool {
	var st unix.Stat_t
	switch err := unix.Stat(path, &st); err {
	case nil:
		return st.Dev == device && st.Ino == inode
	case unix.ENOENT, unix.ENOTDIR:
		return false
	}
	return true // no file tells
}

func replacedNote(m shownPath) string {
	return fmt.Sprintf("%s: the host has moved, replaced or deleted this file or directory since the sandbox began; "+
		"the sandbox keeps the old one at %s; to use the present one, remove the sandbox with down and make it again", m.source, m.target)
}
