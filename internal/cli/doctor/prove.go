package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// probeTarget is where a sandbox that is examined sees this program.
const probeTarget = "/opt/doctor/sandbox-runtime"

// Sandboxes starts the sandboxes that are examined.
type Sandboxes interface {
	Maker
	// Settings are the limits that the kernel holds for a sandbox.
	Settings(ctx context.Context, id string) (cgroups.Settings, error)
}

// A prover has sandboxes look at their own walls.
type prover struct {
	Sandboxes
	program string // this one, on the host
}

// newProver returns a prover that the caller closes.
func newProver(ctx context.Context, open func(context.Context) (Sandboxes, error)) (*prover, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h, err := open(ctx)
	if err != nil {
		return nil, err
	}
	return &prover{h, program}, nil
}

// examined is the configuration whose walls are proven: the default one, with a
// limit of disk traffic, which is off there.
func examined() spec.Config {
	return spec.Config{Limits: spec.Limits{FileSize: 100 << 20, IORead: 100 << 20, IOWrite: 100 << 20}, Timeout: spec.Duration(20 * time.Second)}
}

// The configurations under which commands ask for more than they may.
var (
	hungry   = spec.Config{Limits: spec.Limits{Memory: 32 << 20}, Timeout: spec.Duration(20 * time.Second)}
	forking  = spec.Config{Limits: spec.Limits{Pids: 16}, Timeout: spec.Duration(20 * time.Second)}
	spinning = spec.Config{Limits: spec.Limits{CPUs: 0.2}, Timeout: spec.Duration(20 * time.Second)}
)

// prove judges sandboxes of the configuration. An error says that one could not
// be had.
func (p *prover) prove(ctx context.Context, c spec.Config) ([]proofReport, error) {
	e, err := p.gather(ctx, c)
	if err != nil {
		return nil, err
	}
	return judge(e), nil
}

func (p *prover) gather(ctx context.Context, c spec.Config) (e evidence, err error) {
	if e.host, err = viewOfHost(); err != nil {
		return e, err
	}
	if e.config, err = c.Complete(); err != nil {
		return e, err
	}
	if e.held, e.limits, err = p.probe(ctx, c, "look", &e.inside); err != nil {
		return e, err
	}
	if e.keyring, err = p.askKeyring(ctx); err != nil {
		return e, err
	}
	for _, greedy := range []struct {
		config spec.Config
		result *spec.Result
		script string
	}{
		{hungry, &e.memory, "exec dd if=/dev/zero of=/dev/null bs=1G count=1"},
		// It ends as the first is refused: some shells would try again for long.
		{forking, &e.pids, "{ while :; do sleep 100 & done; } 2>&1 | { read -r refusal; kill -9 $$; }"},
	} {
		if *greedy.result, _, err = p.run(ctx, greedy.config, "/bin/sh", "-c", greedy.script); err != nil {
			return e, err
		}
	}
	e.cpu, err = p.tryCPU(ctx)
	return e, err
}

// tryCPU has a command want a whole processor. Where it had one, it has more tries:
// a machine that stands still meanwhile may be counted as used.
func (p *prover) tryCPU(ctx context.Context) (used float64, err error) {
	for range 3 {
		if _, _, err = p.probe(ctx, spinning, "spin", &used); err != nil || used <= mayUse {
			break
		}
	}
	return used, err
}

// run runs a command in a sandbox of its own, which has this program in it.
func (p *prover) run(ctx context.Context, c spec.Config, args ...string) (_ spec.Result, limits cgroups.Settings, err error) {
	c.Binds = append(c.Binds, spec.Bind{Source: p.program, Target: probeTarget})
	box, err := p.Create(ctx, c, sandbox.Tied())
	if err != nil {
		return spec.Result{}, limits, err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if limits, err = p.Settings(ctx, box.ID()); err != nil {
		return spec.Result{}, limits, err
	}
	result, err := box.Exec(ctx, sandbox.Command{Args: args})
	return result, limits, err
}

// probe has a part of [Probe] run in a sandbox of its own, and decodes the finding.
func (p *prover) probe(ctx context.Context, c spec.Config, part string, finding any) (held spec.LimitReport, limits cgroups.Settings, err error) {
	r, limits, err := p.run(ctx, c, probeTarget, ProbeCommand, part)
	if err != nil {
		return held, limits, err
	}
	if !r.OK() {
		return held, limits, fmt.Errorf("%s %s in a sandbox: %s: %s", ProbeCommand, part, r.Reason, strings.TrimSpace(string(r.Stderr)))
	}
	if err := json.Unmarshal(r.Stdout, finding); err != nil {
		return held, limits, fmt.Errorf("%s %s in a sandbox: %w", ProbeCommand, part, err)
	}
	return r.Limits, limits, nil
}

// askKeyring asks a sandbox for its session keyring, under the default profile
// with the one call added that asks.
func (p *prover) askKeyring(ctx context.Context) (id int, err error) {
	profile, err := seccomp.Profile("default")
	if err != nil {
		return 0, err
	}
	profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{Names: []string{"keyctl"}, Action: specs.ActAllow})
	data, err := json.Marshal(profile)
	if err != nil {
		return 0, err
	}
	dir, err := temporaryDir("doctor")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "keyctl.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return 0, err
	}
	_, _, err = p.probe(ctx, spec.Config{Seccomp: file}, "keyring", &id)
	return id, err
}

func viewOfHost() (v hostView, err error) {
	if v.Namespaces, err = ownNamespaces(); err != nil {
		return v, err
	}
	v.keyring, err = sessionKeyring()
	return v, err
}
