package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// poolStats prints the counts of the pool of a launcher that listens: a launcher inside this process
// has no pool.
func poolStats(ctx context.Context, cmd *cli.Command) error {
	if cmd.Args().Present() {
		return errors.New("--pool is about the launcher, and takes no sandbox, as in: stats --pool")
	}
	socket, err := poolSocket(cmd)
	if err != nil {
		return err
	}
	m, err := sandbox.OpenManager(ctx, sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		return err
	}
	defer m.Close() //nolint:errcheck // nothing was changed
	s, err := m.PoolStats(ctx)
	if err != nil {
		return err
	}
	if cmd.Bool("json") {
		return json.NewEncoder(cmd.Root().Writer).Encode(s)
	}
	return printPoolStats(cmd.Root().Writer, s)
}

// poolSocket is the socket of --socket, or else the default one that exists.
func poolSocket(cmd *cli.Command) (string, error) {
	socket, err := connection.Socket(cmd)
	if err != nil || socket != "" {
		return socket, err
	}
	for _, socket := range []string{sandbox.DefaultSocket, sandbox.SharedSocket} {
		if _, err := os.Lstat(socket); err == nil {
			return socket, nil
		}
	}
	return "", errors.New("no launcher listens on a default socket; name the socket of a launcher with --pool: --socket PATH")
}

func printPoolStats(w io.Writer, s sandbox.PoolStats) error {
	var misses []string
	for _, reason := range slices.Sorted(maps.Keys(s.Misses)) {
		misses = append(misses, fmt.Sprintf("%s %d", reason, s.Misses[reason]))
	}
	if misses == nil {
		misses = []string{"0"}
	}
	t := tabwriter.NewWriter(w, 0, 1, 3, ' ', 0)
	for _, row := range [][2]any{
		{"bounds", s.Config},
		{"blanks", fmt.Sprintf("%d ready of %d", s.Ready, s.Total)},
		{"hits", s.Hits},
		{"misses", strings.Join(misses, ", ")},
		{"claim", fmt.Sprintf("%s on average, %s at most", time.Duration(s.AverageClaim), time.Duration(s.LongestClaim))},
		{"stale", s.Stale},
		{"failed", s.Failed},
	} {
		fmt.Fprintf(t, "%s\t%v\n", row[0], row[1])
	}
	if s.LastError != "" {
		fmt.Fprintf(t, "last error\t%s\n", streams.Escaped(s.LastError))
	}
	return t.Flush()
}
