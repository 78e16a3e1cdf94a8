package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/completion"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/doctor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/registration"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
)

// A maker makes the command with a name.
type maker struct {
	name, category string
	make           func() *cli.Command
}

// makers are those of all commands, in the order of the help text.
func makers() []maker {
	const sandboxes, ociCommands = commandline.CategorySandbox, commandline.CategoryOCI
	return []maker{
		{"do", sandboxes, doCommand},
		{"up", sandboxes, upCommand},
		{"down", sandboxes, downCommand},
		{"cp", sandboxes, cpCommand},
		{"changes", sandboxes, changesCommand},
		{"diff", sandboxes, diffCommand},
		{"apply", sandboxes, applyCommand},
		{"save", sandboxes, saveCommand},
		{"attach", sandboxes, attachCommand},
		{"logs", sandboxes, logsCommand},
		{"inspect", sandboxes, inspectCommand},
		{"stats", sandboxes, statsCommand},
		{"undo", sandboxes, undoCommand},
		{"snapshot", sandboxes, snapshotCommand},
		{"discard", sandboxes, discardCommand},
		{"network", sandboxes, networkCommand},
		{"image", sandboxes, imageCommand},
		{"launcher", sandboxes, launcherCommand},
		{"prune", sandboxes, pruneCommand},
		{"doctor", sandboxes, doctorCommand},
		{"register", sandboxes, registration.Command},
		{completionName, sandboxes, func() *cli.Command { return completion.Command(namesFor) }},

		{"create", ociCommands, oci.Create},
		{"start", ociCommands, oci.Start},
		{"run", ociCommands, oci.Run},
		{"state", ociCommands, stateCommand},
		{"kill", ociCommands, oci.Kill},
		{"delete", ociCommands, deleteCommand},
		{"exec", ociCommands, execCommand},
		{"list", ociCommands, listCommand},
		{"features", ociCommands, oci.Features},
		{"spec", ociCommands, oci.Spec},
		{"pause", ociCommands, pauseCommand},
		{"resume", ociCommands, resumeCommand},
		{"ps", ociCommands, psCommand},
		{"events", ociCommands, oci.Events},
		{"update", ociCommands, updateCommand},
		{"checkpoint", ociCommands, oci.Checkpoint},
		{"restore", ociCommands, oci.Restore},

		{doctor.ProbeCommand, "", doctorProbeCommand},
	}
}

// completionName is the name of the command that needs all others.
const completionName = "completion"

// allCommands makes all commands. That takes a third of the time of the program's start.
func allCommands() []*cli.Command { return makeCommands(func(string) bool { return true }) }

// commandsFor makes the commands that the arguments of the program can mean: those whose name is an
// argument. These can be several, since the value of a flag can be such a name. If no command comes
// behind the global flags, or a flag asks for help, commandsFor makes all commands.
func commandsFor(args []string) []*cli.Command {
	if !isCommand(commandName(args)) || slices.Contains(args, completionName) {
		return allCommands()
	}
	return makeCommands(func(name string) bool { return slices.Contains(args, name) })
}

// commandName is the first argument behind the global flags and their values; "" if there is none, or a mistake
// before it.
func commandName(args []string) string {
	flags := commandline.GlobalFlags()
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, _, hasValue := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
		if i < 0 { // --help, or a mistake
			return ""
		}
		args = args[1:]
		if _, isBool := flags[i].(*cli.BoolFlag); !isBool && !hasValue && len(args) > 0 {
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func isCommand(name string) bool {
	return slices.ContainsFunc(makers(), func(m maker) bool { return m.name == name })
}

func makeCommands(is func(name string) bool) (commands []*cli.Command) {
	for _, m := range makers() {
		if is(m.name) {
			c := m.make()
			c.Category = m.category
			commands = append(commands, c)
		}
	}
	return commands
}
