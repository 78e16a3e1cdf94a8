package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// FileName is the file in a sandbox's directory that says it is up. It is
// written by rename when PID 1 serves.
const FileName = "sandbox.json"

// FormatVersion changes when an older launcher could misunderstand the file.
const FormatVersion = 1

// A record is all that has to be known of a sandbox and can't be asked of the
// kernel.
type Record struct {
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
	Trees []Tree `json:"trees,omitempty"`
	// Stacks are the layers of what is no tree, or of what is a fork's, by place.
	Stacks map[string]Stack `json:"stacks,omitempty"`
	// Switch is what is under way with the layers, nil if nothing is.
	Switch *Switch `json:"switch,omitempty"`
	// Attaching is the workspace that it is being given, nil if none is.
	Attaching *attaching `json:"attaching,omitempty"`
	// Kept is the name of the snapshot that keeps the files of this sandbox, which has
	// stopped and is being replaced. The snapshot may not be there yet.
	Kept string `json:"kept,omitempty"`
	// Path leads to the interpreters outside /usr; PathNotes name those that
	// are not shown.
	Path      []string `json:"path,omitempty"`
	PathNotes []string `json:"path_notes,omitempty"`
}

// A version tells a record from the one that takes its place.
type Version struct {
	inode   uint64
	written int64
}

// Read reads the record in a sandbox's directory. [fs.ErrNotExist] says
// that there is none: that the sandbox is being made, or removed, or was left
// half made.
func Read(dir string) (Record, error) {
	data, err := statedir.ReadOwn(filepath.Join(dir, FileName))
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("read %s: %w; remove the sandbox", filepath.Join(dir, FileName), err)
	}
	if r.Version != FormatVersion {
		return Record{}, fmt.Errorf("%s: version %d is of another release of this program, which has to remove the sandbox",
			filepath.Join(dir, FileName), r.Version)
	}
	return r, nil
}

// Write puts the record in the sandbox's directory, which the caller holds.
func (r Record) Write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return statedir.Replace(filepath.Join(dir, FileName), data)
}

