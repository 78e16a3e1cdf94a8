package sandbox

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An isolatedProvider makes sandboxes by a launcher, to which it connects when it is first
// used, and again when the launcher has gone.
type isolatedProvider struct {
	connect func(ctx context.Context) (*protocol.Client, *ownLauncher, error)

	// turn is held by the caller that connects or disconnects.
	turn *semaphore.Weighted

	// mu guards the fields below, and is held for moments only.
	mu     sync.Mutex
	client *protocol.Client
	own    *ownLauncher // nil: somebody else's
	closed bool
	// interrupt ends the attempt to connect that is under way, nil if there is none.
	interrupt context.CancelFunc
}

func newIsolatedProvider(c ManagerConfig) (*isolatedProvider, error) {
	connect, err := connector(c)
	return &isolatedProvider{connect: connect, turn: semaphore.NewWeighted(1)}, err
}

func (p *isolatedProvider) Name() string { return ProviderIsolated }

func (p *isolatedProvider) Available(ctx context.Context) error {
	_, err := p.connection(ctx)
	return err
}

// connection returns the connection there is, or a new one.
func (p *isolatedProvider) connection(ctx context.Context) (*protocol.Client, error) {
	if client, err := p.connected(); client != nil || err != nil {
		return client, err
	}
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer p.turn.Release(1)
	if client, err := p.connected(); client != nil || err != nil {
		return client, err
	}
	if err := p.disconnect(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, availableTime)
	defer cancel()
	if err := p.beginConnect(cancel); err != nil {
		return nil, err
	}
	client, own, err := p.connect(ctx)
	return p.endConnect(client, own, err)
}

// askLauncher returns the answer of a launcher, and after an error no answer: an interface is nil
// then.
func askLauncher[T any](ctx context.Context, p *isolatedProvider, question func(c *protocol.Client) (T, error)) (T, error) {
	var none T
	client, err := p.connection(ctx)
	if err != nil {
		return none, err
	}
	answer, err := question(client)
	if err != nil {
		return none, err
	}
	return answer, nil
}

// call has the launcher do something.
func (p *isolatedProvider) call(ctx context.Context, do func(c *protocol.Client) error) error {
	client, err := p.connection(ctx)
	if err != nil {
		return err
	}
	return do(client)
}

// connected returns the connection, nil if there is none that works.
func (p *isolatedProvider) connected() (*protocol.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errManagerClosed
	}
	if p.client != nil && p.client.Err() == nil {
		return p.client, nil
	}
	return nil, nil
}

// beginConnect lets Close interrupt the attempt to connect.
func (p *isolatedProvider) beginConnect(interrupt context.CancelFunc) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errManagerClosed
	}
	p.interrupt = interrupt
	return nil
}

// endConnect ends the attempt to connect. Close waits for its turn; endConnect disconnects a client
// that came after Close.
func (p *isolatedProvider) endConnect(client *protocol.Client, own *ownLauncher, err error) (*protocol.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interrupt = nil
	if err == nil {
		p.client, p.own = client, own
	}
	if p.closed {
		return nil, errManagerClosed
	}
	return client, err
}

// disconnect ends the connection, and the launcher if it is the program's own. The
// caller has its turn. After an error of ctx another call goes on.
func (p *isolatedProvider) disconnect(ctx context.Context) error {
	p.mu.Lock()
	client, own := p.client, p.own
	p.mu.Unlock()
	if client == nil {
		return nil
	}
	err := client.Close()
	if own != nil {
		if err := own.wait(ctx); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.client, p.own = nil, nil
	return err
}

func (p *isolatedProvider) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.interrupt != nil {
		p.interrupt()
	}
	p.mu.Unlock()
	_ = p.turn.Acquire(context.Background(), 1) // it waits as long as it takes
	defer p.turn.Release(1)
	return p.disconnect(context.Background())
}

func (p *isolatedProvider) Create(ctx context.Context, r Request) (_ Instance, err error) {
	if r.Config, err = WithIDs(r.Config); err != nil {
		return nil, err
	}
	var proxies *spec.Upstream
	if r.Config.UpstreamProxy, proxies, err = resolveUpstream(r.Config.UpstreamProxy); err != nil {
		return nil, err
	}
	client, err := p.connection(ctx)
	if err != nil {
		return nil, err
	}
	notes, err := recoverTrees(ctx, client, r.Config.Overlays) // the sandbox is to see them whole
	if err != nil {
		return nil, err
	}
	request := launchRequest(r)
	request.Upstream = proxies
	info, err := client.Create(ctx, request)
	if err != nil {
		return nil, err
	}
	info.Notes = append(info.Notes, notes...)
	return &isolatedInstance{provider: p, info: isolatedInfo(info)}, nil
}

