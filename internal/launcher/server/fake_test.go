package server

import (
	"context"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// fakeCore keeps sandboxes in memory. What a command does is its first argument.
type fakeCore struct {
	mu    sync.Mutex
	boxes map[string]*fakeBox
	made  int
	// creating, if it is set, is called by Create before anything is made.
	creating func(ctx context.Context) error
	// opening, removing, listing and describing, if they are set, are called by Open, Remove, List and Info
	// before anything is done, as if that had to wait.
	opening, removing, listing, describing func()
	// unremovable is the error of all removals.
	unremovable error
	retired     atomic.Int32
	// beginnings are those of snapshots, by "NAME of UID".
	beginnings map[string]protocol.Beginning
	opened     int
	// abandoned and forgotten are the calls of Abandon and ForgetLevel.
	abandoned, forgotten []string
	// keeper is set by tests of images.
	keeper *images.Keeper
}

func (f *fakeCore) ImageKeeper() *images.Keeper { return f.keeper }

func newFakeCore() *fakeCore { return &fakeCore{boxes: map[string]*fakeBox{}} }

// before has hook, which is opening or removing, call what.
func (f *fakeCore) before(hook *func(), what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*hook = what
}

// first calls a hook.
func (f *fakeCore) first(hook *func()) {
	f.mu.Lock()
	what := *hook
	f.mu.Unlock()
	if what != nil {
		what()
	}
}

func (f *fakeCore) failRemovals(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unremovable = err
}

func (f *fakeCore) onCreate(creating func(ctx context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.creating = creating
}

type fakeBox struct {
	core *fakeCore
	mu   sync.Mutex
	info spec.Info
	from Sources
	// kept are detached commands, by id.
	kept   map[string]*fakeProcess
	execs  int
	open   int
	stats  spec.Stats
	limits spec.Limits
}

func (f *fakeCore) Create(ctx context.Context, r protocol.Create, from Sources) (Sandbox, error) {
	f.mu.Lock()
	creating := f.creating
	f.mu.Unlock()
	if creating != nil {
		if err := creating(ctx); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	if r.Name == "" {
		r.Name = fmt.Sprint("sb-", f.made)
	}
	if b := f.boxes[r.Name]; b != nil {
		if !r.Reuse {
			return nil, &fault.SandboxError{ID: r.Name, Err: fault.ErrExists}
		}
		if b.currentInfo().State != spec.StateStopped {
			h := b.handle()
			h.reused = true
			return h, nil
		}
	}
	b := &fakeBox{core: f, from: from, kept: map[string]*fakeProcess{}, info: spec.Info{
		ID: r.Name, Owner: from.UID, State: spec.StateRunning, Config: r.Config, Pid: 1000 + f.made, Created: time.Now(),
	}}
	f.boxes[r.Name] = b
	return b.handle(), nil
}

func (f *fakeCore) box(id string) *fakeBox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boxes[id]
}

func (f *fakeCore) OpenStopped(ctx context.Context, id string) (Sandbox, error) {
	return f.Open(ctx, id)
}

func (f *fakeCore) Open(ctx context.Context, id string) (Sandbox, error) {
	if id == "stuck" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.first(&f.opening)
	b := f.box(id)
	if b == nil {
		return nil, &fault.SandboxError{ID: id, Err: fault.ErrNotFound}
	}
	f.mu.Lock()
	f.opened++
	f.mu.Unlock()
	return b.handle(), nil
}

func (f *fakeCore) Remove(_ context.Context, id string, only Condition) (bool, error) {
	f.first(&f.removing)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unremovable != nil {
		return true, f.unremovable
	}
	b := f.boxes[id]
	if b != nil {
		i := b.currentInfo()
		if only.Owner != nil && !only.Owner(i.Owner) || !only.Created.IsZero() && !only.Created.Equal(i.Created) {
			return false, nil
		}
		b.set(spec.StateStopped)
	}
	delete(f.boxes, id)
	return b != nil, nil
}

// calls are the calls of Abandon and ForgetLevel.
func (f *fakeCore) calls() (abandoned, forgotten []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.abandoned), slices.Clone(f.forgotten)
}

// Abandon removes the box, and notes the id of a box that it has removed.
func (f *fakeCore) Abandon(ctx context.Context, id string, only Condition) (bool, error) {
	removed, err := f.Remove(ctx, id, only)
	if removed {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.abandoned = append(f.abandoned, id)
	}
	return removed, err
}

func (f *fakeCore) ForgetLevel(id string, uid uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten = append(f.forgotten, fmt.Sprintf("%s of %d", id, uid))
	return nil
}

func (f *fakeCore) Info(_ context.Context, id string) (spec.Info, error) {
	if id == "stuck" {
		return spec.Info{ID: id, State: spec.StateRunning}, nil
	}
	f.first(&f.describing)
	b := f.box(id)
	if b == nil {
		return spec.Info{}, &fault.SandboxError{ID: id, Err: fault.ErrNotFound}
	}
	return b.currentInfo(), nil
}

func (f *fakeCore) List(_ context.Context, may func(owner uint32) bool) ([]spec.Info, error) {
	f.first(&f.listing)
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []spec.Info{}
	for _, b := range f.boxes {
		if i := b.currentInfo(); may == nil || may(i.Owner) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b spec.Info) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

func (b *fakeBox) currentInfo() spec.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info
}

func (b *fakeBox) updated() spec.Limits {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits
}

func (b *fakeBox) set(s spec.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.info.State = s
}

func (b *fakeBox) handle() *fakeHandle {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open++
	return &fakeHandle{fakeBox: b}
}

// handles is how many are not released.
func (b *fakeBox) handles() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

type fakeHandle struct {
	*fakeBox
	reused   bool
	released sync.Once
}

func (h *fakeHandle) ID() string    { return h.info.ID }
func (h *fakeHandle) Owner() uint32 { return h.currentInfo().Owner }

func (h *fakeHandle) Info() (spec.Info, error) {
	i := h.currentInfo()
	i.Reused = h.reused
	return i, nil
}

func (h *fakeHandle) Release() {
	h.released.Do(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open--
	})
}

