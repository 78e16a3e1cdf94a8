package sandboxes

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Inspect makes the command inspect.
func Inspect() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "describe a sandbox and its commands in JSON",
		ArgsUsage: "NAME",
		Description: `Prints one JSON object: the state of the sandbox, its configuration with all defaults,
the limits that the host enforces, and in "execs" the commands of "ps --execs".

    sandbox-runtime inspect box
    sandbox-runtime inspect box | jq .config.limits`,
		Action: commandline.WithHint(1, 1, "say the name of one sandbox, as in: inspect box", inspect),
	}
}

// inspectReport is the answer of inspect.
type inspectReport struct {
	sandbox.Info
	Execs []sandbox.ExecInfo `json:"execs"`
}

func inspect(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		info, err := box.Info(ctx)
		if err != nil {
			return err
		}
		report := inspectReport{Info: info, Execs: []sandbox.ExecInfo{}} // in JSON no null
		execs, err := box.Execs(ctx)
		if err != nil && !errors.Is(err, sandbox.ErrNotRunning) { // nothing runs in a stopped one
			return err
		}
		report.Execs = append(report.Execs, execs...)
		out := json.NewEncoder(cmd.Root().Writer)
		out.SetIndent("", "  ")
		return out.Encode(report)
	})
}
