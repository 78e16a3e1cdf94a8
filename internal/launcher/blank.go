package launcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/pool"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A blank is a sandbox that is up, and has no record: it belongs to nobody yet. Its PID 1 has run no
// command. This process holds its directory. If this process dies, the blank is a half-made
// sandbox, and prune removes it.
type blank struct {
	*creation
	// imageFiles are the files of the image that is the root. Empty: none is.
	imageFiles string
}

// A template describes blanks: the part of a request that cannot be changed in a sandbox that is up.
type template struct {
	Config     spec.Config
	Path, Home string
	UID        uint32
	GIDs       []uint32
	// ImageFiles are the files of the image, whose id is in Config: see [images.Root].
	ImageFiles string `json:",omitempty"`
}

// templateOf returns the template for a request. The reason is not empty if no blank can serve the
// request. image is the one that the name in the request means for the user now.
func templateOf(r protocol.Create, from Sources, image part.ImageRoot) (t template, reason string) {
	c := r.Config
	t = template{Path: r.Path, Home: r.Home, UID: from.UID, Config: spec.Config{
		Storage: c.Storage, Seccomp: c.Seccomp, User: &spec.User{UID: c.User.UID, GID: c.User.GID},
		Limits: spec.Limits{ShmSize: c.Limits.ShmSize, Disk: c.Limits.Disk, Files: c.Limits.Files},
	}}
	if from.Peer() != nil {
		t.GIDs = from.GIDs
	}
	if c.Image != "" { // such a root has no programs of the host's PATH
		t.Path, t.Home = "", ""
		t.Config.Image, t.ImageFiles = image.ID, image.Files
	}
	blank, err := part.Completed(t.Config, c.Storage)
	switch other := unclaimable(r); {
	case r.From != "":
		return t, "snapshot"
	case other:
		return t, "request"
	case slices.Contains(c.Overlays, "/"), slices.Contains(c.Overlays, c.Workspace):
		return t, "overlays"
	case c.Workspace != "" && (record.Record{Config: c}).TakesWorkspace() != nil:
		return t, "binds"
	case part.IsProfileFile(c.Seccomp):
		return t, "seccomp"
	case err != nil: // a disk in memory that is larger than the default memory
		return t, "limits"
	}
	t.Config = blank
	if other := differs(claimed(blank, c), c); other != "" {
		return t, other
	}
	return t, ""
}

// unclaimable says whether a request has a field that a claim does not know.
func unclaimable(r protocol.Create) bool {
	r.Name, r.Reuse, r.Tied, r.Config = "", false, false, spec.Config{}
	r.Path, r.Home, r.Named, r.Upstream, r.From = "", "", nil, nil, ""
	return !reflect.DeepEqual(r, protocol.Create{})
}

// claimed is the configuration of a blank that a request has claimed: it has those fields of the
// request that change in a sandbox that is up.
func claimed(blank, c spec.Config) spec.Config {
	got := blank
	got.Image = c.Image // the name of the same image
	got.Binds, got.Overlays = c.Binds, c.Overlays
	got.User, got.Hostname = c.User, c.Hostname
	got.Workspace, got.Env, got.Cwd, got.Timeout, got.Grace = c.Workspace, c.Env, c.Cwd, c.Timeout, c.Grace
	got.Network, got.Allow, got.Deny, got.Observe, got.Ask, got.Publish = c.Network, c.Allow, c.Deny, c.Observe, c.Ask, c.Publish
	got.UpstreamProxy = c.UpstreamProxy
	got.Sensitivity, got.Ceilings = c.Sensitivity, c.Ceilings
	got.Limits.NetworkRate, got.Limits.NetworkQuota, got.Limits.NetworkRequests = c.Limits.NetworkRate, c.Limits.NetworkQuota, c.Limits.NetworkRequests
	for _, f := range spec.LimitFields() {
		if !f.Fixed {
			f.Take(&got.Limits, c.Limits)
		}
	}
	return got
}

