package files

import (
	"context"
	"errors"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A Service is a server in this process, for files without a sandbox.
type Service struct {
	root    *os.Root
	in, out *os.File
	done    chan struct{}
}

// NewService serves the files below root, which it takes over, as if they were at prefix,
// over two pipes that stay the caller's.
func NewService(root *os.Root, prefix string, stdin, stdout *os.File) (*Service, error) {
	in, err := descriptor.Pollable(stdin)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	out, err := descriptor.Pollable(stdout)
	if err != nil {
		return nil, errors.Join(err, in.Close(), root.Close())
	}
	s := &Service{root: root, in: in, out: out, done: make(chan struct{})}
	go func() { // ends with in, which Close sees to
		defer close(s.done)
		_ = Serve(root, prefix, in, out) // the client notices
		s.in.Close()
		s.out.Close()
		_ = s.root.Close() // nothing is written through it
	}()
	return s, nil
}

// Wait implements [Process].
func (s *Service) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements [Process].
func (s *Service) Close() error {
	s.in.Close()
	s.out.Close()
	<-s.done
	return nil
}
