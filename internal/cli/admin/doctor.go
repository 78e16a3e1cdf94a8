package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/doctor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/networks"
)

// Doctor makes the command doctor.
func Doctor() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check this host for missing features, and test a sandbox's isolation",
		Description: `Tries each kernel feature that a sandbox needs, with the rights of the caller, and
leaves nothing behind. Each line has a status. "missing": no sandbox starts, or a
sandbox is not fully isolated. "warn": a part of the functions is lost. docs/kernel.md
has the table of all features.

Then doctor starts sandboxes. One of them tests its own isolation from inside: "ok", or
"FAILED" with the reason. "not built" is a planned test.

A launcher that listens makes the sandboxes of users other than root. Then doctor has this
launcher, or the one of --socket, make a sandbox and run a program in it. The last line is
about this sandbox. The other lines are about the rights of the caller.

All sandboxes share some quotas of the kernel. doctor compares these quotas with the
most that the launcher's --rules allow; without rules, with 16 sandboxes of the default
limits. A quota that is too small does not change the exit status.

If the host's firewall refuses the packets of --network full, doctor names the commands
that let the packets pass. --repair runs these commands.

    sandbox-runtime doctor
    sandbox-runtime doctor --json | jq '.features[] | select(.status != "ok")'
    sandbox-runtime doctor --rules /etc/sandbox-runtime/rules.json
    sandbox-runtime doctor --json | jq '.proofs[] | {name, status}'

The exit status is 0 if "do" runs programs fully isolated here, 1 if not.`,
		Flags: []cli.Flag{
			commandline.JSONFlag("print one JSON object and nothing else"),
			&cli.BoolFlag{Name: "repair", Usage: "run the commands that the host's firewall needs for --network full, and repair a flushed firewall"},
			&cli.StringFlag{Name: "rules", Usage: "`FILE` of a launcher's rules, to compare with the kernel's quotas"},
		},
		Action: commandline.WithHint(0, 0, "doctor takes no arguments", runDoctor),
	}
}

func runDoctor(ctx context.Context, cmd *cli.Command) error {
	rules := cmd.String("rules")
	report, err := doctor.Examine(rules)
	if err != nil {
		return err
	}
	state, err := record.ResolveState(commandline.StateRoot(cmd))
	if err != nil {
		return err
	}
	report.LookAtNetwork(ctx, networks.RouterOf(state), cmd.Bool("repair"))
	socket, err := connection.Socket(cmd)
	if err != nil {
		return err
	}
	if socket != "" {
		report.TryLauncher(ctx, socket, func(ctx context.Context) (doctor.Maker, error) { return connection.Open(ctx, cmd) })
	} else {
		report.Prove(ctx, func(ctx context.Context) (doctor.Sandboxes, error) {
			return connection.OpenInside(ctx, cmd)
		})
	}
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
		return commandline.ExitWith(1)
	}
	return nil
}

// DoctorProbe makes the command that doctor runs inside a sandbox. The command only tells its
// findings; doctor judges, outside.
func DoctorProbe() *cli.Command {
	return &cli.Command{
		Name:   doctor.ProbeCommand,
		Hidden: true,
		Usage:  "look at the walls of a sandbox, from inside",
		Action: func(_ context.Context, cmd *cli.Command) error {
			return doctor.Probe(cmd.Args().First(), cmd.Root().Writer)
		},
	}
}
