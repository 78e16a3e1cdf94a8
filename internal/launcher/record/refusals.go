package record

import (
	"encoding/json"
	"io"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
)

// Refusals count what limits have done to the commands of a sandbox whose cgroups are gone. The
// kernel's counts go with a cgroup.
type Refusals struct {
	OOMKills     int64 `json:"oom_kills"`
	ForksRefused int64 `json:"forks_refused"`
}

// refusalsName is a file in a sandbox's directory. Only that a command has met a limit makes it.
const refusalsName = "refusals.json"

// Refusals returns the counts.
func (v *Sandbox) Refusals() (Refusals, error) {
	f, err := descriptor.OpenLockedWithin(descriptor.Moment, filepath.Join(v.Path(), refusalsName), unix.O_NOFOLLOW, descriptor.Shared)
	if err != nil {
		return Refusals{}, erase.IgnoreMissing(err)
	}
	defer f.Close()
	return readRefusals(f)
}

// AddRefusals adds to the counts. The counts of several processes add up.
func (v *Sandbox) AddRefusals(more Refusals) error {
	f, err := descriptor.OpenLockedWithin(descriptor.Moment, filepath.Join(v.Path(), refusalsName), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, descriptor.Exclusive)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := readRefusals(f)
	if err != nil {
		return err
	}
	all.OOMKills += more.OOMKills
	all.ForksRefused += more.ForksRefused
	text, err := json.Marshal(all)
	if err == nil {
		_, err = f.WriteAt(text, 0) // never shorter than before
	}
	return err
}

// readRefusals reads a file, which may be empty.
func readRefusals(f io.Reader) (r Refusals, err error) {
	text, err := io.ReadAll(f)
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}
