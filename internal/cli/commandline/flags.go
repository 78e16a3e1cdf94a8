package commandline

import (
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// JSONFlag returns the flag --json.
func JSONFlag(usage string) cli.Flag { return &cli.BoolFlag{Name: "json", Usage: usage} }

// QuietFlag returns the flag --quiet.
func QuietFlag(usage string) cli.Flag {
	return &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: usage}
}

// SizeOf returns the number of bytes that a flag gives; 0 without the flag. The error of a value without a
// bound shows the example.
func SizeOf(cmd *cli.Command, flag, example string) (int64, error) {
	if !cmd.IsSet(flag) {
		return 0, nil
	}
	size, err := spec.ParseSize(cmd.String(flag))
	if err != nil {
		return 0, fmt.Errorf("--%s: %w", flag, err)
	}
	if size == spec.Unlimited || size == 0 {
		return 0, fmt.Errorf("--%s %s: write a size, as %s", flag, cmd.String(flag), example)
	}
	return int64(size), nil
}