// VersionOf says which record a sandbox's directory has now.
func VersionOf(dir string) (Version, error) {
	path := filepath.Join(dir, FileName)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Version{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Version{inode: st.Ino, written: st.Mtim.Nano()}, nil
}

// up says whether the sandbox is.
func (r Record) up() bool { return r.Init.Lives() && !r.abandoned() }

// abandoned says that the sandbox was to end with a process, which has ended.
func (r Record) abandoned() bool { return r.Tied && !r.Owner.Lives() }

// Stays says that nobody but its owner or who asks for it may remove the
// sandbox: it is up, or who is tied to it has yet to see that it is not.
func (r Record) Stays() bool {
	if r.Tied {
		return r.Owner.Lives()
	}
	return r.Init.Lives()
}

// Info describes the sandbox.
func (r Record) Info(id string, paused func() bool) launch.Info {
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

// NotFound turns the error of a sandbox without a directory, or without a record,
// into the caller's.
func NotFound(id string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &launch.SandboxError{ID: id, Err: launch.ErrNotFound}
	}
	return err
}

// BegunWith tells whether a tree has layers that a fork has begun with: they stay,
// and were written before, so that it stays as old as it is.
func (r Record) BegunWith(t Tree) bool { return len(r.Stacks[t.Path].Below) > 0 }

// Backend is where the sandbox's files lie.
func (r Record) Backend(in Roots) store.Backend {
	if r.Image == "" {
		return store.InMemory{}
	}
	return store.InImage(in.ImagePath(r.Image))
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

// HostID is the host's number of an id inside.
func HostID(mappings []specs.LinuxIDMapping, inside uint32) int {
	for _, m := range mappings {
		if inside >= m.ContainerID && inside-m.ContainerID < m.Size {
			return int(m.HostID + inside - m.ContainerID)
		}
	}
	return -1
}

// ShowToOwner has the tree's owner have what the sandbox's user wrote, where the
// kernel can: else what that user has closed to others cannot be read.
func (r Record) ShowToOwner(t *launch.Tree, l *launch.TreeLayer, inside bool) error {
	written := r.userAs(inside)
	err := rootfs.ShowAs(l.Dir, rootfs.User{UID: written.UID, GID: written.GID}, rootfs.User{UID: t.Owner.UID, GID: t.Owner.GID})
	switch {
	case err == nil:
		t.User = t.Owner
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	}
	return err
}

// userAs is the sandbox's user as a store shows the user.
func (r Record) userAs(inside bool) launch.Owner {
	user := *r.Config.User
	if inside {
		return launch.Owner{UID: user.UID, GID: user.GID}
	}
	return launch.Owner{
		UID: uint32(HostID(r.UIDMappings, user.UID)), GID: uint32(HostID(r.GIDMappings, user.GID)),
	}
}

// Tree is what clients are told of one, without its layers. inside says that these
// show the ids of the inside.
func (r Record) Describe(t Tree, inside bool) launch.Tree {
	user := *r.Config.User
	out := launch.Tree{
		Path: t.Path, Device: t.Device, Inode: t.Inode, Since: t.Since, OnDisk: t.OnDisk, Base: int64(r.IDBase),
		Owner: launch.Owner{UID: t.UID, GID: t.GID},
		User:  r.userAs(inside),
	}
	if inside {
		out.Base = 0
	}
	if t.OnDisk {
		out.Owner = launch.Owner{UID: user.UID, GID: user.GID}
	}
	return out
}

// WithoutUnmade is the record without the new layers that a switch of layers has not
// made yet: the process that made them was killed. Nothing was written to them.
func (r Record) WithoutUnmade(top *os.File) (Record, error) {
	if r.Switch == nil || !r.Switch.Done {
		return r, nil
	}
	r.Trees, r.Stacks = slices.Clone(r.Trees), CloneStacks(r.Stacks)
	for _, p := range r.Places() {
		n, ok := r.Switch.Layers[p.Path]
		if !ok {
			continue
		}
		dir, err := rootfs.OpenDir(top, fmt.Sprintf("layer/%d/data", n))
		if errors.Is(err, fs.ErrNotExist) {
			r.WithoutUpper(p)
			continue
		}
		if err != nil {
			return r, err
		}
		dir.Close()
	}
	return r, nil
}

// A stack is the layers of a place, beside the host's tree or the sandbox's own
// directory.
type Stack struct {
	// Layers are the numbers of the sandbox's own, the upper one first. Those of a
	// tree are in the tree.
	Layers []int `json:"layers,omitempty"`
	// Below are those of others, the uppermost first.
	Below []LayerRef `json:"below,omitempty"`
}

// A layerRef is a directory in an image.
type LayerRef struct {
	Image string `json:"image"`
	Dir   string `json:"dir"`
}

// A layerSwitch is intent: layers of a sandbox are being replaced while it stands
// still.
type Switch struct {
	// Layers are the new upper ones, by place.
	Layers map[string]int `json:"layers"`
	// Paused says that it stood still before.
	Paused bool `json:"paused,omitempty"`
	// Done says that the record has the new layers: the rest is to be mounted. Else
	// all is to be as it was.
	Done bool `json:"done,omitempty"`
	// Snapshot is the name of the one that keeps the old layers, and Draft its
	// directory until it has that: before Done somebody may still write to them.
	Snapshot string `json:"snapshot,omitempty"`
	Draft    string `json:"draft,omitempty"`
	// Old are layers that nobody needs once it is Done.
	Old []int `json:"old,omitempty"`
}

// Own are the directories in the sandbox's store that a place has, the uppermost
// first.
func (r Record) Own(p Place) (names []string) {
	numbers := r.Stacks[p.Path].Layers
	if p.Tree != nil {
		numbers = p.Tree.Layers
	}
	for _, n := range numbers {
		names = append(names, fmt.Sprintf("layer/%d/data", n))
	}
	if p.Area != "" {
		names = append(names, "area/"+p.Area)
	}
	return names
}

func CloneStacks(all map[string]Stack) map[string]Stack {
	clone := map[string]Stack{}
	for path, s := range all {
		clone[path] = s
	}
	return clone
}

func (r *Record) TreeAt(path string) *Tree {
	for i := range r.Trees {
		if r.Trees[i].Path == path {
			return &r.Trees[i]
		}
	}
	return nil
}

// WithoutUpper takes the upper layer of a place off, which is under the others.
func (r *Record) WithoutUpper(p Place) {
	if t := r.TreeAt(p.Path); t != nil {
		t.Layers = slices.Clone(t.Layers[1:])
		return
	}
	s := r.Stacks[p.Path]
	s.Layers = slices.Clone(s.Layers[1:])
	r.Stacks[p.Path] = s
}

// HalfDone says that something is under way with the sandbox's mounts, or was when its
// process was killed.
func (r Record) HalfDone() bool { return r.Switch != nil || r.Attaching != nil }

// An attaching is intent: a directory is becoming the sandbox's workspace.
type attaching struct {
	Dir    string      `json:"dir"`
	Device uint64      `json:"device"`
	Inode  uint64      `json:"inode"`
	Disks  []spec.Disk `json:"disks,omitempty"`
	// Limit says whether it bounds what is written to it.
	Limit spec.Enforcement `json:"limit"`
}

func NewAttaching(tree *os.File, next Record) (*attaching, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", tree.Name(), err)
	}
	return &attaching{Dir: next.Config.Workspace, Device: st.Dev, Inode: st.Ino, Disks: next.Disks, Limit: next.Limits.Disk}, nil
}

// TakesWorkspace refuses what a workspace that is attached would hide.
func (r Record) TakesWorkspace() error {
	for _, b := range r.Config.Binds {
		if b.Target == spec.WorkspacePath || strings.HasPrefix(b.Target, spec.WorkspacePath+"/") {
			return &launch.ConfigError{Reason: fmt.Sprintf("workspace: it would hide the bind at %s", b.Target)}
		}
	}
	return nil
}
