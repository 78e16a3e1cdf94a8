package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Version is a release of the mainline kernel. The zero value is older than
// all of them.
type Version struct{ Major, Minor int }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Before reports whether v is older than w.
func (v Version) Before(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// parseVersion reads the release of uname(2): "6.1.0-18-amd64".
func parseVersion(release string) (Version, error) {
	var v Version
	if _, err := fmt.Sscanf(release, "%d.%d", &v.Major, &v.Minor); err != nil {
		return Version{}, fmt.Errorf("kernel release %q: not of the form major.minor", release)
	}
	return v, nil
}

// running describes the kernel and the machine, from uname(2).
func running() (h Host, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return h, fmt.Errorf("uname: %w", err)
	}
	h.Release = unix.ByteSliceToString(u.Release[:])
	h.Machine = unix.ByteSliceToString(u.Machine[:])
	h.Version, err = parseVersion(h.Release)
	return h, err
}
