package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/files"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Root has the sandbox's files as the test sees them through [sandbox.Files]: a
// temporary directory of the host's, at first with an empty workspace and tmp,
// that goes with the sandbox. The caller closes it.
func (p *Program) Root() (*os.Root, error) { return p.instance.root() }

// root makes the directory when it is first needed.
func (i *instance) root() (*os.Root, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ctx.Err() != nil {
		return nil, sandbox.ErrNotFound
	}
	if i.dir == "" {
		dir, err := os.MkdirTemp("", "sandboxtest")
		if err != nil {
			return nil, fmt.Errorf("files of a fake: %w", err)
		}
		i.dir = dir
		if err := errors.Join(os.Mkdir(dir+"/workspace", 0o755), os.Mkdir(dir+"/tmp", 0o755)); err != nil {
			return nil, fmt.Errorf("files of a fake: %w", err)
		}
	}
	return os.OpenRoot(i.dir)
}

// remove ends the instance and removes its files.
func (i *instance) remove() error {
	i.end()
	i.mu.Lock()
	dir := i.dir
	i.dir = ""
	i.mu.Unlock()
	if dir == "" {
		return nil
	}
	return os.RemoveAll(dir)
}

// StartFiles implements [sandbox.Filer].
func (i *instance) StartFiles(_ context.Context, stdin, stdout *os.File) (sandbox.FileServer, error) {
	root, err := i.root()
	if err != nil {
		return nil, err
	}
	s, err := files.NewService(root, "/", stdin, stdout)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(i.ctx, func() { _ = s.Close() }) // always nil
	return s, nil
}
