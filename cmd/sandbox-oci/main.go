// Command sandbox-oci has the OCI commands that engines call, for containers only. It starts in half the
// time of the whole program, which has these commands, too: it has no package for images, networks or
// sandboxes. A start of a container executes it twice, the second time as "init" of libcontainer.
//
// make build puts both programs into one file, bin/sandbox-runtime. Its entry (cmd/sandbox-entry) chooses one by
// the arguments. Where this program meets a sandbox, or arguments that it does not know, it executes the
// whole program in its place. So a wrong choice of the entry costs only time.
package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

func main() {
	commandline.Main(func(out *commandline.Reporter) error {
		return rootCommand(out).Run(context.Background(), os.Args)
	})
}

// A maker makes the command with a name.
type maker struct {
	name string
	make func() *cli.Command
}

func makers() []maker {
	return []maker{
		{"create", oci.Create},
		{"start", oci.Start},
		{"run", oci.Run},
		{"state", func() *cli.Command { return oci.State(nil) }},
		{"kill", oci.Kill},
		{"delete", func() *cli.Command { return oci.Delete(nil) }},
		{"exec", func() *cli.Command { return oci.Exec(nil, nil) }},
		{"events", oci.Events},
		{"features", oci.Features},
		{"spec", oci.Spec},
		{"checkpoint", oci.Checkpoint},
		{"restore", oci.Restore},
	}
}

// commands makes those that the arguments name. A command that is not made takes no time.
func commands(args []string) (made []*cli.Command) {
	for _, m := range makers() {
		if slices.Contains(args, m.name) {
			made = append(made, m.make())
		}
	}
	return made
}

func rootCommand(out *commandline.Reporter) *cli.Command {
	root := &cli.Command{
		Name:        commandline.Program,
		Flags:       commandline.GlobalFlags(),
		HideVersion: true, // the flag is ours
		HideHelp:    true, // --help is an unknown flag, for the whole program
		Before: func(ctx context.Context, cmd *cli.Command) (context.Context, error) {
			name, version := cmd.Args().First(), cmd.Bool("version")
			if version != (name == "") || name != "" && cmd.Command(name) == nil {
				return ctx, commandline.ExecuteWhole()
			}
			return commandline.Prepare(ctx, cmd, out)
		},
		Action:                    func(_ context.Context, cmd *cli.Command) error { return oci.PrintVersion(cmd.Writer) },
		Commands:                  commands(os.Args[1:]),
		OnUsageError:              wrongUsage,
		ExitErrHandler:            func(context.Context, *cli.Command, error) {}, // main decides
		DisableSliceFlagSeparator: true,                                          // a comma in --env is the user's
	}
	words := oci.Words{Missing: missing, IsSandbox: func(*cli.Command) bool { return false }} // canMeanSandbox has asked
	for _, c := range root.Commands {
		c.Category = commandline.CategoryOCI
		c.DisableSliceFlagSeparator = true
		c.HideHelp = true
		c.OnUsageError = wrongUsage
		c.Action = words.Errors(onContainer(c.Action))
	}
	return root
}

// wrongUsage leaves a mistake to the whole program, which knows all flags to suggest, and the help.
func wrongUsage(context.Context, *cli.Command, error, bool) error { return commandline.ExecuteWhole() }

// onContainer is an action that leaves sandboxes to the whole program.
func onContainer(do cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if canMeanSandbox(cmd) {
			return commandline.ExecuteWhole()
		}
		return do(ctx, cmd)
	}
}

// canMeanSandbox says that the first argument can name a sandbox. The sandboxes of an ordinary user
// belong to a launcher that listens. A caller with runc's flags for logs means no sandbox of a launcher.
func canMeanSandbox(cmd *cli.Command) bool {
	ofLauncher := os.Geteuid() != 0 && !cmd.Root().IsSet("root") && !oci.SpeaksAsRunc(cmd)
	return cmd.IsSet("socket") || ofLauncher || record.Has(commandline.StateRoot(cmd), cmd.Args().First())
}

func missing(_ context.Context, cmd *cli.Command, err error) error {
	if errors.Is(err, container.ErrNotExist) {
		return oci.Missing(cmd)
	}
	return nil
}
