package container

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/utils"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// Status is where a container is in its life, as the state's JSON says it.
type Status string

// The states of runtime-spec v1.3.0 runtime.md "State", and runc's "paused".
const (
	Created Status = "created"
	Running Status = "running"
	Paused  Status = "paused"
	Stopped Status = "stopped"
)

// State describes a container in the JSON that runc prints, a superset of
// runtime-spec v1.3.0 runtime.md "State".
type State struct {
	Version     string            `json:"ociVersion"`
	ID          string            `json:"id"`
	Pid         int               `json:"pid"` // of init; 0 once stopped
	Status      Status            `json:"status"`
	Bundle      string            `json:"bundle"`
	Rootfs      string            `json:"rootfs"`
	Created     time.Time         `json:"created"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Owner       string            `json:"owner"` // filled in by lists; see Owner
}

// Status asks the kernel where the container is in its life.
func (c *Container) Status() (Status, error) {
	s, err := c.status()
	if err != nil {
		return "", err
	}
	return Status(s.String()), nil
}

// status asks libcontainer, and if need be anew: from paused it knows no way
// back to created, which is where a resume brings a container before its start.
func (c *Container) status() (libcontainer.Status, error) {
	s, err := c.lc.Status()
	if err == nil {
		return c.correct(s), nil
	}
	lc, loadErr := load(c.root, c.ID())
	if loadErr != nil {
		return s, err
	}
	s, err = lc.Status()
	return c.correct(s), err
}

// State asks the kernel and the state directory. Owner stays empty.
func (c *Container) State() (State, error) {
	status, err := c.Status()
	if err != nil {
		return State{}, err
	}
	s, err := c.lc.State()
	if err != nil {
		return State{}, err
	}
	pid := s.InitProcessPid
	if status == Stopped {
		pid = 0
	}
	bundle, annotations := utils.Annotations(s.Config.Labels)
	return State{
		Version:     s.Config.Version,
		ID:          s.ID,
		Pid:         pid,
		Status:      status,
		Bundle:      bundle,
		Rootfs:      s.Config.Rootfs,
		Created:     s.Created,
		Annotations: annotations,
	}, nil
}

// Recorded says that the container has a state that [Load] finds. A start writes the state when the init
// is set up.
func (c *Container) Recorded() bool {
	return statedir.Exists(filepath.Join(c.root, c.ID(), "state.json"))
}

// Owner is the user name, or "#" and the number, of the owner of the container's state
// directory.
func (c *Container) Owner() (string, error) {
	path := filepath.Join(c.root, c.ID())
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	uid := strconv.FormatUint(uint64(st.Uid), 10)
	if u, err := user.LookupId(uid); err == nil {
		return u.Username, nil
	}
	return "#" + uid, nil
}

// Bundle is the directory that holds the container's config.json, as recorded
// when it was created.
func (c *Container) Bundle() string {
	bundle, _ := utils.Annotations(c.lc.Config().Labels)
	return bundle
}

// HostRoot returns the host's ids of the container's uid and gid 0, for files that are
// handed to the container.
func (c *Container) HostRoot() (uid, gid int, err error) {
	config := c.lc.Config()
	uid, uidErr := config.HostRootUID()
	gid, gidErr := config.HostRootGID()
	return uid, gid, errors.Join(uidErr, gidErr)
}
