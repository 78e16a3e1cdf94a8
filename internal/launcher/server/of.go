package server

import (
	"context"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Of returns a launcher as a Core.
func Of(l *launcher.Launcher) Core { return core{l} }

type core struct{ *launcher.Launcher }

func (c core) Create(ctx context.Context, r protocol.Create, from Sources) (Sandbox, error) {
	return asInterface(c.Launcher.Create(ctx, r, from))
}

func (c core) Open(ctx context.Context, id string) (Sandbox, error) {
	return asInterface(c.Launcher.Open(ctx, id))
}

func (c core) OpenStopped(ctx context.Context, id string) (Sandbox, error) {
	return asInterface(c.Launcher.OpenStopped(ctx, id))
}

// asInterface returns the sandbox as an interface. After an error the interface is nil.
func asInterface(s *launcher.Sandbox, err error) (Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return sandbox{s}, nil
}

func (c core) Remove(ctx context.Context, id string, only Condition) (bool, error) {
	return c.RemoveIf(ctx, id, only)
}

type sandbox struct{ *launcher.Sandbox }

func (s sandbox) Start(ctx context.Context, c spec.Command, files [3]*os.File) (Process, error) {
	return started(s.Sandbox.Start(ctx, c, files))
}

func (s sandbox) StartFiles(ctx context.Context, files [3]*os.File) (Process, error) {
	return started(s.Sandbox.StartFiles(ctx, files))
}

func (s sandbox) Attach(ctx context.Context, exec string) (Process, error) {
	return started(s.Sandbox.Attach(ctx, exec))
}

// started returns the process as an interface. After an error the interface is nil.
func started[P Process](p P, err error) (Process, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}