// launchRequest is a request in the launcher's protocol, with every field.
func launchRequest(r Request) protocol.Create {
	return protocol.Create{
		Name: r.Name, Reuse: r.Reuse, Tied: r.Tied, From: r.From, Config: r.Config,
		Path: os.Getenv("PATH"), Home: os.Getenv("HOME"),
	}
}

func (p *isolatedProvider) Open(ctx context.Context, id string) (Instance, error) {
	return askLauncher(ctx, p, func(c *protocol.Client) (Instance, error) {
		info, err := c.Info(ctx, id)
		return &isolatedInstance{provider: p, info: isolatedInfo(info)}, err
	})
}

func (p *isolatedProvider) Remove(ctx context.Context, id string) error {
	return p.remove(ctx, id, time.Time{})
}

// remove removes a sandbox. If created is not zero, a sandbox that was made at another time stays.
func (p *isolatedProvider) remove(ctx context.Context, id string, created time.Time) error {
	client, err := p.connection(ctx)
	if err != nil {
		return err
	}
	var missing, recovered error
	switch info, err := client.Info(ctx, id); {
	case created.IsZero() && errors.Is(err, ErrNotFound): // the removal also removes the rest of a sandbox, and is no error then
		missing = err
	case err == nil && (created.IsZero() || created.Equal(info.Created)): // the removal has any other error
		_, recovered = recoverTrees(ctx, client, info.Config.Overlays)
	}
	if err := errors.Join(client.RemoveCreated(ctx, id, created), recovered); err != nil {
		return err
	}
	return missing
}

func (p *isolatedProvider) List(ctx context.Context) ([]Info, error) {
	list, err := askLauncher(ctx, p, func(c *protocol.Client) ([]Info, error) { return c.List(ctx) })
	for i := range list {
		list[i] = isolatedInfo(list[i])
	}
	return list, err
}

func (p *isolatedProvider) Events(ctx context.Context) (Events, error) {
	return askLauncher(ctx, p, func(c *protocol.Client) (Events, error) { return c.Events(ctx) })
}

func isolatedInfo(i spec.Info) Info {
	i.Provider, i.Isolation = ProviderIsolated, i.Config.Isolation()
	return i
}

// An isolatedInstance is one sandbox of a launcher.
type isolatedInstance struct {
	provider *isolatedProvider
	info     Info
}

func (i *isolatedInstance) Info() Info { return i.info }

func (i *isolatedInstance) Remove(ctx context.Context) error {
	if len(i.info.Config.Overlays) > 0 { // only these can have an apply to end
		return i.provider.remove(ctx, i.info.ID, i.info.Created)
	}
	return i.call(ctx, func(c *protocol.Client, id string) error { return c.RemoveCreated(ctx, id, i.info.Created) })
}

func (i *isolatedInstance) Start(ctx context.Context, c Command, stdio [3]*os.File) (Execution, error) {
	return askLauncher(ctx, i.provider, func(client *protocol.Client) (Execution, error) {
		return client.Start(ctx, i.info.ID, c.withoutStreams(), stdio)
	})
}

// StartFiles has the launcher run the program that it brings along.
func (i *isolatedInstance) StartFiles(ctx context.Context, stdin, stdout *os.File) (FileServer, error) {
	return askLauncher(ctx, i.provider, func(c *protocol.Client) (FileServer, error) {
		process, err := c.StartFiles(ctx, i.info.ID, stdin, stdout)
		return &isolatedFiles{process}, err
	})
}

// isolatedFiles is the program that serves files, as it runs.
type isolatedFiles struct{ *protocol.Process }

func (f *isolatedFiles) Wait(ctx context.Context) error {
	r, err := f.Process.Wait(ctx)
	switch {
	case err != nil:
		return err
	case r.Status == StatusLost:
		return ErrNotRunning
	}
	return errors.New(r.Reason)
}

func (i *isolatedInstance) Attach(ctx context.Context, execID string) (Execution, error) {
	return askLauncher(ctx, i.provider, func(c *protocol.Client) (Execution, error) { return c.Attach(ctx, i.info.ID, execID) })
}

func (i *isolatedInstance) Execs(ctx context.Context) ([]ExecInfo, error) {
	return askAbout(ctx, i, protocol.OpExecs, protocol.None{})
}

