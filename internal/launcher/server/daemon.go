package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A Socket is a listening socket: launcher.sock, or one that systemd has handed over.
type Socket interface {
	net.Listener
	Source
}

// InheritedListener takes over a listening socket.
func InheritedListener(f *os.File) (Socket, error) {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	if l, ok := l.(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false) // the socket belongs to systemd
		return l, nil
	}
	return nil, errors.Join(errors.New("not a Unix socket"), l.Close())
}

// CloseListeners closes all sockets.
func CloseListeners(all []Socket) error {
	var errs []error
	for _, l := range all {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// A Daemon serves a [Server] until a signal ends the process.
type Daemon struct {
	*Server
	Log   *slog.Logger
	Grace time.Duration
	// Ending is called when the end begins, beside the grace. Nil: nothing is called.
	Ending func()
}

// Run serves until SIGTERM or SIGINT, or until a listener fails.
func (d *Daemon) Run(ctx context.Context, listeners []Socket) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	var serving sync.WaitGroup
	for _, l := range listeners {
		d.Log.Info("listening", "socket", l.Addr().String())
		serving.Go(func() {
			if err := d.Serve(l); err != nil {
				cancel(fmt.Errorf("listen on %s: %w", l.Addr(), err))
			}
		})
	}
	serving.Go(func() { d.Adopt(ctx) })
	<-ctx.Done()
	d.Log.Info("ending", "grace", d.Grace.String())
	d.endAfter()
	failed := context.Cause(ctx)
	cancel(nil)
	err := CloseListeners(listeners)
	d.end(stop)
	serving.Wait()
	if errors.Is(failed, context.Canceled) { // a signal
		failed = nil
	}
	return errors.Join(failed, err)
}

// RunConn serves one connection until its end, or until SIGTERM or SIGINT.
func (d *Daemon) RunConn(ctx context.Context, conn *net.UnixConn) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	go cgroups.Wake() // ends by itself
	var err error
	served := make(chan struct{})
	go func() {
		defer close(served)
		err = d.ServeConn(conn)
	}()
	select {
	case <-served: // its commands have their grace, and a signal does not shorten that
		stop = nil
	case <-ctx.Done():
	}
	d.endAfter()
	d.end(stop)
	<-served
	return err
}

// end shuts the server down, and gives commands their grace. With stop, which ends the effect of the
// first signal, a second signal ends this process at once, or after the joins under way.
func (d *Daemon) end(stop context.CancelFunc) {
	if stop != nil {
		defer d.endAtSignal(stop)()
	}
	if d.Ending != nil {
		go d.Ending()
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.Grace)
	defer cancel()
	d.Shutdown(ctx)
}

// endAtSignal has a signal end this process once no transaction joins, or after joinTime, until done is called. Later
// signals have their usual effect.
func (d *Daemon) endAtSignal(stop context.CancelFunc) (done func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	stop()
	go func() {
		s, ok := <-signals
		if !ok {
			return
		}
		d.awaitJoins(joinTime)
		signal.Reset(s)
		_ = unix.Kill(unix.Getpid(), s.(unix.Signal)) // a process can always send itself a signal
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// InheritedConn takes over a connection that this process has inherited.
func InheritedConn(fd int) (*net.UnixConn, error) {
	if fd < 3 {
		return nil, errors.New("it is one of stdin, stdout and stderr")
	}
	conn, err := descriptor.UnixConn(os.NewFile(uintptr(fd), "launcher's connection"))
	switch {
	case errors.Is(err, unix.EBADF):
		return nil, errors.New("nobody passed such a descriptor")
	case errors.Is(err, unix.ENOTSOCK):
		return nil, fmt.Errorf("it is no connected socket of unix(7): %w", err)
	}
	return conn, err
}
