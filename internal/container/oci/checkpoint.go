package oci

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

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// Checkpoint makes the command checkpoint.
func Checkpoint() *cli.Command {
	o := newCRIUOptions()
	return &cli.Command{
		Name:      "checkpoint",
		Usage:     "write a running container to disk and stop it",
		ArgsUsage: "<container-id>",
		Description: `Has criu(8), which must be on PATH, write the container's processes with their
memory and files to --image-path, and deletes the container. "restore" lets it go
on from there, here or on another host with the same bundle.

    # ` + commandline.Program + ` checkpoint --image-path /var/tmp/web web
    # ` + commandline.Program + ` restore --image-path /var/tmp/web --bundle /bundles/web --detach web

A short pause on the way to another host: first --pre-dump, which copies memory
while the container runs, then a checkpoint that names it as --parent-path.

If criu fails, its dump.log in --work-path (default: --image-path) says why.`,
		Flags: slices.Concat(criuFlags(o), []cli.Flag{
			&cli.StringFlag{Name: "parent-path", Usage: "`DIR` of an earlier --pre-dump, relative to --image-path"},
			&cli.BoolFlag{Name: "leave-running", Destination: &o.LeaveRunning, Usage: "leave the container running"},
			&cli.BoolFlag{Name: "tcp-skip-in-flight", Destination: &o.TcpSkipInFlight, Usage: "leave out TCP connections that are being made"},
			&cli.BoolFlag{Name: "link-remap", Destination: &o.LinkRemap, Usage: "link unlinked files back where possible"},
			&cli.IntFlag{Name: "status-fd", Destination: &o.StatusFd, Value: o.StatusFd, Usage: `descriptor to write \0 to once --lazy-pages is ready`},
			&cli.StringFlag{Name: "page-server", Usage: "send memory to the criu page-server at `ADDRESS:PORT`"},
			&cli.BoolFlag{Name: "pre-dump", Destination: &o.PreDump, Usage: "write memory only and leave the container running"},
		}),
		Action: commandline.OnContainer(1, func(ctx context.Context, cmd *cli.Command, c *container.Container) error {
			return checkpointContainer(ctx, cmd, c, o)
		}),
	}
}

// newCRIUOptions are the options without any flag.
func newCRIUOptions() *container.CRIUOptions {
	// Others make the devices of the network namespace, from outside.
	return &container.CRIUOptions{StatusFd: -1, EmptyNs: unix.CLONE_NEWNET}
}

// criuFlags are the flags that checkpoint and restore share. They set o.
func criuFlags(o *container.CRIUOptions) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "image-path", Destination: &o.ImagesDirectory, Usage: "`DIR` of criu's images (default: checkpoint in the current directory)"},
		&cli.StringFlag{Name: "work-path", Destination: &o.WorkDirectory, Usage: "`DIR` of criu's log (default: that of the images)"},
		&cli.BoolFlag{Name: "tcp-established", Destination: &o.TcpEstablished, Usage: "keep open TCP connections"},
		&cli.BoolFlag{Name: "ext-unix-sk", Destination: &o.ExternalUnixConnections, Usage: "allow unix sockets that are connected outside"},
		&cli.BoolFlag{Name: "shell-job", Destination: &o.ShellJob, Usage: "allow a session or terminal of the caller"},
		&cli.BoolFlag{Name: "file-locks", Destination: &o.FileLocks, Usage: "keep file locks; nobody outside may hold them"},
		&cli.BoolFlag{Name: "lazy-pages", Destination: &o.LazyPages, Usage: "bring memory over while the container runs (userfaultfd)"},
		&cli.BoolFlag{Name: "auto-dedup", Destination: &o.AutoDedup, Usage: "drop memory from older images that newer ones hold"},
		&cli.StringFlag{Name: "manage-cgroups-mode", Destination: &o.ManageCgroupsMode, Usage: "soft, full, strict or ignore (default: soft)"},
		&cli.StringSliceFlag{Name: "empty-ns", Usage: "make the namespace `NAME` empty: network, which always is"},
	}
}

func checkpointContainer(ctx context.Context, cmd *cli.Command, c *container.Container, o *container.CRIUOptions) error {
	log := commandline.LogFrom(ctx)
	warnRootless(log)
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status == container.Created || status == container.Stopped {
		return fmt.Errorf("Container cannot be checkpointed in %s state", status) //nolint:staticcheck // in runc's words
	}
	if err := checkCRIUFlags(cmd, o); err != nil {
		return err
	}
	if err := setPageServer(o, cmd.String("page-server")); err != nil {
		return err
	}
	if err := makeImageDir(o, cmd.String("parent-path")); err != nil {
		return err
	}
	if err := c.Checkpoint(*o); err != nil {
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

// checkCRIUFlags checks the flags of criuFlags, and fills in the directory of the images.
func checkCRIUFlags(cmd *cli.Command, o *container.CRIUOptions) error {
	for _, ns := range cmd.StringSlice("empty-ns") {
		if ns != "network" {
			return fmt.Errorf("namespace %q is not supported", ns)
		}
	}
	if o.ImagesDirectory == "" {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		o.ImagesDirectory = filepath.Join(dir, "checkpoint")
	}
	return nil
}

func setPageServer(o *container.CRIUOptions, server string) error {
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
