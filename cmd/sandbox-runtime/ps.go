package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func psCommand() *cli.Command {
	return &cli.Command{
		Name:      "ps",
		Usage:     "list the processes of a container",
		ArgsUsage: "<container-id> [ps option...]",
		Description: `Shows the lines of the host's ps(1) for the processes of the container. The options
are those of ps, by default -ef. They must leave a column PID. The process ids are
those of the caller's pid namespace. --format json prints only the ids.

    # ` + commandline.Program + ` ps web -eo pid,rss,args
    # ` + commandline.Program + ` ps --format json web
    [4711,4730]

--execs shows the commands that "exec" has started in a sandbox: the running ones, and
the detached ones that have ended and whose result nobody has asked for.

    # ` + commandline.Program + ` ps --execs box`,
		StopOnNthArg: new(1), // the rest is for ps
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: "table", Usage: "table or json"},
			&cli.BoolFlag{Name: "execs", Usage: "sandbox: its commands in place of their processes"},
		},
		Action: commandline.WithArgs(1, -1, listProcesses),
	}
}

func listProcesses(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("execs") {
		return listExecs(ctx, cmd)
	}
	processes := containerProcesses
	if namesListed(cmd) {
		processes = listedProcesses
	}
	pids, err := processes(ctx, cmd)
	if err != nil {
		return err
	}
	w := cmd.Root().Writer
	switch cmd.String("format") {
	case "json":
		return json.NewEncoder(w).Encode(pids) // null for none, as runc
	case "table":
		return printProcesses(ctx, w, pids, cmd.Args().Tail())
	}
	return errors.New("invalid format option")
}

// containerProcesses are the processes of an OCI container, or of a sandbox of the state root.
func containerProcesses(ctx context.Context, cmd *cli.Command) ([]int, error) {
	c, err := commandline.LoadContainer(cmd)
	if err != nil {
		return nil, err
	}
	pids, err := c.Processes()
	hintAtCgroups(commandline.LogFrom(ctx), cmd.Name, err)
	return pids, err
}

// listedProcesses are the processes of the commands in a sandbox of a launcher that listens. A
// launcher tells nothing of the sandbox's first process.
func listedProcesses(ctx context.Context, cmd *cli.Command) (pids []int, err error) {
	err = withSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		execs, err := box.Execs(ctx)
		for _, e := range execs {
			pids = append(pids, e.Pids...)
		}
		return err
	})
	return pids, err
}

// printProcesses prints ps's header and its lines about pids.
func printProcesses(ctx context.Context, w io.Writer, pids []int, options []string) error {
	if len(options) == 0 {
		options = []string{"-ef"}
	}
	out, err := exec.CommandContext(ctx, "ps", options...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: install procps, or use --format json", err)
	}
	if err != nil {
		return fmt.Errorf("ps: %w: %s", err, out)
	}
	table, err := processLines(string(out), pids)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, table)
	return err
}

// processLines keeps of ps's output the header and the lines about pids.
func processLines(out string, pids []int) (string, error) {
	header, lines, _ := strings.Cut(out, "\n")
	column := slices.Index(strings.Fields(header), "PID")
	if column < 0 {
		return "", errors.New("couldn't find PID field in ps output")
	}
	kept := header + "\n"
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) <= column {
			return "", fmt.Errorf("unable to parse pid: no field %d in %q", column+1, line)
		}
		pid, err := strconv.Atoi(fields[column])
		if err != nil {
			return "", fmt.Errorf("unable to parse pid: %w", err)
		}
		if slices.Contains(pids, pid) {
			kept += line
		}
	}
	return kept, nil
}
