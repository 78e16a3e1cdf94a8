package record

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// FileName is the file in a sandbox's directory that says it is up. It is
// written by rename when PID 1 serves.
const FileName = "sandbox.json"

// FormatVersion changes when an older launcher could misunderstand the file. Since 2 a
// sandbox has [Names], since 3 it can have GroupIDs, since 4 its layers can have renamed directories.
const FormatVersion = 4

// oldestVersion is of a file that is still understood.
const oldestVersion = 1

// A Record is all that must be known of a sandbox and cannot be asked of the kernel.
type Record struct {
	Version int         `json:"version"`
	Config  spec.Config `json:"config"`
	// Init is the sandbox's PID 1.
	Init process.ID `json:"init"`
	// Tied says that the sandbox ends with Owner, the process that made it.
	Tied  bool       `json:"tied,omitempty"`
	Owner process.ID `json:"owner"`
	// From is the snapshot that the sandbox has begun with.
	From string `json:"from,omitempty"`
	// UID is the user that asked for the sandbox.
	UID uint32 `json:"uid"`
	// Named are as in a [protocol.NetworkRequest].
	Named []string `json:"named,omitempty"`
	// Upstream has the proxies of Config.UpstreamProxy, with their passwords. Info does not have them.
	Upstream *spec.Upstream `json:"upstream,omitempty"`

	IDBase      uint32                 `json:"id_base"`
	UIDMappings []specs.LinuxIDMapping `json:"uid_mappings"`
	GIDMappings []specs.LinuxIDMapping `json:"gid_mappings"`

	Created time.Time        `json:"created"`
	Limits  spec.LimitReport `json:"limits"`
	Notes   []string         `json:"notes,omitempty"`
	// Addresses are those of a sandbox that is connected with the outside.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Disks are the devices to which the limits of disk traffic apply.
	Disks []spec.Disk `json:"disks,omitempty"`
	// Image is the name of the image that holds the store, if the store is on disk.
	Image string `json:"image,omitempty"`
	// Trees are the overlaid directories of the host.
	Trees []Tree `json:"trees,omitempty"`
	// Stacks are the layers of places that are no trees, and of all places of a fork, by
	// path.
	Stacks map[string]Stack `json:"stacks,omitempty"`
	// Switch is a change of layers that is under way. Nil: none is.
	Switch *Switch `json:"switch,omitempty"`
	// Join is set while a transaction joins the sandbox's files, or is undone. Nil: neither is
	// under way.
	Join *Join `json:"join,omitempty"`
	// Attaching is a workspace that is being attached. Nil: none is.
	Attaching *Attachment `json:"attaching,omitempty"`
	// Rewiring says that the network of Config may not be the present one: a change is under
	// way.
	Rewiring bool `json:"rewiring,omitempty"`
	// Kept is the name of the snapshot that keeps the files of this sandbox, which has
	// stopped and is being replaced. The snapshot may not be there yet.
	Kept string `json:"kept,omitempty"`
	// GroupIDs says that the processes of the sandbox may set the set-group-ID bit. The sandbox
	// must not write to files of the host then.
	GroupIDs bool `json:"group_ids,omitempty"`
	// Path leads to the interpreters outside /usr; PathNotes name those that
	// are not shown.
	Path      []string `json:"path,omitempty"`
	PathNotes []string `json:"path_notes,omitempty"`
}

// A Version tells a record from a later one of the same sandbox directory.
type Version struct {
	inode   uint64
	written int64
}

// Read reads the record in a sandbox's directory. The error is [fs.ErrNotExist] if there is
// no record: the sandbox is being made or removed, or was left half made.
func Read(dir string) (Record, error) {
	path := filepath.Join(dir, FileName)
	data, err := statedir.ReadOwn(path)
	if err != nil {
		return Record{}, err
	}
	var r Record
	switch err := statedir.Decode(data, FormatVersion, &r); {
	case errors.Is(err, statedir.ErrRelease):
		return Record{}, fmt.Errorf("%s: %w, which has to remove the sandbox", path, err)
	case err != nil:
		return Record{}, &damagedError{path, err}
	case r.Version < oldestVersion: // each release writes a version
		return Record{}, &damagedError{path, errors.New("it has no version")}
	case r.Init.Pid <= 0: // each release writes a record after PID 1 has answered
		return Record{}, &damagedError{path, errors.New("it has no PID 1")}
	}
	return r, nil
}