func (i *isolatedInstance) Describe(ctx context.Context) (Info, error) {
	client, err := i.provider.connection(ctx)
	if err != nil {
		return Info{}, err
	}
	info, err := client.Info(ctx, i.info.ID)
	info.Reused = i.info.Reused
	for _, note := range i.info.Notes { // some notes are about the call that returned this instance
		if !slices.Contains(info.Notes, note) {
			info.Notes = append(info.Notes, note)
		}
	}
	return isolatedInfo(info), err
}

func (i *isolatedInstance) Stats(ctx context.Context) (Stats, error) {
	return askAbout(ctx, i, protocol.OpStats, protocol.None{})
}

// askAbout returns the answer of the launcher about the sandbox.
func askAbout[Q, A any](ctx context.Context, i *isolatedInstance, op protocol.SandboxOp[Q, A], q Q) (A, error) {
	return askLauncher(ctx, i.provider, func(c *protocol.Client) (A, error) { return protocol.AskAbout(ctx, c, op, i.info.ID, q) })
}

// tell is askAbout for an operation with an empty answer.
func tell[Q any](ctx context.Context, i *isolatedInstance, op protocol.SandboxOp[Q, protocol.None], q Q) error {
	_, err := askAbout(ctx, i, op, q)
	return err
}

// call has the launcher do something about the sandbox.
func (i *isolatedInstance) call(ctx context.Context, do func(c *protocol.Client, id string) error) error {
	return i.provider.call(ctx, func(c *protocol.Client) error { return do(c, i.info.ID) })
}

func (i *isolatedInstance) Pause(ctx context.Context) error {
	return tell(ctx, i, protocol.OpPause, protocol.None{})
}

func (i *isolatedInstance) Resume(ctx context.Context) error {
	return tell(ctx, i, protocol.OpResume, protocol.None{})
}

func (i *isolatedInstance) Update(ctx context.Context, l Limits) error {
	return tell(ctx, i, protocol.OpUpdate, l)
}

func (i *isolatedInstance) SetWorkspace(ctx context.Context, dir string) error {
	return i.call(ctx, func(c *protocol.Client, id string) error { return c.SetWorkspace(ctx, id, dir) })
}

func (i *isolatedInstance) Layers(ctx context.Context) ([]layer.Overlay, error) {
	return askLauncher(ctx, i.provider, func(c *protocol.Client) ([]layer.Overlay, error) { return c.Layers(ctx, i.info.ID) })
}

func (i *isolatedInstance) Applied(ctx context.Context, tree string, stamps map[string]layer.Stamp) error {
	return i.call(ctx, func(c *protocol.Client, id string) error { return c.Applied(ctx, id, tree, stamps) })
}

func (i *isolatedInstance) Verify(ctx context.Context, sync bool) error {
	return tell(ctx, i, protocol.OpVerify, sync)
}

func (i *isolatedInstance) Untie(ctx context.Context, u protocol.Untie) error {
	return tell(ctx, i, protocol.OpUntie, u)
}

func (i *isolatedInstance) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return askLauncher(ctx, i.provider, func(c *protocol.Client) (net.Conn, error) {
		return c.Dial(ctx, i.info.ID, protocol.Target{Network: network, Address: address})
	})
}

func (i *isolatedInstance) Undo(ctx context.Context, n int) error {
	return tell(ctx, i, protocol.OpUndo, n)
}

func (i *isolatedInstance) Snapshot(ctx context.Context, name string) error {
	return tell(ctx, i, protocol.OpSnapshot, name)
}

func (i *isolatedInstance) Discard(ctx context.Context) error {
	return i.call(ctx, func(c *protocol.Client, id string) error {
		if _, err := recoverTrees(ctx, c, i.info.Config.Overlays); err != nil {
			return err
		}
		return protocol.Tell(ctx, c, protocol.OpDiscard, id, protocol.None{})
	})
}

func (p *isolatedProvider) Snapshots(ctx context.Context) ([]string, error) {
	return askLauncher(ctx, p, func(c *protocol.Client) ([]string, error) {
		return protocol.Ask(ctx, c, protocol.OpSnapshots, protocol.None{})
	})
}

func (p *isolatedProvider) RemoveSnapshot(ctx context.Context, name string) error {
	_, err := askLauncher(ctx, p, func(c *protocol.Client) (protocol.None, error) {
		return protocol.Ask(ctx, c, protocol.OpRemoveSnapshot, name)
	})
	return err
}