// differs names the first field in which two configurations differ. It is empty if there is none.
func differs(a, b spec.Config) string {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if !sameValue(x.Field(i), y.Field(i)) {
			name, _, _ := strings.Cut(x.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// sameValue takes an empty list for a missing one.
func sameValue(x, y reflect.Value) bool {
	switch x.Kind() {
	case reflect.Slice, reflect.Map:
		if x.Len() == 0 && y.Len() == 0 {
			return true
		}
	}
	return reflect.DeepEqual(x.Interface(), y.Interface())
}

// kind names the template in a pool.
func (t template) kind() (string, error) { text, err := json.Marshal(t); return string(text), err }

// newBlank makes a blank of a kind. isNext says that the blank is probably claimed next.
func (p *blanks) newBlank(ctx context.Context, kind string, isNext bool) (_ *blank, err error) {
	var t template
	if err := json.Unmarshal([]byte(kind), &t); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, blankTime)
	defer cancel()
	image, err := p.openImage(ctx, t)
	if err != nil {
		image.Close()
		return nil, cmp.Or(ctx.Err(), unwanted(err))
	}
	defer image.Close()
	id := newID()
	state, err := statedir.Make(p.launcher.Sandboxes(), id)
	if err != nil {
		return nil, err
	}
	if err := record.MarkBlank(state.Path); err != nil {
		return nil, errors.Join(err, state.Remove())
	}
	request := protocol.Create{Name: id, Config: t.Config, Path: t.Path, Home: t.Home}
	m := &creation{Making: p.launcher.parts.NewMaking(id, request, Sources{UID: t.UID, GIDs: t.GIDs}), launcher: p.launcher, state: state}
	m.HostMounts, m.Image = &p.launcher.hostMounts, image
	b := &blank{m, t.ImageFiles}
	err = m.untilOver(ctx, func() error {
		if err := m.Make(ctx); err != nil {
			return err
		}
		if err := b.checkImage(ctx); err != nil { // a removal of the image has not seen the blank
			return unwanted(err)
		}
		return b.setLeaf(ctx, isNext)
	})
	if err != nil {
		left := b.remove(ctx)
		if left == nil && errors.Is(ctx.Err(), context.Canceled) {
			return nil, context.Canceled
		}
		if left == nil && err == pool.ErrUnwanted {
			return nil, err
		}
		return nil, errors.Join(err, left)
	}
	m.Image = part.ImageRoot{}
	m.DropPlan()
	if got := m.Record.Config.Storage; got != t.Config.Storage {
		return nil, errors.Join(fmt.Errorf("its files are in %s, and not on %s", got, t.Config.Storage), b.remove(ctx))
	}
	return b, nil
}

// setLeaf makes or removes the leaf of the blank's first command. Only the blank that is probably claimed next has one:
// the command takes 0.5 ms less with a leaf, but a leaf takes a third of the memory of a blank.
func (b *blank) setLeaf(ctx context.Context, isNext bool) error {
	if isNext {
		if b.Leaf == nil {
			b.Leaf, _ = b.launcher.sessions.MakeFirstLeaf(b.ID, b.Record) // after an error the first command makes its own leaf
		}
		return nil
	}
	leaf := b.Leaf
	b.Leaf = nil
	return leaf.Remove(ctx)
}

// blankTime is how long the making of a blank may take. It takes some 100 ms.
const blankTime = 30 * time.Second

// remove removes a blank that nobody has claimed.
func (b *blank) remove(ctx context.Context) error {
	var err error
	if b.Conn != nil {
		err = b.Conn.Close()
	}
	err = errors.Join(err, b.Leaf.Close())
	b.Shown.Close()
	if undo := b.launcher.removeHeld(context.WithoutCancel(ctx), b.ID, b.state); undo != nil {
		b.state.Release()
		return errors.Join(err, undo)
	}
	return err
}

// blankAnswerTime is how long PID 1 of a blank may take to answer. It needs microseconds. A request waits for
// less than that.
const (
	blankAnswerTime = time.Second
	claimAnswerTime = 500 * time.Millisecond
)

// check returns an error if a blank cannot be claimed: the host's files have changed, or its PID 1
// does not answer. A caller whose context ends finds no blank broken.
func (b *blank) check(ctx context.Context, answerTime time.Duration) error {
	var looks sync.WaitGroup
	var files, programs error
	looks.Go(func() { files = b.checkFiles() })
	looks.Go(func() { programs = b.CheckLanguages(nil) })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime) // a paused one does not answer
	defer cancel()
	_, err := b.Conn.Detached(ctx)
	looks.Wait()
	return cmp.Or(files, programs, err)
}

// checkFiles returns an error if a file of the host that the blank shows has changed.
func (b *blank) checkFiles() error {
	changed, err := b.Stamps.Changed()
	if err == nil && changed != "" {
		err = fmt.Errorf("%s has changed", changed)
	}
	return err
}
