package launcher

import (
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// traffic is the use of the network by a sandbox since its start.
func (l *Launcher) traffic(id string) (spec.Traffic, error) {
	if !statedir.Exists(filepath.Join(l.State, routerDir)) {
		return spec.Traffic{}, nil
	}
	names, known, err := l.NamesOf(id)
	if err != nil || !known {
		return spec.Traffic{}, err
	}
	return l.router().Traffic(linkName(names))
}
