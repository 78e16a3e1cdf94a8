package main

import (
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
)

func streamsOf(cmd *cli.Command) (*relay.Streams, error) {
	s := &relay.Streams{Input: cmd.Bool("interactive"), Terminal: cmd.Bool("tty"), Keep: cmd.Bool("json")}
	if s.Terminal && s.Keep {
		return nil, errors.New("--tty and --json do not go together: a terminal's output is not a Result")
	}
	return s, nil
}
