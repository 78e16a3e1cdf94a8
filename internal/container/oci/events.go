package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// Events makes the command events.
func Events() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "print a container's statistics, and when it runs out of memory",
		ArgsUsage: "<container-id>",
		Description: `Prints one JSON object a line: of type "stats" every 5 seconds, with the
container's use of CPU, memory, block I/O and pids, and of type "oom" each time the
container reaches its memory limit. Ends when the container's cgroup is gone.

    # ` + commandline.Program + ` events --stats web | jq .data.memory.usage
    # ` + commandline.Program + ` events --interval 1s web`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "interval", Value: 5 * time.Second, Usage: "time between statistics"},
			&cli.BoolFlag{Name: "stats", Usage: "print the statistics once and exit"},
		},
		Action: commandline.OnContainer(1, printEvents),
	}
}

// event is one line of the output, in runc's form.
type event struct {
	Type string           `json:"type"` // stats or oom
	ID   string           `json:"id"`
	Data *container.Stats `json:"data,omitempty"`
}

func printEvents(ctx context.Context, cmd *cli.Command, c *container.Container) error {
	interval := cmd.Duration("interval")
	if interval <= 0 {
		return errors.New("duration interval must be greater than 0")
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status == container.Stopped {
		return fmt.Errorf("container with id %s is not running", c.ID())
	}
	out := json.NewEncoder(cmd.Root().Writer)
	if cmd.Bool("stats") {
		stats, err := c.Stats()
		if err != nil {
			return err
		}
		return out.Encode(event{"stats", c.ID(), stats})
	}
	return streamEvents(c, out, interval, commandline.LogFrom(ctx))
}

// streamEvents returns when the container's cgroup is gone.
func streamEvents(c *container.Container, out *json.Encoder, interval time.Duration, log *slog.Logger) error {
	oom, err := c.NotifyOOM()
	if err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		e := event{Type: "oom", ID: c.ID()}
		select {
		case _, more := <-oom:
			if !more {
				return nil
			}
		case <-tick.C:
			e.Type = "stats"
			if e.Data, err = c.Stats(); err != nil {
				log.Error(err.Error()) // it may be going away: oom will tell
				continue
			}
		}
		if err := out.Encode(e); err != nil {
			return err
		}
	}
}
