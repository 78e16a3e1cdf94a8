package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// localProvider runs commands on the host without any isolation: as this program's user, with the
// environment of this program and of the configuration, in the workspace. A missing
// workspace is made, with its parents. The timeout of a command, and the end of a command,
// end its process group. Results say that nothing was isolated and no limit enforced.
//
// localProvider is never a fallback: it is used only if it is named. Its sandboxes end with this
// program.
type localProvider struct {
	// mu guards the fields below.
	mu        sync.Mutex
	sandboxes map[string]*localInstance
	closed    bool
}

func newLocalProvider() *localProvider { return &localProvider{sandboxes: map[string]*localInstance{}} }

func (p *localProvider) Name() string { return ProviderLocal }

func (p *localProvider) Available(context.Context) error { return nil }

func (p *localProvider) Create(_ context.Context, r Request) (Instance, error) {
	if err := refuseOther(r, localRequest(r)); err != nil {
		return nil, err
	}
	if err := refuseOther(r.Config, localConfig(r.Config)); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errManagerClosed
	}
	if there, ok := p.sandboxes[r.Name]; ok {
		if !r.Reuse {
			return nil, ErrExists
		}
		info := there.info
		info.Reused = true
		return &reusedInstance{there, info}, nil
	}
	if r.Config.Workspace != "" {
		path, err := hostpaths.Absolute(r.Config.Workspace)
		if err == nil {
			err = os.MkdirAll(path, 0o755)
		}
		if err != nil {
			return nil, &ConfigError{Reason: fmt.Sprintf("workspace: %v", err)}
		}
		r.Config.Workspace = path
	}
	r.Config.Env = maps.Clone(r.Config.Env)
	i := &localInstance{provider: p, info: Info{
		ID: cmp.Or(r.Name, "local-"+strings.ToLower(rand.Text())), Provider: ProviderLocal, State: StateRunning,
		Config: r.Config, Created: time.Now(), Isolation: IsolationNone, Limits: spec.NoLimits(),
	}, running: map[*hostExecution]bool{}, serving: map[*files.Service]bool{}}
	p.sandboxes[i.info.ID] = i
	return i, nil
}

// A reusedInstance is one that Up found.
type reusedInstance struct {
	*localInstance
	info Info
}

func (r *reusedInstance) Info() Info { return r.info }

func (r *reusedInstance) Describe(ctx context.Context) (Info, error) {
	_, err := r.localInstance.Describe(ctx)
	return r.info, err
}

func (p *localProvider) Open(_ context.Context, id string) (Instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.sandboxes[id]
	if !ok {
		return nil, ErrNotFound
	}
	return i, nil
}

func (p *localProvider) Remove(_ context.Context, id string) error {
	p.mu.Lock()
	i, ok := p.sandboxes[id]
	delete(p.sandboxes, id)
	p.mu.Unlock()
	if !ok {
		return ErrNotFound
	}
	i.end()
	return nil
}

// Remove removes this sandbox. A later one with its id stays.
func (i *localInstance) Remove(context.Context) error {
	p := i.provider
	p.mu.Lock()
	if p.sandboxes[i.info.ID] == i {
		delete(p.sandboxes, i.info.ID)
	}
	p.mu.Unlock()
	i.end()
	return nil
}

func (p *localProvider) List(context.Context) ([]Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var infos []Info
	for _, i := range p.sandboxes {
		infos = append(infos, i.info)
	}
	return infos, nil
}

// Close ends all that runs.
func (p *localProvider) Close() error {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.sandboxes))
	clear(p.sandboxes)
	p.closed = true
	p.mu.Unlock()
	for _, i := range all {
		i.end()
	}
	return nil
}

// localRequest has the fields of a request that the host can hold.
func localRequest(r Request) Request {
	return Request{Name: r.Name, Reuse: r.Reuse, Tied: r.Tied, Config: r.Config}
}

// localConfig has the fields of a configuration that the host can hold.
func localConfig(c Config) Config {
	return Config{Workspace: c.Workspace, Env: c.Env, Timeout: c.Timeout, Grace: c.Grace}
}

// localCommand has the fields of a command that the host can hold. NoFiles asks for
// less, and a Result of the host has no files at all.
func localCommand(c Command) Command {
	return Command{
		Args: c.Args, Env: c.Env, Timeout: c.Timeout, Grace: c.Grace, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
		OutputLimit: c.OutputLimit, NoFiles: c.NoFiles,
	}
}

// A localInstance is a workspace with its commands.
type localInstance struct {
	provider *localProvider
	info     Info

	// mu guards the fields below.
	mu      sync.Mutex
	running map[*hostExecution]bool
	serving map[*files.Service]bool
	ended   bool
}

func (i *localInstance) Info() Info { return i.info }

func (i *localInstance) Describe(context.Context) (Info, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return Info{}, ErrNotFound
	}
	return i.info, nil
}

func (i *localInstance) Start(_ context.Context, c Command, stdio [3]*os.File) (Execution, error) {
	if err := refuseOther(c, localCommand(c)); err != nil {
		return nil, err
	}
	command := hostCommand{
		Sandbox: i.info.ID, Args: c.Args, Dir: i.info.Config.Workspace, Stdio: stdio,
		Timeout: cmp.Or(c.Timeout, time.Duration(i.info.Config.Timeout)),
		Grace:   cmp.Or(spec.Grace(c.Grace), i.info.Config.Grace).Time(),
	}
	for _, env := range []map[string]string{i.info.Config.Env, c.Env} {
		for name, value := range env {
			command.Env = append(command.Env, name+"="+value)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return nil, ErrNotFound
	}
	e, err := startOnHost(command)
	if err != nil {
		return nil, err
	}
	i.running[e] = true
	go func() { // ends with the command, by the owner's Close or by end
		<-e.Ended()
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.running, e)
	}()
	return e, nil
}

// end kills all commands and waits for their ends.
func (i *localInstance) end() {
	i.mu.Lock()
	i.ended = true
	all, serving := slices.Collect(maps.Keys(i.running)), slices.Collect(maps.Keys(i.serving))
	i.mu.Unlock()
	for _, e := range all {
		e.Leave() // the graces of all are at the same time
	}
	for _, e := range all {
		e.Lose()
	}
	for _, s := range serving {
		_ = s.Close() // always nil
	}
}

// StartFiles serves the workspace, and nothing else of the host: a path that leads out is
// refused.
func (i *localInstance) StartFiles(_ context.Context, stdin, stdout *os.File) (FileServer, error) {
	if i.info.Config.Workspace == "" {
		return nil, fmt.Errorf("files without a workspace: %w; give the Config one", ErrUnavailable)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return nil, ErrNotFound
	}
	root, err := os.OpenRoot(i.info.Config.Workspace)
	if err != nil {
		return nil, fmt.Errorf("its workspace is gone: %w", err)
	}
	s, err := files.NewService(root, WorkspacePath, stdin, stdout)
	if err != nil {
		return nil, err
	}
	i.serving[s] = true
	go func() { // ends with the service, by the owner's Close or by end
		_ = s.Wait(context.Background()) // which does not end before
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.serving, s)
	}()
	return s, nil
}
