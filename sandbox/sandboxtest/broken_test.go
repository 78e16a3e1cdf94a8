package sandboxtest

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

const lackClaim = "a missing ability is an error"

// A breaker makes a provider that breaks one claim.
type breaker func(f *Fake) sandbox.Provider

// whole is the fake itself: it lacks the ability, or the options of the suite are wrong.
func whole(f *Fake) sandbox.Provider { return f }

// running breaks the commands.
func running(run func(p *Program, run func() int) int) breaker {
	return func(f *Fake) sandbox.Provider {
		host := f.Run
		f.Run = func(ctx context.Context, p *Program) int { return run(p, func() int { return host(ctx, p) }) }
		return f
	}
}

// telling breaks the Results.
func telling(change func(r *sandbox.Result)) breaker {
	return func(f *Fake) sandbox.Provider {
		tell := f.Result
		f.Result = func(p *Program, r *sandbox.Result) { tell(p, r); change(r) }
		return f
	}
}

// starting breaks the properties of commands.
func starting(change func(c *sandbox.Command)) breaker {
	return instances(func(i *instance) sandbox.Instance { return brokenStart{i, change} })
}

type brokenStart struct {
	*instance
	change func(c *sandbox.Command)
}

func (b brokenStart) Start(ctx context.Context, c sandbox.Command, stdio [3]*os.File) (sandbox.Execution, error) {
	b.change(&c)
	return b.instance.Start(ctx, c, stdio)
}

// executions breaks the executions of commands that are not detached.
func executions(wrap func(e *execution) sandbox.Execution) breaker {
	return instances(func(i *instance) sandbox.Instance { return brokenExecution{i, wrap} })
}

type brokenExecution struct {
	*instance
	wrap func(e *execution) sandbox.Execution
}

func (b brokenExecution) Start(ctx context.Context, c sandbox.Command, stdio [3]*os.File) (sandbox.Execution, error) {
	e, err := b.instance.Start(ctx, c, stdio)
	switch e := e.(type) {
	case *execution:
		return b.wrap(e), err
	case *attachedExecution:
		return killedDetached{e}, err
	}
	return e, err
}

// killedDetached ends a detached command at Close.
type killedDetached struct{ *attachedExecution }

func (k killedDetached) Close() error {
	_ = k.Signal(unix.SIGKILL, true) // it may have ended
	return k.attachedExecution.Close()
}

// instances breaks the sandboxes.
func instances(wrap func(i *instance) sandbox.Instance) breaker {
	return func(f *Fake) sandbox.Provider { return brokenInstances{f, wrap} }
}

type brokenInstances struct {
	*Fake
	wrap func(i *instance) sandbox.Instance
}

func (b brokenInstances) Create(ctx context.Context, r sandbox.Request) (sandbox.Instance, error) {
	i, err := b.Fake.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return b.wrap(i.(*instance)), nil
}

func (b brokenInstances) Open(ctx context.Context, id string) (sandbox.Instance, error) {
	i, err := b.Fake.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return b.wrap(i.(*instance)), nil
}

// bare are instances without any optional ability.
var bare = instances(func(i *instance) sandbox.Instance { return struct{ sandbox.Instance }{i} })

// creating breaks the requests for sandboxes.
func creating(change func(r *sandbox.Request)) breaker {
	return func(f *Fake) sandbox.Provider { return brokenCreate{f, change} }
}

type brokenCreate struct {
	*Fake
	change func(r *sandbox.Request)
}

func (b brokenCreate) Create(ctx context.Context, r sandbox.Request) (sandbox.Instance, error) {
	b.change(&r)
	return b.Fake.Create(ctx, r)
}

// delayed holds back the output of a stream until the end.
func delayed(stream func(p *Program) *io.Writer) breaker {
	return running(func(p *Program, run func() int) int {
		to := *stream(p)
		var held bytes.Buffer
		*stream(p) = &held
		code := run()
		_, _ = held.WriteTo(to) // the reader may have gone
		return code
	})
}

// Executions that break one promise each.
type (
	lateStart struct{ *execution }
	forgetful struct {
		*execution
		waits *atomic.Int32
	}
	otherSignal struct{ *execution }
	deafWait    struct{ *execution }
	neverJoins  struct{ *execution }
)

