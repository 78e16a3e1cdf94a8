package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Names of the providers that come with this package.
const (
	// ProviderIsolated makes sandboxes by a launcher.
	ProviderIsolated = "isolated"
	// ProviderLocal runs commands on the host with no isolation whatsoever, as
	// this program's user, in the workspace, which it makes with its parents.
	// It refuses a Config with anything that nothing would hold.
	ProviderLocal = "local"
)

// The sockets on which launchers listen by default.
const (
	// DefaultSocket is the socket of a launcher for root.
	DefaultSocket = "/run/sandbox-runtime/launcher.sock"
	// SharedSocket is the socket of a launcher with rules for other users. Only root can enter
	// the directory of DefaultSocket.
	SharedSocket = protocol.SharedSocket
)

// ManagerConfig says where sandboxes come from. The zero value is right for most
// programs: isolated sandboxes, by the launcher that listens on the default
// socket, or else by one of the program's own.
type ManagerConfig struct {
	// Prefer names providers, the best one first: sandboxes are made by the
	// first that can be had. Empty: "isolated", and nothing else. "local" is
	// used only if it is named here, or in Using.
	Prefer []string
	// Providers are further kinds of sandboxes that can be named. One called
	// "isolated" or "local" replaces the one that comes with this package.
	Providers []Provider

	// Socket is the path of the socket that a launcher listens on. Empty: for root
	// DefaultSocket if a launcher listens there, else a launcher of the program's own,
	// which ends with the program; for other users SharedSocket. With a path there is no
	// other way.
	Socket string
	// Launcher is the command of a launcher of the program's own, which must serve the
	// socket on its descriptor 3. Empty: "sandbox-runtime launcher --fd 3", from the PATH.
	Launcher []string
	// Dial connects with a launcher in a way of the program's own. At most one
	// of Socket, Launcher and Dial is set.
	Dial func(ctx context.Context) (*net.UnixConn, error)

	// Pool has the launcher of the program's own keep blank sandboxes ready, so that Create and
	// Up take less time. The first blanks are in memory: they serve sandboxes with StorageMemory or
	// with [Tied]. Other sandboxes are on disk. The first request for such a sandbox finds no blank,
	// and has a blank made for the next one. Nil: no pool. With a Pool the Manager always has a
	// launcher of its own: a launcher on a socket has a pool if it was started with --pool.
	Pool *PoolConfig
}

// A Manager makes and finds sandboxes.
type Manager struct {
	known map[string]Provider
	order []string // of known, the best one first

	mu sync.Mutex
	// used are the providers that were found to be available, the one that
	// makes sandboxes unless another is named first.
	used   []Provider
	closed bool
	// closing says that no removal is put off any more.
	closing bool
	// leaving are sandboxes that are going to be removed, by id; late are the
	// errors of those that were.
	leaving map[string]*departure
	late    []error
	ending  sync.Once
}

// availableTime is how long a provider may take to say that it can be had.
const availableTime = 10 * time.Second

// NewManager is [OpenManager] with ten seconds of time.
func NewManager(c ManagerConfig) (*Manager, error) {
	ctx, cancel := context.WithTimeout(context.Background(), availableTime)
	defer cancel()
	return OpenManager(ctx, c)
}

// OpenManager chooses a provider now, so that a missing one is known before the first
// command. ctx bounds the choice. OpenManager makes no sandbox. The caller must close the
// Manager.
//
// Errors: ErrUnavailable if no preferred provider can be had, with the reasons and the
// ways out; *ConfigError if the configuration contradicts itself, joined with a *FieldError for
// each wrong bound of Pool.
func OpenManager(ctx context.Context, c ManagerConfig) (*Manager, error) {
	m := &Manager{known: map[string]Provider{}, order: c.Prefer, leaving: map[string]*departure{}}
	if len(m.order) == 0 {
		m.order = []string{ProviderIsolated}
	}
	if err := m.register(c); err != nil {
		return nil, err
	}
	var missing []error
	for _, name := range m.order {
		p, err := m.provider(ctx, name)
		if err == nil {
			m.used = []Provider{p}
			return m, nil
		}
		missing = append(missing, err)
		if !errors.Is(err, ErrUnavailable) {
			break
		}
	}
	return nil, errors.Join(append(missing, m.Close())...)
}

