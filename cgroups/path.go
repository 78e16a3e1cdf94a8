package cgroups

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// checkPath accepts the name of a group relative to its hierarchy's root: absolute, clean,
// not the root itself. The root is refused because a host must never be killed, frozen or
// deleted.
func checkPath(p string) error {
	var problem string
	switch {
	case !strings.HasPrefix(p, "/"):
		problem = "does not start with /"
	case p == "/":
		problem = "is the root of the hierarchy"
	case path.Clean(p) != p:
		problem = "is not clean (no //, no . or .. and no / at the end)"
	case strings.ContainsAny(p, "\x00\n"):
		problem = "has a NUL or a newline"
	case len(p) >= unix.PathMax:
		problem = "is too long"
	default:
		return nil
	}
	return fmt.Errorf("cgroup path %q %s", p, problem)
}
