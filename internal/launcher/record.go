package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// recordName is the file in a sandbox's directory that says it is up. It is
// written by rename when PID 1 serves.
const recordName = "sandbox.json"

// recordVersion changes when an older launcher could misunderstand the file.
const recordVersion = 1

// A record is all that has to be known of a sandbox and can't be asked of the
// kernel.
type record struct {
	Version int         `json:"version"`
	Config  spec.Config `json:"config"`
	// Init is the sandbox's PID 1.
	Init process.ID `json:"init"`
	// Tied sandboxes live no longer than the process that made them.
	Tied  bool       `json:"tied,omitempty"`
	Owner process.ID `json:"owner"`
	// From is the snapshot that it has begun with.
	From string `json:"from,omitempty"`
	// UID is the user that asked for the sandbox.
	UID uint32 `json:"uid"`

	IDBase      uint32                 `json:"id_base"`
	UIDMappings []specs.LinuxIDMapping `json:"uid_mappings"`
	GIDMappings []specs.LinuxIDMapping `json:"gid_mappings"`

	Created time.Time        `json:"created"`
	Limits  spec.LimitReport `json:"limits"`
	Notes   []string         `json:"notes,omitempty"`
	// Disks are what the configuration's I/O limits apply to.
	Disks []spec.Disk `json:"disks,omitempty"`
	// Image is the name of the image that the store is in, if it is on disk.
	Image string `json:"image,omitempty"`
	// Trees are what is overlaid.
	Trees []tree `json:"trees,omitempty"`
	// Stacks are the layers of what is no tree, or of what is a fork's, by place.
	Stacks map[string]stack `json:"stacks,omitempty"`
	// Switch is what is under way with the layers, nil if nothing is.
	Switch *layerSwitch `json:"switch,omitempty"`
	// Attaching is the workspace that it is being given, nil if none is.
	Attaching *attaching `json:"attaching,omitempty"`
	// Kept is the name of the snapshot that keeps the files of this sandbox, which has
	// stopped and is being replaced. The snapshot may not be there yet.
	Kept string `json:"kept,omitempty"`
	// Path leads to the interpreters outside /usr; PathNotes name those that
	// are not shown.
	Path      []string `json:"path,omitempty"`
	PathNotes []string `json:"path_notes,omitempty"`

	// environ and rlimits are those of a command without any of its own; see
	// prepared.
	environ []string
	rlimits []agent.Rlimit
}

// prepared is the record with what each exec needs worked out.
func (r record) prepared() record {
	r.environ, r.rlimits = r.Config.Environ(r.Path...), commandLimits(r.Config)
	return r
}

// A version tells a record from the one that takes its place.
type version struct {
	inode   uint64
	written int64
}

// readRecord reads the record in a sandbox's directory. [fs.ErrNotExist] says
// that there is none: that the sandbox is being made, or removed, or was left
// half made.
func readRecord(dir string) (record, error) {
	data, err := statedir.ReadOwn(filepath.Join(dir, recordName))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("read %s: %w; remove the sandbox", filepath.Join(dir, recordName), err)
	}
	if r.Version != recordVersion {
		return record{}, fmt.Errorf("%s: version %d is of another release of this program, which has to remove the sandbox",
			filepath.Join(dir, recordName), r.Version)
	}
	return r, nil
}

// write puts the record in the sandbox's directory, which the caller holds.
func (r record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return statedir.Replace(filepath.Join(dir, recordName), data)
}

// versionOf says which record a sandbox's directory has now.
func versionOf(dir string) (version, error) {
	path := filepath.Join(dir, recordName)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return version{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return version{inode: st.Ino, written: st.Mtim.Nano()}, nil
}

// up says whether the sandbox is.
func (r record) up() bool { return r.Init.Lives() && !r.abandoned() }

// abandoned says that the sandbox was to end with a process, which has ended.
func (r record) abandoned() bool { return r.Tied && !r.Owner.Lives() }

// stays says that nobody but its owner or who asks for it may remove the
// sandbox: it is up, or who is tied to it has yet to see that it is not.
func (r record) stays() bool {
	if r.Tied {
		return r.Owner.Lives()
	}
	return r.Init.Lives()
}

// info describes the sandbox.
func (r record) info(id string, paused func() bool) launch.Info {
	i := launch.Info{
		ID: id, From: r.From, Config: r.Config, Created: r.Created, Limits: r.Limits, Notes: r.Notes, Owner: r.UID,
		Status: launch.Stopped,
	}
	if r.up() {
		i.Status, i.Pid = launch.Running, r.Init.Pid
		if paused() {
			i.Status = launch.Paused
		}
	}
	return i
}

// missing turns the error of a sandbox without a directory, or without a record,
// into the caller's.
func missing(id string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &launch.SandboxError{ID: id, Err: launch.ErrNotFound}
	}
	return err
}
