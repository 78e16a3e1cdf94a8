// Package launcher has the launcher of sandboxes in a program that embeds them, for a
// service in one file:
//
//	func main() {
//		launcher.Main() // first
//		m, err := sandbox.NewManager(sandbox.ManagerConfig{
//			Launcher: launcher.Command(launcher.Dirs{}),
//		})
//
// The program is then executed anew as its own launcher, and once more for each sandbox,
// by libcontainer: its packages are initialised each time. It needs cgo, libseccomp with its
// headers, and the build tag "seccomp"; without the tag it does not compile. The module
// brings the programs that run inside a sandbox, for amd64. A program without cgo imports
// package sandbox alone, and has the sandbox-runtime binary beside it.
package launcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/server"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
)

// Dirs are the directories of the launcher: launchers with the same directories have the
// same sandboxes. The zero value are those of the sandbox-runtime binary.
type Dirs struct {
	// State is for files that end with the boot. Empty: /run/sandbox-runtime.
	State string
	// Data is for files that last longer, and should be one for all launchers of a host.
	// Empty: /var/lib/sandbox-runtime.
	Data string
	// NetworkRange has the IPv4 addresses of sandboxes with NetworkFull, as a CIDR of /18 or wider.
	// Empty: a private range without a route of the host.
	NetworkRange string
}

const (
	// argument makes the program a launcher, with State, Data and NetworkRange behind it.
	argument = "sandbox-runtime-launcher"
	// connection is the descriptor that sandbox.ManagerConfig.Launcher gives.
	connection = 3

	defaultState = "/run/sandbox-runtime"
	defaultData  = "/var/lib/sandbox-runtime"
)

// Command is the program itself as its launcher, for
// sandbox.ManagerConfig.Launcher. It stays right when the program's file is
// replaced.
func Command(d Dirs) []string {
	return []string{"/proc/self/exe", argument, cmp.Or(d.State, defaultState), cmp.Or(d.Data, defaultData), d.NetworkRange}
}

// Main is the launcher's main function, if the program was started by Command:
// then it does not return. It has to come first, before flags are looked at and
// goroutines are started.
func Main() {
	if len(os.Args) < 5 || os.Args[1] != argument {
		return
	}
	server.Tune()
	// The first thread is left alone. The Go runtime does not end it, and in the
	// mount namespace of a sandbox it would keep the mounts.
	runtime.LockOSThread()
	served := make(chan error)
	go func() { served <- serve(os.Args[2], os.Args[3], os.Args[4], os.Args[5:]) }()
	if err := <-served; err != nil {
		fmt.Fprintln(os.Stderr, "launcher:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// leaveTime is how long calls may take to end when the launcher is told to.
const leaveTime = 5 * time.Second

// serve serves the one connection until its end. The options are those that sandbox.NewManager adds:
// --pool and the bounds of a pool, or none.
func serve(state, data, addresses string, options []string) error {
	var pool *string
	switch {
	case len(options) == 2 && options[0] == "--pool":
		pool = &options[1]
	case len(options) > 0:
		return fmt.Errorf("unknown options %q", options)
	}
	p, err := router.ParseRange(addresses)
	if err != nil {
		return fmt.Errorf("NetworkRange: %w", err)
	}
	l, err := launcher.New(launcher.Dirs{State: state, Data: data, NetworkRange: p})
	if err != nil {
		return err
	}
	if err := l.CheckRoot(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	defer l.Close()
	if err := server.Prepare(l, pool, log); err != nil {
		return err
	}
	conn, err := server.InheritedConn(connection)
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", connection, err)
	}
	daemon := &server.Daemon{Server: server.New(server.Of(l), server.Rules{}, log), Log: log, Grace: leaveTime, Ending: l.StopPool}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGHUP)
	defer stop()
	return daemon.RunConn(ctx, conn)
}
