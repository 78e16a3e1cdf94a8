package record

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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
	f, err := os.OpenFile(filepath.Join(v.Path(), refusalsName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Refusals{}, nil
	}
	if err != nil {
		return Refusals{}, err
	}
	defer f.Close()
	return readRefusals(f, unix.LOCK_SH)
}

// AddRefusals adds to the counts. The counts of several processes add up.
func (v *Sandbox) AddRefusals(more Refusals) error {
	f, err := os.OpenFile(filepath.Join(v.Path(), refusalsName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := readRefusals(f, unix.LOCK_EX)
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

// readRefusals reads a file, which may be empty, under a lock that ends with the file.
func readRefusals(f *os.File, lock int) (r Refusals, err error) {
	if err := unix.Flock(int(f.Fd()), lock); err != nil {
		return r, os.NewSyscallError("flock "+f.Name(), err)
	}
	text, err := io.ReadAll(f)
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}
