package container

import (
	"os"

	"github.com/opencontainers/runc/libcontainer/exeseal"
)

// SealedExecutable returns a copy of this program in memory that nobody can
// change any more, for a process that starts many containers to execute itself
// from; nil where that would be no gain. The state root is where those
// containers' state will be; it is there.
//
// No container may reach the host's binary (CVE-2019-5736), so libcontainer
// seals it for each start of a process that does not run from such a copy: with
// an overlay mount, which costs next to nothing, or where it can't, as without
// root or before Linux 5.2, by copying all of it, which takes as long as the rest
// of the start. From a copy in memory a start takes some 5 % more processor time
// than from an overlay: where there is that, this is no gain.
func SealedExecutable(root string) (*os.File, error) {
	if exeseal.IsSelfExeCloned() {
		return nil, nil
	}
	sealed, err := exeseal.CloneSelfExe(root)
	if err != nil {
		return nil, err
	}
	if !exeseal.IsCloned(sealed) {
		return nil, sealed.Close()
	}
	return sealed, nil
}