func (m *Manager) register(c ManagerConfig) error {
	isolated, err := newIsolatedProvider(c)
	if err != nil {
		return err
	}
	m.known[ProviderIsolated] = isolated
	m.known[ProviderLocal] = newLocalProvider()
	for _, p := range c.Providers {
		if p == nil || p.Name() == "" {
			return &ConfigError{Reason: "Providers: one is nil or has no name"}
		}
		m.known[p.Name()] = p
	}
	return nil
}

// provider returns the provider of this name, if it can be had.
func (m *Manager) provider(ctx context.Context, name string) (Provider, error) {
	p, ok := m.known[name]
	if !ok {
		return nil, &ConfigError{Reason: fmt.Sprintf("there is no provider %q; there are %s", name,
			strings.Join(slices.Sorted(maps.Keys(m.known)), ", "))}
	}
	if err := p.Available(ctx); err != nil {
		return nil, ofProvider(p, "", err)
	}
	return p, nil
}

// ofProvider adds to an error its operation, and the provider that it is about. Errors of isolated name the launcher.
func ofProvider(p Provider, operation string, err error) error {
	if _, ok := p.(*isolatedProvider); !ok {
		err = fmt.Errorf("provider %s: %w", p.Name(), err)
	}
	if operation != "" {
		err = fmt.Errorf("%s: %w", operation, err)
	}
	return err
}

// chooseProvider returns the provider of this name, or the preferred one. To find out whether it
// can be had takes time, for which nothing is locked.
func (m *Manager) chooseProvider(ctx context.Context, name string) (Provider, error) {
	used, err := m.usedProviders()
	if err != nil {
		return nil, err
	}
	if name == "" {
		return used[0], nil
	}
	for _, p := range used {
		if p.Name() == name {
			return p, nil
		}
	}
	p, err := m.provider(ctx, name)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errManagerClosed
	}
	if !slices.ContainsFunc(m.used, func(u Provider) bool { return u.Name() == name }) {
		m.used = append(m.used, p)
	}
	return p, nil
}

var errManagerClosed = fmt.Errorf("the manager %w, or was not made by NewManager", ErrClosed)

// usedProviders are the providers that sandboxes may be of.
func (m *Manager) usedProviders() ([]Provider, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || len(m.used) == 0 {
		return nil, errManagerClosed
	}
	return slices.Clone(m.used), nil
}

// A CreateOption is a circumstance of one sandbox's making.
type CreateOption func(*createOptions)

type createOptions struct {
	Request
	named    bool
	provider string
}

// Using names the provider of one sandbox, against the preference of the Manager. From
// then on the Manager also finds sandboxes of that provider.
func Using(provider string) CreateOption {
	return func(o *createOptions) { o.provider = provider }
}

// Named gives a sandbox this id: letters, digits and any of _+-. of which the
// first is a letter, a digit or _. A name that is taken is ErrExists, another text a *ConfigError.
func Named(name string) CreateOption {
	return func(o *createOptions) { o.Name, o.named = name, true }
}

// Tied ends a sandbox with the Manager that made it: when the Manager is closed, and when
// the program ends in any way.
func Tied() CreateOption {
	return func(o *createOptions) { o.Tied = true }
}

// Create makes a sandbox, which the caller must close. If ctx ends meanwhile, nothing is
// left behind.
//
// Errors: *FieldError for each mistake in the Config, *ConfigError for its paths on this
// host, ErrExists, ErrRefused, ErrUnavailable.
func (m *Manager) Create(ctx context.Context, c Config, options ...CreateOption) (*Sandbox, error) {
	return m.create(ctx, Request{Config: c}, options)
}

// Up returns the sandbox of this name if it is up and healthy, with any configuration;
// [Sandbox.Info] tells the configuration. Up replaces a sandbox that is not healthy, and
// makes a missing one. The files of a replaced sandbox are kept as a snapshot if they are
// on disk; the Notes of the new sandbox name the snapshot. Several calls at once with one
// name get the same sandbox, and each of them may close it. The errors are those of
// Create.
func (m *Manager) Up(ctx context.Context, name string, c Config, options ...CreateOption) (*Sandbox, error) {
	return m.create(ctx, Request{Config: c, Name: name, Reuse: true}, options)
}

