package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/doctor"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:     "doctor",
		Usage:    "say what this host offers and lacks, and prove a sandbox's walls",
		Category: categorySandbox,
		Description: `Tries everything a sandbox is made of, with the rights of the caller, and
leaves nothing behind. A line says "ok"; "missing" where sandboxes do not start,
or are not fully isolated, for the want of it; "warn" where only a part of what
they can do is lost. The table of all that is looked for is in docs/kernel.md.

Then sandboxes are started, and one looks at its own walls from inside: a line
says "ok", or "FAILED" and what it could do. What is planned and not there yet
says "not built".

Quotas of the kernel that all sandboxes share are compared with the most that
the launcher's --rules allow; without rules, with 16 sandboxes of the default limits.
A quota that is too small does not change the exit status.

    sandbox-runtime doctor
    sandbox-runtime doctor --json | jq '.features[] | select(.status != "ok")'
    sandbox-runtime doctor --rules /etc/sandbox-runtime/rules.json
    sandbox-runtime doctor --json | jq '.proofs[] | {name, status}'

The exit status is 0 if "do" runs programs fully isolated here, 1 if not.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object and nothing else"},
			&cli.StringFlag{Name: "rules", Usage: "`FILE` of a launcher's rules, to compare with the kernel's quotas"},
		},
		Action: runDoctor,
	}
}

func runDoctor(ctx context.Context, cmd *cli.Command) error {
	if cmd.Args().Present() {
		return errors.New("doctor takes no arguments")
	}
	rules := cmd.String("rules")
	report, err := doctor.Examine(rules)
	if err != nil {
		return err
	}
	report.Prove(ctx, func(ctx context.Context) (doctor.Sandboxes, error) { return connectTo(ctx, launcherDirs(cmd)) })
	out := cmd.Root().Writer
	if cmd.Bool("json") {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "    ")
		err = enc.Encode(report)
	} else {
		err = report.Write(out)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if !report.Ready {
		return exitWith(1)
	}
	return nil
}

// doctorProbeCommand is run by doctor inside a sandbox. The command only tells its
// findings; doctor judges, outside.
func doctorProbeCommand() *cli.Command {
	return &cli.Command{
		Name:   doctor.ProbeCommand,
		Hidden: true,
		Usage:  "look at the walls of a sandbox, from inside",
		Action: func(_ context.Context, cmd *cli.Command) error {
			return doctor.Probe(cmd.Args().First(), cmd.Root().Writer)
		},
	}
}
