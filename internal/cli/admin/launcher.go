package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/server"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Launcher makes the command launcher.
func Launcher() *cli.Command {
	return &cli.Command{
		Name:  commandline.LauncherName,
		Usage: "make sandboxes for other programs, on a socket",
		Description: `Programs that embed sandboxes get them from a launcher, and need no privilege
themselves. Root and the launcher's own user may ask for anything. Other users may ask
for sandboxes that the rules allow; docs/launcher.md describes the rules.

    # ` + commandline.Program + ` launcher
    # ` + commandline.Program + ` launcher --rules /etc/sandbox-runtime/rules.json --group sandboxes

--socket names the socket, in a directory that exists. Without --socket the launcher
listens on ` + launcherSocket + ` in --root, for root. With --rules it listens on
` + sandbox.SharedSocket + `, where the programs and the commands of other users look
for it.

Sandboxes stay up when the launcher ends, and the next launcher takes them over. After
SIGTERM, commands that are not detached have the time of --grace to end. Then the
launcher ends them.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "mode", Usage: "`MODE` of the socket, which decides about the users that may connect (default: 0600, with --group 0660)"},
			&cli.StringFlag{Name: "group", Usage: "`GROUP` of the socket, a name or a number"},
			&cli.StringFlag{Name: "rules", Usage: "`FILE` with the rules for users other than root"},
			&cli.StringFlag{Name: "total-memory", Usage: "`SIZE` of memory of all sandboxes of the host together (default: no limit)"},
			&cli.StringFlag{Name: "total-cpus", Usage: "`NUMBER` of cores' worth of processor time of all sandboxes of the host together (default: no limit)"},
			&cli.StringFlag{Name: "pool", Usage: "keep blank sandboxes ready, within `BOUNDS` such as min=5,max=50: docs/launcher.md"},
			&cli.IntFlag{Name: "fd", Usage: "serve the one connection on descriptor `N`, and end with it"},
			&cli.DurationFlag{Name: "grace", Value: 10 * time.Second, Usage: "time for commands to end after SIGTERM"},
		},
		Action: commandline.WithArgs(0, 0, runLauncher),
	}
}

const launcherSocket = "launcher.sock"

func runLauncher(ctx context.Context, cmd *cli.Command) error {
	if grace := cmd.Duration("grace"); grace < 0 {
		return fmt.Errorf("option --grace %s: it is negative; 0s ends commands at once", grace)
	}
	if cmd.IsSet("pool") && os.Geteuid() != 0 {
		return errors.New("option --pool: only a launcher of root can make sandboxes, and so blank ones; run this as root, or leave --pool out")
	}
	log := commandline.LogFrom(ctx)
	server.Tune()
	if err := runSealed(commandline.StateRoot(cmd)); err != nil {
		log.Warn("starts are slower than they could be: this program is not run from a sealed copy", "error", err)
	}
	var rules server.Rules
	if path := cmd.String("rules"); path != "" {
		var err error
		if rules, err = server.ReadRules(path); err != nil {
			return err
		}
	}
	l, err := connection.NewLauncher(cmd)
	if err != nil {
		return err
	}
	if err := l.CheckRoot(); err != nil {
		return err
	}
	if err := limitTotals(cmd, l); err != nil {
		return err
	}
	defer l.Close()
	var pool *string
	if cmd.IsSet("pool") {
		pool = new(cmd.String("pool"))
	}
	if err := server.Prepare(l, pool, log); err != nil {
		return err
	}
	d := &server.Daemon{Server: server.New(server.Of(l), rules, log), Log: log, Grace: cmd.Duration("grace"), Ending: l.StopPool}
	if cmd.IsSet("fd") {
		conn, err := server.InheritedConn(cmd.Int("fd"))
		if err != nil {
			return fmt.Errorf("option --fd %d: %w", cmd.Int("fd"), err)
		}
		return d.RunConn(ctx, conn)
	}
	listeners, err := launcherListeners(cmd)
	if err != nil {
		return err
	}
	return d.Run(ctx, listeners)
}

// limitTotals bounds all sandboxes together, as far as the flags say so.
func limitTotals(cmd *cli.Command, l *launcher.Launcher) error {
	var totals spec.Limits
	for _, l := range spec.LimitFields() {
		name := "total-" + l.Name
		if !cmd.IsSet(name) {
			continue
		}
		if err := l.Parse(&totals, cmd.String(name)); err != nil {
			return fmt.Errorf("option --%s: %w", name, err)
		}
	}
	return l.LimitTotals(totals.Memory, totals.CPUs)
}

// launcherListeners are the sockets that systemd has handed over, or the one
// that the flags name.
func launcherListeners(cmd *cli.Command) (_ []server.Socket, err error) {
	var all []server.Socket
	defer func() {
		if err != nil {
			err = errors.Join(err, server.CloseListeners(all))
		}
	}()
	for _, f := range frontend.ListenFDs() {
		l, err := server.InheritedListener(f)
		if err != nil {
			return nil, fmt.Errorf("socket %s that was handed over: %w", f.Name(), err)
		}
		all = append(all, l)
	}
	if len(all) > 0 {
		return all, nil
	}
	path, err := launcherPath(cmd)
	if err != nil {
		return nil, err
	}
	mode, group, err := server.Access(cmd.String("mode"), cmd.String("group"))
	if err != nil {
		return nil, err
	}
	l, err := server.Listen(path, mode, group)
	if err != nil {
		return nil, err
	}
	return []server.Socket{l}, nil
}

// launcherPath is the socket to listen on. A launcher with rules for other users does not listen in
// the default state root, which these users cannot enter.
func launcherPath(cmd *cli.Command) (string, error) {
	if cmd.IsSet("socket") {
		if cmd.String("socket") == "" {
			return "", errors.New("option --socket is empty; name a path, or leave it out")
		}
		return cmd.String("socket"), nil
	}
	if cmd.IsSet("rules") {
		if cmd.IsSet("root") {
			return "", errors.New("--rules and --root without --socket: other users cannot enter --root; name a --socket that these users can reach")
		}
		return sandbox.SharedSocket, nil
	}
	return filepath.Join(commandline.StateRoot(cmd), launcherSocket), os.MkdirAll(commandline.StateRoot(cmd), 0o700)
}
