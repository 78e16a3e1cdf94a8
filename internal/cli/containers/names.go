package containers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Words are the errors of the OCI commands in a program that knows sandboxes, too.
func Words() oci.Words { return oci.Words{Missing: missing, IsSandbox: namesSandbox} }

// namesSandbox says that the first argument names a sandbox, and no OCI container.
func namesSandbox(cmd *cli.Command) bool {
	return record.Has(commandline.StateRoot(cmd), cmd.Args().First()) || namesListed(cmd)
}

// namesListed says that the first argument is for a launcher that listens. With --socket each name
// is. The OCI containers of an ordinary user come before the sandboxes of the default launcher.
func namesListed(cmd *cli.Command) bool {
	if cmd.IsSet("socket") {
		return true
	}
	if !defaultListens(cmd) {
		return false
	}
	_, err := commandline.LoadContainer(cmd)
	return errors.Is(err, container.ErrNotExist) || connection.CheckAccess(cmd) != nil
}

// defaultListens says that an ordinary user has no flags of an OCI caller, and that there is a socket
// of the default launcher.
func defaultListens(cmd *cli.Command) bool {
	socket, err := connection.Socket(cmd)
	if err != nil || socket == "" || oci.SpeaksAsRunc(cmd) {
		return false
	}
	_, err = os.Lstat(socket)
	return err == nil
}

// hasOnlyListed says that an ordinary user has no state root for containers of the user's own.
func hasOnlyListed(cmd *cli.Command) bool {
	socket, _ := connection.Socket(cmd)
	_, ofUser := commandline.DefaultRoot()
	return socket != "" && !ofUser && !oci.SpeaksAsRunc(cmd)
}

// isMissing says that the error of an OCI command is about a name that nothing has. An ordinary
// user cannot enter the default state root. The error of such a caller counts, too.
func isMissing(cmd *cli.Command, err error) bool {
	if errors.Is(err, container.ErrNotExist) {
		return true
	}
	socket, _ := connection.Socket(cmd)
	return socket != "" && errors.Is(err, fs.ErrPermission) && connection.CheckAccess(cmd) != nil
}

// missing words an error that isMissing. It returns nil for other errors.
func missing(ctx context.Context, cmd *cli.Command, failure error) error {
	if !isMissing(cmd, failure) {
		return nil
	}
	name := cmd.Args().First()
	socket, err := connection.Socket(cmd)
	if err != nil || socket == "" {
		return oci.Missing(cmd)
	}
	if reason := connection.WhyNoSocket(cmd.Name); reason != "" {
		return fmt.Errorf("%s does not exist: no container of yours has this name (%s: %s)", name, cmd.Name, reason)
	}
	m, err := connection.Open(ctx, cmd)
	if err != nil {
		return fmt.Errorf("no container of yours has the name %q, and %w", name, err)
	}
	return errors.Join(&sandbox.Error{ID: name, Err: sandbox.ErrNotFound}, m.Close())
}

// listedStates are the sandboxes of the caller at a launcher that listens.
func listedStates(ctx context.Context, cmd *cli.Command) (states []container.State, err error) {
	err = connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		infos, err := m.List(ctx)
		for _, info := range infos {
			states = append(states, listedState(info))
		}
		return err
	})
	return states, err
}

// listedState is the state of a sandbox as the OCI commands print it. A launcher tells nothing of
// the bundle.
func listedState(i sandbox.Info) container.State {
	owner := "#" + strconv.FormatUint(uint64(i.Owner), 10)
	if u, err := user.LookupId(owner[1:]); err == nil {
		owner = u.Username
	}
	return container.State{
		Version: specs.Version, ID: i.ID, Pid: i.Pid, Status: container.Status(i.State), Created: i.Created, Owner: owner,
	}
}
