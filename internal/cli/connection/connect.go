package connection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/server"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Sandboxes are the sandboxes of a launcher. Either the launcher listens on a socket, and its rules
// say what the user may do. Or the launcher is inside this process: the user of the command needs the
// privilege.
type Sandboxes struct {
	*sandbox.Manager
	// Inside is the launcher inside this process; nil if the launcher listens.
	Inside *launcher.Launcher
	server *server.Server // nil if the launcher listens
}

// Open returns the sandboxes of the launcher that [Socket] chooses. It makes nothing yet.
func Open(ctx context.Context, cmd *cli.Command) (*Sandboxes, error) {
	socket, err := Socket(cmd)
	if err != nil {
		return nil, err
	}
	var m *Sandboxes
	if socket == "" {
		m, err = OpenInside(ctx, cmd)
	} else {
		m = &Sandboxes{}
		go tellStopped(ctx, socket, cmd.Root().ErrWriter)
		m.Manager, err = sandbox.OpenManager(ctx, sandbox.ManagerConfig{Socket: socket})
	}
	if err != nil {
		return nil, relay.CauseOf(ctx, err)
	}
	return m, nil
}

// stoppedCheck is the time between two looks for a stopped launcher.
const stoppedCheck = 3 * time.Second

// tellStopped says once that the launcher is stopped, since its client waits then. It ends with the program.
func tellStopped(ctx context.Context, socket string, stderr io.Writer) {
	if text := protocol.AwaitStopped(ctx, socket, stoppedCheck); text != "" {
		fmt.Fprintln(stderr, text)
	}
}

// OpenEarly does the same as Open. It begins at once if the launcher listens: the answer of such a launcher takes
// some 0.5 ms.
func OpenEarly(ctx context.Context, cmd *cli.Command) (connected func() (*Sandboxes, error)) {
	connected = sync.OnceValues(func() (*Sandboxes, error) { return Open(ctx, cmd) })
	if socket, err := Socket(cmd); err == nil && socket != "" {
		go func() { _, _ = connected() }() // the caller has the error; without a caller the program ends
	}
	return connected
}

// WakeCgroups calls [cgroups.Wake] for a launcher inside this process. A launcher that listens does that itself.
func WakeCgroups(cmd *cli.Command) {
	if socket, err := Socket(cmd); err == nil && socket == "" {
		go cgroups.Wake() // ends by itself
	}
}

// CheckAccess returns an error if the sandboxes of --root are those of another user.
func CheckAccess(cmd *cli.Command) error {
	root := commandline.StateRoot(cmd)
	if _, err := os.Lstat(root + "/."); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("the sandboxes in %s are another user's: permission denied; run this as that user, which root is with sudo, or name another --root", root)
	}
	return nil
}

// OpenInside returns the sandboxes of a launcher inside this process.
func OpenInside(ctx context.Context, cmd *cli.Command) (*Sandboxes, error) {
	l, err := NewLauncher(cmd)
	if err != nil {
		return nil, err
	}
	s := &Sandboxes{Inside: l, server: server.New(server.Of(l), server.Rules{}, commandline.LogFrom(ctx))}
	s.Manager, err = sandbox.NewManager(sandbox.ManagerConfig{
		Dial: func(context.Context) (*net.UnixConn, error) { return s.server.Connect() },
	})
	if err != nil {
		s.server.Shutdown(ctx)
		return nil, err
	}
	return s, nil
}

// WithSandboxes does something with the existing sandboxes and the images of a launcher. A user without
// the right to see the sandboxes gets an error, not an empty list.
func WithSandboxes(ctx context.Context, cmd *cli.Command, do func(*Sandboxes) error) (err error) {
	socket, err := Socket(cmd)
	if err == nil && socket == "" {
		err = CheckAccess(cmd)
	}
	if err != nil {
		return err
	}
	m, err := Open(ctx, cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return do(m)
}

// WithSandbox does something with the sandbox that the first argument names.
func WithSandbox(ctx context.Context, cmd *cli.Command, do func(*sandbox.Sandbox) error) error {
	return WithSandboxes(ctx, cmd, func(m *Sandboxes) error {
		box, err := m.Get(ctx, cmd.Args().First())
		if err != nil {
			return err
		}
		return do(box)
	})
}

// Close ends the commands of this process that are not detached, and returns when a launcher
// inside this process has released all that it holds.
func (s *Sandboxes) Close() error {
	err := s.Manager.Close()
	if s.Inside == nil {
		return err
	}
	over, cancel := context.WithCancel(context.Background())
	cancel() // all calls still under way have no caller
	s.server.Shutdown(over)
	s.Inside.Close()
	return err
}

// Settings are the limits that the kernel holds for a sandbox of the launcher inside this process.
func (s *Sandboxes) Settings(ctx context.Context, id string) (cgroups.Settings, error) {
	box, err := s.Inside.Open(ctx, id)
	if err != nil {
		return cgroups.Settings{}, err
	}
	defer box.Release()
	return box.Settings()
}

// NewLauncher returns a launcher with the directories of --root and --data, and the addresses of --network-range.
func NewLauncher(cmd *cli.Command) (*launcher.Launcher, error) {
	addresses, _ := networkRange(cmd) // checked before each command
	return launcher.New(launcher.Dirs{State: commandline.StateRoot(cmd), Data: cmd.String("data"), NetworkRange: addresses})
}

// CheckNetworkRange returns an error if --network-range is no range for sandboxes.
func CheckNetworkRange(cmd *cli.Command) error {
	_, err := networkRange(cmd)
	return err
}

func networkRange(cmd *cli.Command) (netip.Prefix, error) {
	p, err := router.ParseRange(cmd.String("network-range"))
	if err != nil {
		return p, fmt.Errorf("--network-range: %w", err)
	}
	return p, nil
}

// Catch catches the signals during a command. Its message about an interrupted command names the command that
// removes the rest.
func Catch(ctx context.Context, cmd *cli.Command) (context.Context, *relay.Signals) {
	prune := commandline.ProgramWithDirs(cmd)
	if cmd.Root().IsSet("socket") { // prune takes no socket
		prune = commandline.Program
	}
	return relay.Catch(ctx, prune+" prune")
}