func (m *Manager) create(ctx context.Context, r Request, options []CreateOption) (*Sandbox, error) {
	o := createOptions{Request: r}
	for _, option := range options {
		option(&o)
	}
	if o.Name == "" && (o.named || o.Reuse) {
		return nil, &ConfigError{Reason: "the name is empty: a sandbox that is to be found again needs one"}
	}
	if r.Reuse && o.Name != r.Name {
		return nil, &ConfigError{Reason: fmt.Sprintf("two names, %q and %q", r.Name, o.Name)}
	}
	if _, err := o.Config.Complete(); err != nil {
		return nil, err
	}
	if o.Name != "" {
		if err := spec.CheckName(o.Name); err != nil {
			return nil, fault.Refusal(err)
		}
	}
	p, err := m.chooseProvider(ctx, o.provider)
	if err != nil {
		return nil, errorAbout(o.Name, err)
	}
	tell, err := m.holdDeparture(ctx, o.Name)
	if err != nil {
		return nil, errorAbout(o.Name, err)
	}
	instance, err := p.Create(ctx, o.Request)
	tell(err == nil)
	if err != nil {
		return nil, errorAbout(o.Name, err)
	}
	return newSandbox(m, p, instance), nil
}

// Get finds a sandbox by its id, with any maker, also a stopped one. Errors: ErrNotFound.
func (m *Manager) Get(ctx context.Context, id string) (*Sandbox, error) {
	providers, err := m.usedProviders()
	if err != nil {
		return nil, errorAbout(id, err)
	}
	tell, err := m.holdDeparture(ctx, id)
	if err != nil {
		return nil, errorAbout(id, err)
	}
	isKept := false
	defer func() { tell(isKept) }()
	for _, p := range providers {
		instance, err := p.Open(ctx, id)
		if err == nil {
			isKept = true
			return newSandbox(m, p, instance), nil
		}
		if !errors.Is(err, ErrNotFound) {
			return nil, errorAbout(id, err)
		}
	}
	return nil, &Error{id, ErrNotFound}
}

// List describes all sandboxes, with any maker, sorted by id.
func (m *Manager) List(ctx context.Context) ([]Info, error) {
	providers, err := m.usedProviders()
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, p := range providers {
		if lister, ok := p.(Lister); ok {
			infos, err := lister.List(ctx)
			if err != nil {
				return nil, ofProvider(p, "list sandboxes", err)
			}
			all = append(all, infos...)
		}
	}
	slices.SortFunc(all, func(a, b Info) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// Remove ends all that runs in a sandbox and removes the sandbox, in any state, by its id
// alone. It goes on when ctx ends. A missing sandbox is no error.
func (m *Manager) Remove(ctx context.Context, id string) error {
	providers, err := m.usedProviders()
	if err != nil {
		return errorAbout(id, err)
	}
	for _, p := range providers {
		if err := p.Remove(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
			return errorAbout(id, err)
		}
	}
	return nil
}

// Events tells events of all sandboxes of the provider that the Manager prefers, from its
// return on. The caller must close it.
func (m *Manager) Events(ctx context.Context) (Events, error) {
	return preferred(m, "events", func(w Watcher) (Events, error) { return w.Events(ctx) })
}

// Close ends the connection with the launcher: commands that are not detached
// end, and sandboxes that are tied. Others stay; close those first that are not
// wanted any more. Those that were to be removed later are removed now. Safe to
// call twice: a second call waits for the first one, and returns nil.
func (m *Manager) Close() (err error) {
	m.ending.Do(func() {
		errs := []error{m.settle()}
		m.mu.Lock()
		m.closed = true
		m.mu.Unlock()
		for _, p := range m.known {
			if closer, ok := p.(io.Closer); ok {
				errs = append(errs, closer.Close())
			}
		}
		err = errors.Join(errs...)
	})
	return err
}
