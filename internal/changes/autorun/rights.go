package autorun

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// capability is the attribute with a program's rights: capabilities(7).
const capability = "security.capability"

// Rights returns reasons to look at a change's mode and owner. before is the path on
// the host, nil for a new one. A new path should belong to uid and gid.
func Rights(c spec.Change, before *spec.Change, uid, gid uint32) []string {
	if c.Kind == spec.Deleted {
		return nil
	}
	var reasons []string
	if c.Type != spec.TypeSymlink {
		reasons = modes(c, before)
	}
	if before != nil {
		uid, gid = before.UID, before.GID
	}
	if c.UID != uid || c.GID != gid {
		reasons = append(reasons, fmt.Sprintf("it belongs to %d:%d, not to %d:%d", c.UID, c.GID, uid, gid))
	}
	return reasons
}

func modes(c spec.Change, before *spec.Change) []string {
	var old uint32
	if before != nil {
		old = before.Mode
	}
	var reasons []string
	if c.Type == spec.TypeFile && c.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		reasons = append(reasons, "it has a set-user-ID or set-group-ID bit, which apply holds back")
	}
	if _, has := c.Xattrs[capability]; has {
		reasons = append(reasons, "it has file capabilities, which apply holds back")
	}
	if c.Type == spec.TypeFile && c.Mode&0o111 != 0 && old&0o111 == 0 {
		reasons = append(reasons, "it is a program now")
	}
	switch {
	case before == nil && c.Mode&0o002 != 0 && (c.Type != spec.TypeDirectory || c.Mode&unix.S_ISVTX == 0):
		reasons = append(reasons, fmt.Sprintf("everybody can write to it: mode %#o", c.Mode&0o7777))
	case before != nil && c.Mode&0o066&^old != 0:
		reasons = append(reasons, fmt.Sprintf("others can do more with it: mode %#o, was %#o", c.Mode&0o7777, old&0o7777))
	}
	for name := range c.Xattrs {
		if strings.HasPrefix(name, "system.posix_acl_") && (before == nil || before.Xattrs[name] == nil) {
			reasons = append(reasons, "it has an access control list")
			break
		}
	}
	return reasons
}
