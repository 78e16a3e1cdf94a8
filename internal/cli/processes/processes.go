// Package processes prints the lines of ps(1) about the processes of a container, for the command
// ps. In the lines about a sandbox it puts the users of the sandbox in place of the host's.
package processes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// Print prints the header of ps and its lines about the processes. users are those of a sandbox;
// nil leaves the lines as ps prints them.
func Print(ctx context.Context, w io.Writer, pids []int, options []string, users *Users) error {
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
	table, err := linesOf(string(out), pids, users)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, table)
	return err
}

// linesOf keeps the header and the lines about pids of the output of ps.
func linesOf(out string, pids []int, users *Users) (string, error) {
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
			kept += users.inLine(header, strings.TrimSuffix(line, "\n"), pid) + "\n"
		}
	}
	return kept, nil
}
