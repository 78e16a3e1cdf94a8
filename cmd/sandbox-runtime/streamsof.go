package main

import (
	"errors"

	"github.com/urfave/cli/v3"
)

func streamsOf(cmd *cli.Command) (*commandStreams, error) {
	s := &commandStreams{input: cmd.Bool("interactive"), terminal: cmd.Bool("tty"), keep: cmd.Bool("json")}
	if s.terminal && s.keep {
		return nil, errors.New("--tty and --json do not go together: a terminal's output is not a Result")
	}
	return s, nil
}
