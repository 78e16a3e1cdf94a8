package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/moby/sys/userns"
	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

func checkpointCommand() *cli.Command {
	return &cli.Command{
		Name:      "checkpoint",
		Category:  categoryOCI,
		Usage:     "write a running container to disk and stop it",
		ArgsUsage: "<container-id>",
		Description: `Has criu(8), which must be on PATH, write the container's processes with their
memory and files to --image-path, and deletes the container. "restore" lets it go
on from there, here or on another host with the same bundle.

    # ` + programName + ` checkpoint --image-path /var/tmp/web web
    # ` + programName + ` restore --image-path /var/tmp/web --bundle /bundles/web --detach web

A short pause on the way to another host: first --pre-dump, which copies memory
while the container runs, then a checkpoint that names it as --parent-path.

If criu fails, its dump.log in --work-path (default: --image-path) says why.`,
		Flags: slices.Concat(criuFlags(), []cli.Flag{
			&cli.StringFlag{Name: "parent-path", Usage: "`DIR` of an earlier --pre-dump, relative to --image-path"},
			&cli.BoolFlag{Name: "leave-running", Usage: "leave the container running"},
			&cli.BoolFlag{Name: "tcp-skip-in-flight", Usage: "leave out TCP connections that are being made"},
			&cli.BoolFlag{Name: "link-remap", Usage: "link unlinked files back where possible"},
			&cli.IntFlag{Name: "status-fd", Value: -1, Usage: `descriptor to write \0 to once --lazy-pages is ready`},
			&cli.StringFlag{Name: "page-server", Usage: "send memory to the criu page-server at `ADDRESS:PORT`"},
			&cli.BoolFlag{Name: "pre-dump", Usage: "write memory only and leave the container running"},
		}),
		Action: onContainer(1, checkpointContainer),
	}
}

// criuFlags are those that checkpoint and restore share.
func criuFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "image-path", Usage: "`DIR` of criu's images (default: checkpoint in the current directory)"},
		&cli.StringFlag{Name: "work-path", Usage: "`DIR` of criu's log (default: that of the images)"},
		&cli.BoolFlag{Name: "tcp-established", Usage: "keep open TCP connections"},
		&cli.BoolFlag{Name: "ext-unix-sk", Usage: "allow unix sockets that are connected outside"},
		&cli.BoolFlag{Name: "shell-job", Usage: "allow a session or terminal of the caller"},
		&cli.BoolFlag{Name: "file-locks", Usage: "keep file locks; nobody outside may hold them"},
		&cli.BoolFlag{Name: "lazy-pages", Usage: "bring memory over while the container runs (userfaultfd)"},
		&cli.BoolFlag{Name: "auto-dedup", Usage: "drop memory from older images that newer ones hold"},
		&cli.StringFlag{Name: "manage-cgroups-mode", Usage: "soft, full, strict or ignore (default: soft)"},
		&cli.StringSliceFlag{Name: "empty-ns", Usage: "make the namespace `NAME` empty: network, which always is"},
	}
}

func checkpointContainer(ctx context.Context, cmd *cli.Command, c *container.Container) error {
	log := logFrom(ctx)
	warnRootless(log)
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status == container.Created || status == container.Stopped {
		return fmt.Errorf("Container cannot be checkpointed in %s state", status) //nolint:staticcheck // in runc's words
	}
	o, err := criuOptions(cmd)
	if err != nil {
		return err
	}
	if err := checkpointTo(&o, cmd); err != nil {
		return err
	}
	if err := makeImageDir(&o, cmd.String("parent-path")); err != nil {
		return err
	}
	if err := c.Checkpoint(o); err != nil {
		return err
	}
	if o.LeaveRunning || o.PreDump {
		return nil
	}
	if err := c.Destroy(); err != nil {
		log.Warn(err.Error()) // the checkpoint is there
	}
	return nil
}

// warnRootless warns of a combination that nobody has tried.
func warnRootless(log *slog.Logger) {
	if os.Geteuid() != 0 || userns.RunningInUserNS() {
		log.Warn("checkpoint and restore are untested with rootless containers")
	}
}

// criuOptions are those of criuFlags.
func criuOptions(cmd *cli.Command) (container.CRIUOptions, error) {
	o := container.CRIUOptions{
		ImagesDirectory:         cmd.String("image-path"),
		WorkDirectory:           cmd.String("work-path"),
		TcpEstablished:          cmd.Bool("tcp-established"),
		ExternalUnixConnections: cmd.Bool("ext-unix-sk"),
		ShellJob:                cmd.Bool("shell-job"),
		FileLocks:               cmd.Bool("file-locks"),
		LazyPages:               cmd.Bool("lazy-pages"),
		AutoDedup:               cmd.Bool("auto-dedup"),
		ManageCgroupsMode:       cmd.String("manage-cgroups-mode"),
		StatusFd:                -1,
		// Its devices are made by others, from outside.
		EmptyNs: unix.CLONE_NEWNET,
	}
	for _, ns := range cmd.StringSlice("empty-ns") {
		if ns != "network" {
			return o, fmt.Errorf("namespace %q is not supported", ns)
		}
	}
	if o.ImagesDirectory == "" {
		dir, err := os.Getwd()
		if err != nil {
			return o, err
		}
		o.ImagesDirectory = filepath.Join(dir, "checkpoint")
	}
	return o, nil
}

// checkpointTo takes over the flags that only checkpoint has.
func checkpointTo(o *container.CRIUOptions, cmd *cli.Command) error {
	o.LeaveRunning = cmd.Bool("leave-running")
	o.PreDump = cmd.Bool("pre-dump")
	o.TcpSkipInFlight = cmd.Bool("tcp-skip-in-flight")
	o.LinkRemap = cmd.Bool("link-remap")
	o.StatusFd = cmd.Int("status-fd")
	server := cmd.String("page-server")
	if server == "" {
		return nil
	}
	address, port, err := net.SplitHostPort(server)
	if err != nil || address == "" || port == "" {
		return errors.New("Use --page-server ADDRESS:PORT to specify page server") //nolint:staticcheck // in runc's words
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("Invalid port number: %w", err) //nolint:staticcheck // in runc's words
	}
	o.PageServer.Address, o.PageServer.Port = address, int32(n)
	return nil
}

// makeImageDir makes the directory of the images, and finds that of an earlier
// pre-dump, which criu takes as a path from there.
func makeImageDir(o *container.CRIUOptions, parent string) error {
	if err := os.MkdirAll(o.ImagesDirectory, 0o700); err != nil {
		return err
	}
	if parent == "" {
		return nil
	}
	if filepath.IsAbs(parent) {
		return errors.New("--parent-path must be relative")
	}
	path := filepath.Join(o.ImagesDirectory, parent)
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	if err != nil {
		return fmt.Errorf("invalid --parent-path: %w", err)
	}
	o.ParentImage = parent
	return nil
}
