// Package registration has the command register: it puts this program into the configuration
// of an engine, and takes it out again. Package engine edits the files.
package registration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/engine"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// Command returns the command register.
func Command() *cli.Command {
	return &cli.Command{
		Name:      "register",
		Usage:     "register this binary with docker, containerd or podman",
		UsageText: commandline.Program + " register docker|containerd|podman [options]",
		Description: `Prints the lines for the engine's configuration. --write adds them to the file, and
--remove takes them out again. The rest of the file stays as it is: settings and their
order, comments, mode and owner. Lines with + and - show the difference.

    sandbox-runtime register docker                  # look
    sandbox-runtime register docker --write          # do it
    docker run --rm --runtime sandbox busybox true
    sandbox-runtime register docker --remove         # undo it

"register docker --help" and the like tell more of each.`,
		Commands: []*cli.Command{
			with("docker", engine.Docker{}, `An entry below "runtimes" in dockerd's daemon.json, and with --default also
"default-runtime". dockerd reads it on SIGHUP, and containers run on.

    sandbox-runtime register docker --write
    systemctl reload docker
    docker run --rm --runtime sandbox busybox true

A runtime that was removed is forgotten when dockerd starts again; on a reload only if
the file has another runtime.`),
			with("containerd", engine.Containerd{Major: installedContainerd}, `A runtime of containerd's CRI plugin, in a marked block at the end of
config.toml, of version 2, 3 or 4: a pod takes it by a RuntimeClass whose handler
has its name. A new file has version 3 if containerd 2 is installed, else version 2. SystemdCgroup is as the default runtime has it.

    sandbox-runtime register containerd --write
    systemctl restart containerd

ctr and nerdctl need no registration:

    ctr run --runc-binary /usr/local/bin/sandbox-runtime IMAGE NAME`),
			with("podman", &engine.Podman{}, `A file of its own that podman reads after containers.conf. The next command
of podman knows it.

    sandbox-runtime register podman --write
    podman --runtime sandbox run --rm busybox true`),
		},
		Action:       withWhat,
		OnUsageError: commandline.SandboxUsageError,
	}
}

func with(name string, e engine.Engine, description string) *cli.Command {
	return &cli.Command{
		Name:        name,
		Usage:       "in " + e.File(),
		Description: description,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "write", Usage: "put it into the configuration"},
			&cli.BoolFlag{Name: "remove", Usage: "take it out of the configuration"},
			&cli.StringFlag{Name: "config", Value: e.File(), Usage: "`FILE` with the engine's configuration"},
			&cli.StringFlag{Name: "name", Value: "sandbox", Usage: "`NAME` of the runtime in the engine's configuration"},
			&cli.BoolFlag{Name: "default", Usage: "use it for all containers that name no runtime"},
		},
		Action:       func(_ context.Context, cmd *cli.Command) error { return register(cmd, e) },
		OnUsageError: commandline.SandboxUsageError,
	}
}

func withWhat(_ context.Context, cmd *cli.Command) error {
	const which = "docker, containerd or podman, as in: register docker"
	if name := cmd.Args().First(); name != "" {
		return fmt.Errorf("register does not know %q; name %s", name, which)
	}
	return fmt.Errorf("register with which engine? Name %s", which)
}

func register(cmd *cli.Command, e engine.Engine) error {
	if cmd.Args().Present() {
		return fmt.Errorf("%q: %s takes flags only", cmd.Args().First(), cmd.FullName())
	}
	if cmd.Bool("write") && cmd.Bool("remove") {
		return errors.New("--write and --remove do not go together")
	}
	if cmd.Bool("default") && cmd.Bool("remove") {
		return errors.New("--default and --remove do not go together: with the runtime goes that it is the default")
	}
	if err := engine.CheckName(cmd.String("name")); err != nil {
		return err
	}
	path, err := engine.Self()
	if err != nil {
		return err
	}
	file, err := hostpaths.Absolute(cmd.String("config"))
	if err != nil {
		return err
	}
	reg := registration{cmd, e, file, engine.Runtime{Name: cmd.String("name"), Path: path, Default: cmd.Bool("default")}}
	switch {
	case cmd.Bool("remove"):
		return reg.remove()
	case cmd.Bool("write"):
		return reg.write()
	}
	return reg.print()
}

// A registration is one runtime in one engine's file.
type registration struct {
	cmd    *cli.Command
	engine engine.Engine
	file   string
	engine.Runtime
}

// add is the file with the runtime.
func (r registration) add(config []byte) ([]byte, error) {
	if err := r.engine.Elsewhere(r.file, config, r.Runtime); err != nil {
		return nil, err
	}
	after, err := r.engine.Add(config, r.Runtime)
	return after, engine.In(r.file, err)
}

// print shows the piece on stdout and the rest on stderr. It refuses a runtime that
// --write would refuse.
func (r registration) print() error {
	config, err := engine.Read(r.file)
	if err != nil {
		return err
	}
	after, err := r.add(config)
	if err != nil {
		return err
	}
	piece, err := r.engine.Piece(config, r.Runtime)
	if err != nil {
		return engine.In(r.file, err)
	}
	if _, err := fmt.Fprint(r.cmd.Root().Writer, piece); err != nil {
		return err
	}
	if err := engine.Lasting(r.Path); err != nil {
		r.note("warning: %v", err)
	}
	if bytes.Equal(config, after) {
		r.note("%s has it already.", r.file)
	} else {
		r.note("This belongs in %s; --write puts it there.", r.file)
	}
	return nil
}

func (r registration) write() error {
	if err := engine.Lasting(r.Path); err != nil {
		return err
	}
	exposed, err := engine.Exposed(r.Path)
	if err != nil {
		return err
	}
	before, after, err := engine.Edit(r.file, r.add)
	if err != nil {
		return needsRoot(err)
	}
	if exposed != "" {
		r.note("warning: %s can be changed by %s, and root will run it; better install it where only root writes:\n"+
			"    install -m 755 %[1]s /usr/local/bin/%s", r.Path, exposed, commandline.Program)
	}
	return r.report(before, after, fmt.Sprintf("has runtime %q already", r.Name), r.engine.Added(r.file, r.Runtime))
}

func (r registration) remove() error {
	before, after, err := engine.Edit(r.file, func(config []byte) ([]byte, error) {
		after, err := r.engine.Remove(config, r.Runtime)
		return after, engine.In(r.file, err)
	})
	if err != nil {
		return needsRoot(err)
	}
	return r.report(before, after, fmt.Sprintf("has no runtime %q", r.Name), r.engine.Removed(r.Name))
}

// report shows the changed lines and the next step, or why nothing was changed.
func (r registration) report(before, after []byte, unchanged, next string) (err error) {
	out := r.cmd.Root().Writer
	switch {
	case bytes.Equal(before, after):
		_, err = fmt.Fprintf(out, "%s %s; nothing was changed.\n", r.file, unchanged)
	case len(after) == 0:
		_, err = fmt.Fprintf(out, "%s (nothing was left in it)\n%s\n%s\n", r.file, engine.Diff(before, after), next)
	default:
		_, err = fmt.Fprintf(out, "%s\n%s\n%s\n", r.file, engine.Diff(before, after), next)
	}
	return err
}

// needsRoot names the way out to a user without the rights.
func needsRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("%w: run it as root, or name a file of your own with --config", err)
	}
	return err
}

// note prints a line for the person, beside the result on stdout.
func (r registration) note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