func (h *fakeHandle) Layers(context.Context, bool) ([]launcher.HeldTree, error) {
	return nil, h.usable()
}

func (h *fakeHandle) Applied(context.Context, string, []protocol.Stamp) error {
	return h.usable()
}

func (h *fakeHandle) Dial(context.Context, protocol.Target) (*os.File, error) {
	return nil, h.usable()
}

func (h *fakeHandle) Verify(context.Context, bool) error { return h.usable() }

func (h *fakeHandle) Untie(context.Context, protocol.Untie) error { return h.usable() }

func (h *fakeHandle) usable() error {
	switch h.currentInfo().State {
	case spec.StateStopped:
		return &fault.SandboxError{ID: h.ID(), Err: fault.ErrNotRunning}
	case spec.StatePaused:
		return &fault.SandboxError{ID: h.ID(), Err: fault.ErrPaused}
	}
	return nil
}

func (h *fakeHandle) StartFiles(ctx context.Context, files [3]*os.File) (Process, error) {
	return h.Start(ctx, spec.Command{Args: []string{"echo"}}, files)
}

func (h *fakeHandle) Start(ctx context.Context, c spec.Command, files [3]*os.File) (Process, error) {
	if err := h.usable(); err != nil {
		return nil, err
	}
	if len(c.Args) == 0 {
		return nil, &fault.ConfigError{Reason: "no command"}
	}
	h.mu.Lock()
	h.execs++
	p := &fakeProcess{box: h.fakeBox, id: fmt.Sprint("e", h.execs), detached: c.Detached, killed: make(chan struct{})}
	h.mu.Unlock()
	switch c.Args[0] {
	case "nope":
		p.failed = &fault.NotRunError{Code: 127, Reason: "nope: not found"}
	case "stopped": // in Start
		<-ctx.Done()
		return nil, ctx.Err()
	case "panic":
		panic("a defect")
	case "echo":
		fmt.Fprint(files[1], strings.Join(c.Args[1:], " "))
	case "hang", "panic-later", "panic-signal", "oom", "slow":
		p.what = c.Args[0]
	case "join": // until a SIGKILL
		p.what, p.joining = c.Args[0], make(chan struct{})
		close(p.joining)
	}
	if c.Args[0] == "oom" {
		h.mu.Lock()
		h.stats.OOMKills++
		h.mu.Unlock()
	}
	if c.Terminal != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		w.Close()
		p.terminal = r
	}
	if c.Detached {
		h.mu.Lock()
		h.kept[p.id] = p
		h.mu.Unlock()
	}
	return p, nil
}

