package commandline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/userns"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// GlobalFlags are the flags before a command.
func GlobalFlags() []cli.Flag {
	root, _ := DefaultRoot()
	return []cli.Flag{
		&cli.BoolFlag{Name: "version", Aliases: []string{"v"}, Local: true, Usage: "print the versions of this binary and its parts"},
		&cli.BoolFlag{Name: "debug", Local: true, Usage: "enable debug logging"},
		&cli.StringFlag{Name: "log", Local: true, Usage: "`FILE` to append log messages to (default: stderr)"},
		&cli.StringFlag{Name: "log-format", Local: true, Value: "text", Usage: "text or json"},
		&cli.StringFlag{Name: "root", Local: true, Value: root, Usage: "`DIR` for container state, best on a tmpfs"},
		&cli.StringFlag{Name: "socket",
			Usage: "`PATH` of the socket of a launcher: launcher listens there, other commands use its sandboxes (default for users other than root: " + protocol.SharedSocket + ")"},
		&cli.StringFlag{Name: "data", Local: true, Value: DefaultData(),
			Usage: "`DIR` for data that all sandboxes of this host share: id ranges, compiled seccomp filters, files on disk"},
		&cli.StringFlag{Name: "network-range", Local: true,
			Usage: "`CIDR` of IPv4 addresses for sandboxes with a network, /18 or wider (default: a private range without a route of the host)"},
		&cli.BoolFlag{Name: "systemd-cgroup", Local: true,
			Usage: `have systemd make cgroups; cgroupsPath then has the form "slice:prefix:name"`},
		&cli.StringFlag{Name: "rootless", Local: true, Value: "auto",
			Usage: "ignore cgroup permission errors: true, false or auto"},
	}
}

// DefaultRoot returns the state root without --root. ofUser says that the state root lies in the
// runtime directory of the user. Root of the host never uses such a directory, so all sessions of
// root see the same containers.
func DefaultRoot() (path string, ofUser bool) {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && usesOwnRuntimeDir() {
		return filepath.Join(dir, Program), true
	}
	return filepath.Join("/run", Program), false
}

// DefaultData is the data directory without --data: the user's own if the state is the
// user's own (XDG Base Directory Specification 0.8). It is empty for a user without a
// home.
func DefaultData() string {
	if !usesOwnRuntimeDir() {
		return filepath.Join("/var/lib", Program)
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, Program)
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/share", Program)
	}
	return ""
}

func usesOwnRuntimeDir() bool {
	if os.Geteuid() != 0 {
		return true
	}
	return userns.RunningInUserNS() && os.Getenv("USER") != "root"
}

// Prepare opens the log and checks the state root, before every command. The checks come after that.
func Prepare(ctx context.Context, cmd *cli.Command, out *Reporter, checks ...func(*cli.Command) error) (context.Context, error) {
	err := out.openFor(cmd)
	if err == nil {
		container.SetLog(out.log)
		err = prepareRoot(cmd)
	}
	for _, check := range checks {
		if err == nil {
			err = check(cmd)
		}
	}
	if err != nil && slices.Contains([]string{"do", "attach"}, cmd.Args().First()) {
		// These commands end with the status of a command in a sandbox, which can be 1.
		err = &ExitError{Code: spec.ExitRuntimeFailed, Err: err}
	}
	return withLog(ctx, out.log), err
}

// ofLauncher says that an ordinary user calls a command for sandboxes. Such a command uses a
// launcher that listens, and needs no state root of the user's own.
func ofLauncher(cmd *cli.Command) bool {
	sub := cmd.Command(cmd.Args().First())
	return os.Geteuid() != 0 && sub != nil && sub.Category == CategorySandbox
}

func prepareRoot(cmd *cli.Command) error {
	if cmd.IsSet("root") {
		if cmd.String("root") == "" { // filepath.Abs would take the working directory
			return errors.New("option --root is empty; name a directory, or leave it out")
		}
		root, err := hostpaths.Absolute(cmd.String("root"))
		if err != nil {
			return err
		}
		if root == "/" {
			// A path with ".." can lead here, too.
			return errors.New("Option --root argument should not be set to /") //nolint:staticcheck // in runc's words
		}
		return cmd.Set("root", root)
	}
	root, ofUser := DefaultRoot()
	if !ofUser || ofLauncher(cmd) {
		return nil
	}
	// Files in XDG_RUNTIME_DIR without the sticky bit may be cleaned away (XDG Base
	// Directory Specification 0.8).
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("$XDG_RUNTIME_DIR must be writable: %w", err)
	}
	if err := os.Chmod(root, 0o700|os.ModeSticky); err != nil {
		return fmt.Errorf("$XDG_RUNTIME_DIR must belong to the user: %w", err)
	}
	return nil
}

// StateRoot is the absolute directory of container state.
func StateRoot(cmd *cli.Command) string { return cmd.String("root") }

// OnContainer is an action on the container that the first argument names. most is the largest
// number of arguments.
func OnContainer(most int, do func(context.Context, *cli.Command, *container.Container) error) cli.ActionFunc {
	return WithArgs(1, most, func(ctx context.Context, cmd *cli.Command) error {
		c, err := LoadContainer(cmd)
		if err != nil {
			return err
		}
		return do(ctx, cmd, c)
	})
}

// LoadContainer opens the container that the command's first argument names.
func LoadContainer(cmd *cli.Command) (*container.Container, error) {
	id := cmd.Args().First()
	if id == "" {
		return nil, ErrEmptyID
	}
	return container.Load(StateRoot(cmd), id)
}