func (l lateStart) Started(context.Context) error { <-l.ended; return nil }
func (f forgetful) Wait(ctx context.Context) (sandbox.Result, error) {
	if f.waits.Add(1) > 1 {
		return sandbox.Result{}, sandbox.ErrNotFound
	}
	return f.execution.Wait(ctx)
}
func (o otherSignal) Signal(sig syscall.Signal, tree bool) error {
	if sig == unix.SIGUSR1 {
		sig = unix.SIGTERM
	}
	return o.execution.Signal(sig, tree)
}
func (d deafWait) Wait(context.Context) (sandbox.Result, error) {
	return d.execution.Wait(context.Background())
}
func (neverJoins) Joining() <-chan struct{} { return make(chan struct{}) }

// Instances that break one promise each.
type (
	otherFiles    struct{ *instance }
	noLayers      struct{ *instance }
	lateLayers    struct{ *instance }
	keeper        struct{ *instance }
	untaken       struct{ *instance }
	noPause       struct{ *instance }
	zeroStats     struct{ *instance }
	noExecs       struct{ *instance }
	sameWorkspace struct{ *instance }
	openPorts     struct{ *instance }
	noLevels      struct{ *instance }
	otherInfo     struct{ *instance }
	stayer        struct{ *instance }
)

func (o otherFiles) StartFiles(_ context.Context, stdin, stdout *os.File) (sandbox.FileServer, error) {
	dir, err := os.MkdirTemp(o.dir, "other")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return files.NewService(root, "/workspace", stdin, stdout)
}
func (noLayers) Layers(context.Context) ([]layer.Overlay, error) { return nil, nil }
func (l lateLayers) Layers(ctx context.Context) ([]layer.Overlay, error) {
	all, err := l.instance.Layers(ctx)
	for n := range all {
		all[n].Since = time.Now()
	}
	return all, err
}
func (keeper) Discard(context.Context) error                      { return nil }
func (untaken) Undo(context.Context, int) error                   { return nil }
func (noPause) Pause(context.Context) error                       { return nil }
func (zeroStats) Stats(context.Context) (sandbox.Stats, error)    { return sandbox.Stats{}, nil }
func (noExecs) Execs(context.Context) ([]sandbox.ExecInfo, error) { return nil, nil }
func (sameWorkspace) SetWorkspace(context.Context, string) error  { return nil }
func (openPorts) Dial(context.Context, string, string) (net.Conn, error) {
	c, _ := net.Pipe()
	return c, nil
}
func (noLevels) ChangeNetwork(context.Context, *sandbox.NetworkGrant, sandbox.Sensitivity) (sandbox.NetworkChange, error) {
	return sandbox.NetworkChange{}, nil
}
func (o otherInfo) Describe(context.Context) (sandbox.Info, error) {
	i := o.info
	i.Created = time.Time{}
	return i, nil
}
func (stayer) Remove(context.Context) error { return nil }

// Providers that break one promise each.
type (
	noEvents  struct{ *Fake }
	nameless  struct{ *Fake }
	onceReady struct {
		*Fake
		asked *atomic.Int32
	}
	noList     struct{ *Fake }
	noOpen     struct{ *Fake }
	lenient    struct{ *Fake }
	noRemoval  struct{ *Fake }
	forgetting struct{ *Fake }
	givesUp    struct{ *Fake }
	leftover   struct{ *Fake }
	endless    struct{ *Fake }
)

