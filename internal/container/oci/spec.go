package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
)

// Spec makes the command spec.
func Spec() *cli.Command {
	return &cli.Command{
		Name:  "spec",
		Usage: "write a " + frontend.ConfigName + " to start from",
		Description: `The file runs "sh" on a terminal, in the root filesystem "rootfs" beside it.
An existing file is left alone.

    # mkdir -p web/rootfs && docker export $(docker create busybox) | tar -xC web/rootfs
    # ` + commandline.Program + ` spec --bundle web
    # ` + commandline.Program + ` run --bundle web web-1

With --rootless the container has a user namespace that maps the caller to root in
it, and no limits that would need rights to cgroups.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "bundle", Aliases: []string{"b"}, Usage: "`DIR` to write to (default: the current directory)"},
			&cli.BoolFlag{Name: "rootless", Usage: "for a user without privileges"},
		},
		Action: commandline.WithArgs(0, 0, writeSpec),
	}
}

func writeSpec(_ context.Context, cmd *cli.Command) error {
	data, err := json.MarshalIndent(container.ExampleSpec(cmd.Bool("rootless")), "", "\t")
	if err != nil {
		return err
	}
	path := filepath.Join(cmd.String("bundle"), frontend.ConfigName)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("File %s exists. Remove it first", path) //nolint:staticcheck // in runc's words
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
