package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/admin"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/changes"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/completion"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/containers"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/doctor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/registration"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/sandboxes"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
)

// A maker makes the command with a name.
type maker struct {
	name, category string
	make           func() *cli.Command
}

// makers are those of all commands, in the order of the help text.
func makers() []maker {
	const own, runcs = commandline.CategorySandbox, commandline.CategoryOCI
	return []maker{
		{"do", own, sandboxes.Do},
		{"up", own, sandboxes.Up},
		{"down", own, sandboxes.Down},
		{"cp", own, sandboxes.Cp},
		{"changes", own, changes.List},
		{"diff", own, changes.Diff},
		{"apply", own, changes.Apply},
		{"save", own, changes.Save},
		{"attach", own, sandboxes.Attach},
		{"logs", own, sandboxes.Logs},
		{"inspect", own, sandboxes.Inspect},
		{"stats", own, sandboxes.Stats},
		{"undo", own, changes.Undo},
		{"snapshot", own, changes.Snapshot},
		{"discard", own, changes.Discard},
		{"network", own, sandboxes.Network},
		{"image", own, images.Command},
		{"launcher", own, admin.Launcher},
		{"prune", own, admin.Prune},
		{"doctor", own, admin.Doctor},
		{"register", own, registration.Command},
		{completionName, own, func() *cli.Command { return completion.Command(namesFor) }},

		{"create", runcs, oci.Create},
		{"start", runcs, oci.Start},
		{"run", runcs, oci.Run},
		{"state", runcs, containers.State},
		{"kill", runcs, oci.Kill},
		{"delete", runcs, containers.Delete},
		{"exec", runcs, containers.Exec},
		{"list", runcs, containers.List},
		{"features", runcs, oci.Features},
		{"spec", runcs, oci.Spec},
		{"pause", runcs, containers.Pause},
		{"resume", runcs, containers.Resume},
		{"ps", runcs, containers.PS},
		{"events", runcs, oci.Events},
		{"update", runcs, containers.Update},
		{"checkpoint", runcs, oci.Checkpoint},
		{"restore", runcs, oci.Restore},

		{doctor.ProbeCommand, "", admin.DoctorProbe},
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
