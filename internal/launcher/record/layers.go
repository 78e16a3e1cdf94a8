package record

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// BegunWith says that a tree has layers of a snapshot, with which a fork has begun. These
// layers stay and were written before, so the tree keeps its age.
func (r Record) BegunWith(t Tree) bool { return len(r.Stacks[t.Path].Below) > 0 }

// HostID is the host's id for an id inside, or -1.
func HostID(mappings []specs.LinuxIDMapping, inside uint32) int {
	for _, m := range mappings {
		if inside >= m.ContainerID && inside-m.ContainerID < m.Size {
			return int(m.HostID + inside - m.ContainerID)
		}
	}
	return -1
}

// ShowToOwner maps the sandbox's user to the tree's owner in a layer, if the kernel can. Else
// the owner cannot read files that the sandbox's user has closed to others.
func (r Record) ShowToOwner(t *layer.Overlay, l *layer.Layer, inside bool) error {
	written, owner := r.userAs(inside), t.Owner
	if t.Image { // its owner on the host is the user that asked for the sandbox
		owner.UID = r.UID
	}
	err := rootfs.ShowAs(l.Dir, rootfs.User{UID: written.UID, GID: written.GID}, rootfs.User{UID: owner.UID, GID: owner.GID})
	switch {
	case err == nil:
		t.User = owner
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	}
	return err
}

// userAs is the sandbox's user as a store shows the user.
func (r Record) userAs(inside bool) layer.Owner {
	user := *r.Config.User
	if inside {
		return layer.Owner{UID: user.UID, GID: user.GID}
	}
	return layer.Owner{
		UID: uint32(HostID(r.UIDMappings, user.UID)), GID: uint32(HostID(r.GIDMappings, user.GID)),
	}
}

// Describe describes a tree to clients, without its layers. inside says that the layers show
// the ids of the inside.
func (r Record) Describe(t Tree, inside bool) layer.Overlay {
	user := *r.Config.User
	out := layer.OverlayHead{
		Path: t.Path, Device: t.Device, Inode: t.Inode, Since: t.Since, OnDisk: t.OnDisk, Image: t.Image != "", Base: int64(r.IDBase),
		Owner: layer.Owner{UID: t.UID, GID: t.GID},
		User:  r.userAs(inside),
	}
	if inside {
		out.Base = 0
	}
	if t.OnDisk {
		out.Owner = layer.Owner{UID: user.UID, GID: user.GID}
	}
	return layer.Overlay{OverlayHead: out}
}

// WithoutUnmade is the record without the new layers that a killed switch of layers has not
// made yet. Nothing was written to those.
func (r Record) WithoutUnmade(top *os.File) (Record, error) {
	if r.Switch == nil || !r.Switch.Done {
		return r, nil
	}
	r = r.Clone()
	for _, p := range r.Places() {
		n, ok := r.Switch.Layers[p.Path]
		if !ok {
			continue
		}
		dir, err := descriptor.OpenDir(top, fmt.Sprintf("layer/%d/data", n))
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

// A Stack is the layers of a place, without the host's tree and the sandbox's own directory.
type Stack struct {
	// Layers are the numbers of the sandbox's own layers, the upper one first. The layers of
	// a tree are in the tree.
	Layers []int `json:"layers,omitempty"`
	// Below are layers of snapshots, the uppermost first.
	Below []LayerRef `json:"below,omitempty"`
}

// A LayerRef is a directory in an image.
type LayerRef struct {
	Image string `json:"image"`
	Dir   string `json:"dir"`
}

// A Switch is intent: layers of a paused sandbox are being replaced.
type Switch struct {
	// Layers are the numbers of the new upper layers, by place.
	Layers map[string]int `json:"layers"`
	// Paused says that the sandbox was paused before the switch.
	Paused bool `json:"paused,omitempty"`
	// Done says that the record has the new layers, and only mounts are left to do. A switch
	// that is not Done is taken back.
	Done bool `json:"done,omitempty"`
	// Snapshot is the name of the snapshot that keeps the old layers. Draft is its directory
	// until then: before Done the sandbox may still write to those layers.
	Snapshot string `json:"snapshot,omitempty"`
	Draft    string `json:"draft,omitempty"`
	// Renamed says that the snapshot's layers have renamed directories that are not opaque.
	Renamed bool `json:"renamed,omitempty"`
	// Old are layers that are not needed once the switch is Done.
	Old []int `json:"old,omitempty"`
}

// A Join is intent: a transaction joins the sandbox's files, or is undone. All processes of the
// sandbox stand still until the end of that, also if the process that does it is killed.
type Join struct {
	// Paused says that the sandbox was paused before.
	Paused bool `json:"paused,omitempty"`
}

// Own are the directories of a place in the sandbox's store, the uppermost first.
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

// Clone is a copy with its own list of trees and its own map of stacks. The lists of layers
// in them are shared.
func (r Record) Clone() Record {
	r.Trees, r.Stacks = slices.Clone(r.Trees), maps.Clone(r.Stacks)
	if r.Stacks == nil {
		r.Stacks = map[string]Stack{}
	}
	return r
}

// TreeAt is the tree of this path, nil if there is none.
func (r *Record) TreeAt(path string) *Tree {
	for i := range r.Trees {
		if r.Trees[i].Path == path {
			return &r.Trees[i]
		}
	}
	return nil
}

// ChangeLayers replaces the sandbox's own layers of a place. next must not change the list
// that it gets.
func (r *Record) ChangeLayers(place string, next func(own []int) []int) {
	if t := r.TreeAt(place); t != nil {
		t.Layers = next(t.Layers)
		return
	}
	s := r.Stacks[place]
	s.Layers = next(s.Layers)
	r.Stacks[place] = s
}

// WithoutUpper removes the upper layer of a place from the record.
func (r *Record) WithoutUpper(p Place) {
	r.ChangeLayers(p.Path, func(own []int) []int { return slices.Clone(own[1:]) })
}

// HalfDone says that the sandbox's files, mounts or network are being changed, or that a process was
// killed while it changed them.
func (r Record) HalfDone() bool {
	return r.Switch != nil || r.Join != nil || r.Attaching != nil || r.Rewiring
}

// StandsStill says that the runtime itself has frozen the processes, or is about to: no user has
// paused the sandbox.
func (r Record) StandsStill() bool {
	return r.Switch != nil && !r.Switch.Paused || r.Join != nil && !r.Join.Paused
}

// OpenBelow mounts the image of a snapshot's layer: with this sandbox's ids and
// read-only, or for owners with those that are in it.
func (l Roots) OpenBelow(r Record, ref LayerRef, owners bool) (*os.File, error) {
	f, err := store.MountImage(l.ImagePath(ref.Image))
	if err != nil {
		return nil, fmt.Errorf("layers of a snapshot: %w", err)
	}
	if owners {
		return f, nil
	}
	if err := rootfs.MapFrozen(f, r.UIDMappings, r.GIDMappings); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
