package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/changes"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/configflags"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Up makes the command up.
func Up() *cli.Command {
	return &cli.Command{
		Name:      "up",
		Usage:     "make a sandbox that stays up, or take the present one of this name",
		ArgsUsage: "NAME",
		Description: `The sandbox is like that of "do", and stays up until "down". "exec" runs commands in
it. The commands share its files and processes.

If a sandbox of this name is up and healthy, it stays as it is, and the flags change
nothing. A sandbox that is not healthy is replaced. If its files are on disk, they are
kept as a snapshot.

    sandbox-runtime up --workspace . --memory 2g box
    sandbox-runtime exec box make test
    sandbox-runtime down box

"up --json" prints the configuration of the sandbox. "list" shows the sandboxes that
are up.`,
		Flags:                  upFlags(),
		UseShortOptionHandling: true,
		Action:                 up,
	}
}

// upFlags describe the sandbox, and none of them a command.
func upFlags() []cli.Flag {
	flags := append([]cli.Flag{
		commandline.JSONFlag("print a description in JSON, in place of the name"),
		&cli.StringFlag{Name: "from", Usage: "begin with the files of the snapshot `SNAP`"},
		images.PullFlag(),
	}, configflags.Flags()...)
	for _, f := range ofCommands {
		flags = append(flags, &cli.BoolFlag{Name: f.name, Aliases: f.aliases, Hidden: true})
	}
	return flags
}

// ofCommands are flags of "do" that a sandbox that stays has no use for.
var ofCommands = []struct {
	name    string
	aliases []string
	why     string
}{
	{"interactive", []string{"i"}, `it is for "exec": "up" runs no command`},
	{"tty", []string{"t"}, `it is for "exec": "up" runs no command`},
	{"local", nil, `without a sandbox nothing stays up; it is for "do"`},
	{"review", nil, `it is for "do": a sandbox that stays has "changes", "apply" and "save"`},
	{"apply", nil, `it is for "do": a sandbox that stays has "apply"`},
	{"keep", nil, `it is for "do": this sandbox stays in any case`},
}

func up(ctx context.Context, cmd *cli.Command) error {
	for _, f := range ofCommands {
		if cmd.Bool(f.name) {
			return fmt.Errorf("--%s: %s", f.name, f.why)
		}
	}
	if cmd.NArg() != 1 || cmd.Args().First() == "" {
		return errors.New("say the name of one sandbox, after the flags, as in: up --workspace . box")
	}
	if err := changes.CheckSnapshotFlag(cmd, "from"); err != nil {
		return err
	}
	config, err := configflags.Config(cmd)
	if err != nil {
		return err
	}
	if config, err = sandbox.WithIDs(config); err != nil {
		return configflags.AsTyped(cmd, err)
	}
	info, err := upOnce(ctx, cmd, cmd.Args().First(), config)
	if err != nil {
		return err
	}
	if info.Reused {
		info.Notes = append([]string{reusedNote(cmd, config, info)}, info.Notes...)
	}
	w := cmd.Root().Writer
	if !cmd.Bool("json") {
		for _, note := range info.Notes {
			fmt.Fprintln(cmd.Root().ErrWriter, note)
		}
		_, err = fmt.Fprintln(w, info.ID)
		return err
	}
	return json.NewEncoder(w).Encode(info)
}

// upOnce leaves nothing new behind if a signal comes before it is up.
func upOnce(ctx context.Context, cmd *cli.Command, name string, c spec.Config) (_ sandbox.Info, err error) {
	connection.WakeCgroups(cmd)
	ctx, signals := connection.Catch(ctx, cmd)
	defer signals.Stop()
	m, err := connection.Open(ctx, cmd)
	if err != nil {
		return sandbox.Info{}, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if _, err := images.Take(ctx, cmd, m.Manager, c, images.TellNote(cmd)); err != nil {
		return sandbox.Info{}, relay.CauseOf(ctx, err)
	}
	box, err := m.Up(ctx, name, c, sandbox.From(cmd.String("from")))
	if err != nil {
		return sandbox.Info{}, changes.NoSnapshot(cmd, configflags.AsTyped(cmd, relay.CauseOf(ctx, err)))
	}
	return box.Info(ctx)
}

// reusedNote says that the sandbox was there, and which flags therefore had no
// effect.
func reusedNote(cmd *cli.Command, asked spec.Config, info sandbox.Info) string {
	note := info.ID + " is up already"
	if info.State == sandbox.StatePaused {
		note = fmt.Sprintf("%s, paused (to go on: %s resume %s)", note, commandline.ProgramWithDirs(cmd), info.ID)
	}
	without := withoutEffect(cmd, asked, info)
	if len(without) == 0 {
		return note
	}
	way := fmt.Sprintf("to change the sandbox, first run: %s down %s", commandline.ProgramWithDirs(cmd), info.ID)
	if !slices.ContainsFunc(without, func(flag string) bool { return !isOfNetwork(flag) }) {
		way = fmt.Sprintf("to change the network of a sandbox that is up, see: %s network --help", commandline.ProgramWithDirs(cmd))
	}
	return fmt.Sprintf("%s; %s had no effect (%s)", note, strings.Join(without, " "), way)
}

// isOfNetwork says whether the command network changes what the flag asks for.
func isOfNetwork(flag string) bool {
	return flag == "--network" || slices.ContainsFunc(configflags.OfNetwork(), func(f configflags.Flag) bool { return "--"+f.Name() == flag })
}

// withoutEffect are the flags that ask for something else than the sandbox is.
func withoutEffect(cmd *cli.Command, asked spec.Config, info sandbox.Info) (flags []string) {
	complete, err := asked.Complete()
	if err != nil {
		return nil
	}
	complete.UpstreamProxy = spec.ShownUpstream(complete.UpstreamProxy) // as in info
	if from := cmd.String("from"); from != "" && from != info.From {
		flags = append(flags, "--from")
	}
	ofFile := false
	for _, f := range configflags.All() {
		switch same := reflect.DeepEqual(fieldOf(complete, f.Field), fieldOf(info.Config, f.Field)); {
		case same:
		case cmd.IsSet(f.Name()):
			flags = append(flags, "--"+f.Name())
		case fieldOf(asked, f.Field) != nil:
			ofFile = cmd.IsSet("config")
		}
	}
	if ofFile {
		flags = append(flags, "--config")
	}
	return flags
}

// fieldOf is the field of a configuration that has this name in JSON.
func fieldOf(c spec.Config, name string) any {
	data, err := json.Marshal(c)
	if err != nil {
		return nil
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return nil
	}
	for part := range strings.SplitSeq(name, ".") {
		fields, _ := value.(map[string]any)
		value = fields[part]
	}
	return value
}