// A damagedError says that no release can read a record.
type damagedError struct {
	path string
	err  error
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("read %s: %v; remove the sandbox", e.path, e.err)
}

func (e *damagedError) Unwrap() error { return e.err }

// IsUnknown tells whether a sandbox can be up and whole in spite of an error of [Read]. Another
// release has written the record, or the system could not read the record at this moment. Only the
// owner may remove such a sandbox.
func IsUnknown(err error) bool {
	_, damaged := errors.AsType[*damagedError](err)
	return err != nil && !damaged && !errors.Is(err, fs.ErrNotExist)
}

// Write writes the record to the sandbox's directory. The caller must hold the directory.
func (r Record) Write(dir string) error { return statedir.ReplaceJSON(filepath.Join(dir, FileName), r) }

// Has says whether a state root has a sandbox of this id, whole or in part, up or not. It
// does not check permissions.
func Has(root, id string) bool {
	if !filepath.IsLocal(id) || filepath.Base(id) != id || id == "." {
		return false
	}
	return statedir.Exists(Roots{State: root}.Dir(id))
}

// IsPending says that the sandbox with this directory has no record, and that a process works on the
// sandbox: the process makes or removes the sandbox, or keeps it for a later request.
func IsPending(dir string) bool {
	return !hasRecord(dir) && statedir.OwnerLives(dir) && statedir.IsHeld(dir) && !hasRecord(dir)
}

// IsRest says that the sandbox with this directory has no record, and that no process works on the
// sandbox: its creation or its removal was cut short. Prune removes the rest.
func IsRest(dir string) bool { return statedir.Exists(dir) && !IsPending(dir) && !hasRecord(dir) }

func hasRecord(dir string) bool { return statedir.Exists(filepath.Join(dir, FileName)) }

// VersionOf is the version of the record that a sandbox's directory has now.
func VersionOf(dir string) (Version, error) {
	path := filepath.Join(dir, FileName)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Version{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Version{inode: st.Ino, written: st.Mtim.Nano()}, nil
}

// isUp says that the sandbox is up: PID 1 lives, and so does its owner if it is tied.
func (r Record) isUp() bool { return r.Init.Lives() && !r.abandoned() }

// abandoned says that the sandbox is tied to a process that has ended.
func (r Record) abandoned() bool { return r.Tied && !r.Owner.Lives() }

// Stays says that prune must leave the sandbox: it is up, or the process that it is tied to
// lives and has yet to see the end.
func (r Record) Stays() bool {
	if r.Tied {
		return r.Owner.Lives()
	}
	return r.Init.Lives()
}

// Info describes the sandbox.
func (r Record) Info(id string, paused func() bool) spec.Info {
	i := spec.Info{
		ID: id, From: r.From, Config: r.Config, Created: r.Created, Limits: r.Limits, Notes: r.Notes, Owner: r.UID,
		State: spec.StateStopped, NetworkAddresses: r.Addresses,
	}
	if r.isUp() {
		i.State, i.Pid = spec.StateRunning, r.Init.Pid
		if paused() {
			i.State = spec.StatePaused
		}
	}
	return i
}

// NotFound turns [fs.ErrNotExist] of a sandbox's directory or record into
// [fault.ErrNotFound], and returns other errors as they are.
func NotFound(id string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &fault.SandboxError{ID: id, Err: fault.ErrNotFound}
	}
	return err
}

// Backend is where the sandbox's files lie.
func (r Record) Backend(in Roots) store.Backend {
	return store.BackendOf(string(r.Config.Storage), in.ImagePath(r.Image))
}

// Images are the images that hold the sandbox's files, its own first.
func (r Record) Images() []string {
	if r.Image == "" {
		return nil
	}
	all := []string{r.Image}
	for _, s := range r.Stacks {
		for _, ref := range s.Below {
			if !slices.Contains(all, ref.Image) {
				all = append(all, ref.Image)
			}
		}
	}
	return all
}