func (noEvents) Events(context.Context) (sandbox.Events, error) { return silent{}, nil }
func (n nameless) PullImage(ctx context.Context, reference string, o sandbox.PullOptions) (sandbox.Image, error) {
	o.Name = ""
	return n.Fake.PullImage(ctx, reference, o)
}
func (o onceReady) Available(context.Context) error {
	if o.asked.Add(1) > 1 {
		return sandbox.ErrUnavailable
	}
	return nil
}
func (noList) List(context.Context) ([]sandbox.Info, error) { return nil, nil }
func (noOpen) Open(context.Context, string) (sandbox.Instance, error) {
	return nil, sandbox.ErrNotFound
}
func (noRemoval) Remove(context.Context, string) error { return nil }
func (l lenient) Remove(ctx context.Context, id string) error {
	_ = l.Fake.Remove(ctx, id)
	return nil
}
func (f forgetting) Remove(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sandboxes, id)
	return nil
}
func (g givesUp) Remove(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
func (l leftover) Create(ctx context.Context, r sandbox.Request) (sandbox.Instance, error) {
	i, err := l.Fake.Create(ctx, r)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return i, err
}
func (endless) Close() error { return nil }

// silent are Events that never come.
type silent struct{}

func (silent) Next(ctx context.Context) (sandbox.Event, error) {
	<-ctx.Done()
	return sandbox.Event{}, ctx.Err()
}
func (silent) Close() error { return nil }

// instancesOf, executionsOf and providerOf break by the methods of a type.
func instancesOf[T interface {
	~struct{ *instance }
	sandbox.Instance
}]() breaker {
	return instances(func(i *instance) sandbox.Instance { return T(struct{ *instance }{i}) })
}

func executionsOf[T interface {
	~struct{ *execution }
	sandbox.Execution
}]() breaker {
	return executions(func(e *execution) sandbox.Execution { return T(struct{ *execution }{e}) })
}

func providerOf[T interface {
	~struct{ *Fake }
	sandbox.Provider
}]() breaker {
	return func(f *Fake) sandbox.Provider { return T(struct{ *Fake }{f}) }
}

// brokenProviders are by the name of the claim that each one breaks.
func brokenProviders() map[string]breaker {
	all := brokenCommands()
	maps.Copy(all, brokenSandboxes())
	return all
}

func brokenCommands() map[string]breaker {
	var turn, mu sync.Mutex
	var leaked []*os.File // mu guards them
	return map[string]breaker{
		"a Result has the exit code":                       telling(func(r *sandbox.Result) { r.ExitCode = 0 }),
		"a Result has the signal":                          telling(func(r *sandbox.Result) { r.Signal = "" }),
		"a Result tells that a command cannot be executed": whole,
		"a command has the environment of both":            starting(func(c *sandbox.Command) { c.Env = nil }),
		"a command starts in the workspace of the host":    whole,
		"a command starts in its directory":                starting(func(c *sandbox.Command) { c.Cwd = "" }),
		"files stay for the next command": running(func(p *Program, run func() int) int {
			defer func() { _ = os.Remove(p.instance.top() + "/workspace/f") }() // the first command makes the directory
			return run()
		}),
		"commands run at the same time": running(func(_ *Program, run func() int) int {
			turn.Lock()
			defer turn.Unlock()
			return run()
		}),
		"Started returns beside Wait":         executionsOf[lateStart](),
		"all calls of Wait return the Result": executions(func(e *execution) sandbox.Execution { return forgetful{e, &atomic.Int32{}} }),
		"a signal reaches the command":        executionsOf[otherSignal](),
		"commands leave no descriptor open": running(func(_ *Program, run func() int) int {
			if f, err := os.Open(os.DevNull); err == nil {
				mu.Lock()
				leaked = append(leaked, f)
				mu.Unlock()
			}
			return run()
		}),
		"output goes to its stream": running(func(p *Program, run func() int) int { p.Stdout, p.Stderr = p.Stderr, p.Stdout; return run() }),
		"output is kept up to its limit": running(func(p *Program, run func() int) int {
			_, _ = p.Stdout.Write([]byte("more"))
			return run()
		}),
		"input of each size arrives":                                running(func(p *Program, run func() int) int { p.Stdin = strings.NewReader(""); return run() }),
		"a command without input has an empty one":                  running(func(p *Program, run func() int) int { p.Stdin = strings.NewReader("more"); return run() }),
		"streams pass on data as it comes":                          delayed(func(p *Program) *io.Writer { return &p.Stdout }),
		"one writer gets both streams in order":                     delayed(func(p *Program) *io.Writer { return &p.Stderr }),
		"a writer that has enough ends the command":                 running(func(p *Program, run func() int) int { p.Stdout = io.Discard; return run() }),
		"the error of a writer is returned":                         running(func(p *Program, run func() int) int { p.Stdout = io.Discard; return run() }),
		"a timeout holds against a writer that does not return":     running(func(p *Program, run func() int) int { p.Stderr = io.Discard; return run() }),
		"a timeout ends a command":                                  telling(func(r *sandbox.Result) { r.ExitCode = 137 }),
		"a timeout of the command comes before that of the sandbox": starting(func(c *sandbox.Command) { c.Timeout = 0 }),
		"a Result tells whether the command has ended in the grace": starting(func(c *sandbox.Command) { c.Grace = 0 }),
		"the end of a context ends its command":                     telling(func(r *sandbox.Result) { r.Reason = "" }),
		"the end of a context ends a wait alone":                    executionsOf[deafWait](),
		"nothing of a command goes on after Wait": running(func(p *Program, run func() int) int {
			name := p.instance.top() + "/workspace/alive"
			tick := time.NewTicker(10 * time.Millisecond)
			go func() {
				defer tick.Stop()
				for range 500 {
					<-tick.C
					_ = os.WriteFile(name, nil, 0o600) // the sandbox may have gone
				}
			}()
			return run()
		}),
	}
}

func brokenSandboxes() map[string]breaker {
	return map[string]breaker{
		"files are written and read":                           bare,
		"files are those of the commands":                      instancesOf[otherFiles](),
		"files are listed, moved and removed":                  bare,
		"an error about a file has the given name":             bare,
		"a write that fails leaves nothing":                    bare,
		"a watch tells changes":                                bare,
		"changes are those of the overlay":                     instancesOf[noLayers](),
		"only listed changes are applied":                      instancesOf[noLayers](),
		"a change of both sides is a conflict":                 instancesOf[lateLayers](),
		"only named conflicts are overwritten":                 instancesOf[lateLayers](),
		"a discard throws away the changes":                    instancesOf[keeper](),
		"a discard needs an overlay":                           instancesOf[keeper](),
		"transactions join and are taken back":                 instancesOf[untaken](),
		"transactions conflict with other commands":            starting(func(c *sandbox.Command) { c.Transaction = false }),
		"a transaction tells when it joins":                    executionsOf[neverJoins](),
		"a snapshot has the files of its time":                 creating(func(r *sandbox.Request) { r.From = "" }),
		"a missing snapshot is not found":                      creating(func(r *sandbox.Request) { r.From = "" }),
		lackClaim:                                              whole,
		"a pause halts a sandbox":                              instancesOf[noPause](),
		"limits change while a sandbox runs":                   whole,
		"statistics count":                                     instancesOf[zeroStats](),
		"events tell of new and removed sandboxes":             providerOf[noEvents](),
		"a terminal has its size":                              whole,
		"a terminal has an end of input":                       whole,
		"a detached command has one Result for one caller":     instancesOf[noExecs](),
		"a detached command keeps head and tail of its output": starting(func(c *sandbox.Command) { c.OutputLimit = 0 }),
		"a detached command goes on without its caller":        executions(func(e *execution) sandbox.Execution { return e }),
		"a workspace replaces another one":                     instancesOf[sameWorkspace](),
		"connections lead to loopback ports alone":             instancesOf[openPorts](),
		"the sensitivity of a sandbox only rises":              instancesOf[noLevels](),
		"images have names and ids":                            providerOf[nameless](),
		"a provider has one name and is available":             func(f *Fake) sandbox.Provider { return onceReady{f, &atomic.Int32{}} },
		"a sandbox has a name of its own":                      creating(func(r *sandbox.Request) { r.Name = "" }),
		"a path that cannot be shown is refused":               creating(func(r *sandbox.Request) { r.Config.Overlays = slices.Clip(r.Config.Overlays[:0]) }),
		"an Info describes the sandbox":                        instancesOf[otherInfo](),
		"a list has each sandbox":                              providerOf[noList](),
		"Up finds a sandbox or makes it":                       creating(func(r *sandbox.Request) { r.Reuse = false }),
		"Get finds a sandbox":                                  providerOf[noOpen](),
		"a missing sandbox is not found":                       providerOf[lenient](),
		"a removed sandbox is not found":                       providerOf[noRemoval](),
		"a removal ends commands":                              providerOf[forgetting](),
		"a removal goes on after the end of its context":       providerOf[givesUp](),
		"Close ends commands and frees the name":               instancesOf[stayer](),
		"Close leaves a later sandbox of the name":             bare,
		"a creation that is given up leaves nothing":           providerOf[leftover](),
		"a closed Manager makes nothing":                       providerOf[endless](),
	}
}