func (h *fakeHandle) Attach(_ context.Context, exec string) (Process, error) {
	if err := h.usable(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.kept[exec]; p != nil {
		return p, nil
	}
	return nil, &fault.SandboxError{ID: h.info.ID, Err: fmt.Errorf("exec %s %w", exec, fault.ErrNotFound)}
}

func (h *fakeHandle) Execs(context.Context) ([]spec.ExecInfo, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []spec.ExecInfo
	for id := range h.kept {
		all = append(all, spec.ExecInfo{ID: id, Detached: true})
	}
	return all, nil
}

func (h *fakeHandle) Stats(context.Context) (spec.Stats, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats, nil
}

func (h *fakeHandle) Pause(context.Context) error  { h.set(spec.StatePaused); return nil }
func (h *fakeHandle) Resume(context.Context) error { h.set(spec.StateRunning); return nil }

func (f *fakeCore) Snapshots(_ context.Context, uid uint32) ([]string, error) {
	return []string{fmt.Sprint("of-", uid)}, nil
}

func (f *fakeCore) PoolStats(user *uint32) (s spec.PoolStats, err error) {
	s.Hits = 100
	if user != nil {
		s.Hits = 1
	}
	return s, nil
}

func (f *fakeCore) ResizePool(spec.PoolConfig) error { return nil }

func (f *fakeCore) Retired(uint32) int { return int(f.retired.Load()) }

func (f *fakeCore) Beginning(_ context.Context, snapshot string, uid uint32) (protocol.Beginning, error) {
	return f.beginnings[fmt.Sprint(snapshot, " of ", uid)], nil
}

func (f *fakeCore) RemoveSnapshot(context.Context, string, uint32) error { return nil }

func (h *fakeHandle) Discard(context.Context) error          { return nil }
func (h *fakeHandle) Snapshot(context.Context, string) error { return nil }

func (h *fakeHandle) Undo(context.Context, int) error { return nil }

func (h *fakeHandle) SetWorkspace(_ context.Context, dir string, from Sources) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.info.Config.Workspace, h.from = dir, from
	return nil
}

func (h *fakeHandle) ChangeNetwork(_ context.Context, n protocol.NetworkRequest) (spec.NetworkChange, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.info.Config
	next, err := before.Changed(n.Grant, n.Sensitivity)
	if err == nil {
		h.info.Config = next
	}
	return spec.NewNetworkChange(before, next, 0), err
}

func (h *fakeHandle) NetworkEvents(context.Context, bool) iter.Seq2[spec.NetworkEvent, error] {
	return func(yield func(spec.NetworkEvent, error) bool) {
		yield(spec.NetworkEvent{Name: "example.com", Decision: spec.NetworkDenied}, nil)
	}
}

func (h *fakeHandle) NetworkDecider(context.Context) (*os.File, error) { return os.Open(os.DevNull) }

func (h *fakeHandle) Update(_ context.Context, l spec.Limits) error {
	if err := h.usable(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limits = l
	return nil
}

type fakeProcess struct {
	box      *fakeBox
	id, what string
	detached bool
	terminal *os.File
	failed   error

	mu      sync.Mutex
	signals []string
	closed  bool
	once    sync.Once
	killed  chan struct{}
	joining chan struct{}
}

func (p *fakeProcess) ID() string { return p.id }
func (p *fakeProcess) Started(ctx context.Context) error {
	if p.what == "slow" { // to start
		<-ctx.Done()
		return ctx.Err()
	}
	return p.failed
}

func (p *fakeProcess) Joining() <-chan struct{}            { return p.joining }
func (p *fakeProcess) Terminal() *os.File                  { return p.terminal }
func (p *fakeProcess) Output() (out, errs streams.LogFile) { return out, errs }
func (p *fakeProcess) kill()                               { p.once.Do(func() { close(p.killed) }) }
func (p *fakeProcess) result(s spec.Status) spec.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	return spec.Result{ID: p.box.info.ID, Status: s, Reason: strings.Join(p.signals, " ")}
}

func (p *fakeProcess) Terminate() error { return p.Signal(syscall.SIGKILL, true) }

func (p *fakeProcess) Signal(sig syscall.Signal, tree bool) error {
	if p.what == "panic-signal" {
		panic("a defect of signals")
	}
	p.mu.Lock()
	p.signals = append(p.signals, fmt.Sprint(int(sig), tree))
	p.mu.Unlock()
	if sig == syscall.SIGKILL {
		p.kill()
	}
	return nil
}

func (p *fakeProcess) Wait(ctx context.Context) (spec.Result, error) {
	switch p.what {
	case "panic-later":
		panic("a later defect")
	case "oom":
		return p.result(spec.StatusOOMKilled), nil
	case "join":
		select {
		case <-p.killed:
		case <-time.After(10 * time.Second): // the test has failed
		}
	case "hang", "panic-signal", "slow":
		select {
		case <-p.killed:
			return p.result(spec.StatusSignaled), nil
		case <-ctx.Done():
			return spec.Result{}, ctx.Err()
		}
	}
	if p.failed != nil {
		return spec.Result{}, p.failed
	}
	return p.result(spec.StatusExited), nil
}

func (p *fakeProcess) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	if p.terminal != nil {
		p.terminal.Close()
	}
	if !p.detached {
		p.kill()
	}
	return nil
}
