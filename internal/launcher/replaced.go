package launcher

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// replacedNotes names the paths of the configuration that lead to another file of the host by now: a mount
// keeps the file that had the path at the sandbox's begin. A path that cannot be compared is left out.
func (s *Sandbox) replacedNotes() (notes []string) {
	r := s.session.Current()
	for _, t := range r.Trees {
		if t.Image == "" && !leadsTo(t.Path, t.Device, t.Inode) {
			notes = append(notes, replacedNote(t.Path, t.Path))
		}
	}
	mounted := record.HostBinds(r.Config)
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
			inside, err = mountns.Stat(m.Target)
			return err
		})
		if err == nil && !leadsTo(m.Source, inside.Dev, inside.Ino) {
			notes = append(notes, replacedNote(m.Source, m.Target))
		}
	}
	return notes
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

func replacedNote(source, target string) string {
	return fmt.Sprintf("%s: the host has moved, replaced or deleted this file or directory since the sandbox began; "+
		"the sandbox keeps the old one at %s; to use the present one, remove the sandbox with down and make it again", source, target)
}
