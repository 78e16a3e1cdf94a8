package oci

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"
)

// OnSandbox runs a command on the sandbox that the first argument names. done is false, and nothing
// has been done, if the argument names no sandbox. A nil OnSandbox knows no sandboxes.
type OnSandbox func(ctx context.Context, cmd *cli.Command) (done bool, err error)

func (f OnSandbox) run(ctx context.Context, cmd *cli.Command) (done bool, err error) {
	if f == nil {
		return false, nil
	}
	return f(ctx, cmd)
}

// OnlyForSandboxes is the error of a flag for sandboxes that was given with an OCI container.
func OnlyForSandboxes(cmd *cli.Command, flag string) error {
	return fmt.Errorf("--%s is for sandboxes, and %q is an OCI container", flag, cmd.Args().First())
}
