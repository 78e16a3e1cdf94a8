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
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Stats makes the command stats.
func Stats() *cli.Command {
	return &cli.Command{
		Name:      "stats",
		Usage:     "show the present and the highest use of sandboxes",
		ArgsUsage: "NAME...",
		Description: `Prints one line for each sandbox: processor time, memory with its limit and its highest
use, processes and threads likewise, disk traffic, and the bytes received from and sent to
the network. A value that the host cannot tell is "-". With --json each line is one object
in JSON, where such a value is -1.

--pool prints the counts of the launcher's pool of blank sandboxes instead.

    sandbox-runtime stats box
    sandbox-runtime stats --json box | jq .memory_peak_bytes
    sandbox-runtime --socket /run/sandbox-runtime.sock stats --pool`,
		Flags: []cli.Flag{
			commandline.JSONFlag("print one JSON object for each sandbox, or for the pool"),
			&cli.BoolFlag{Name: "pool", Usage: "print the counts of the pool of the launcher on --socket"},
		},
		Action: stats,
	}
}

// statsReport is the use of one sandbox in JSON.
type statsReport struct {
	ID string `json:"id"`
	sandbox.Stats
	limits sandbox.Limits
}

func stats(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("pool") {
		return poolStats(ctx, cmd)
	}
	if !cmd.Args().Present() {
		return errors.New("say the names of the sandboxes, as in: stats box")
	}
	show := printStats
	if cmd.Bool("json") {
		show = commandline.PrintEachJSON[statsReport]
	}
	var all []statsReport
	var failed []error
	err := connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		for _, name := range cmd.Args().Slice() {
			one, err := statsOf(ctx, m, name)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			all = append(all, one)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(all) > 0 {
		failed = append(failed, show(cmd.Root().Writer, all))
	}
	return errors.Join(failed...)
}

func statsOf(ctx context.Context, m *connection.Sandboxes, name string) (statsReport, error) {
	box, err := m.Get(ctx, name)
	if err != nil {
		return statsReport{}, err
	}
	info, err := box.Info(ctx)
	if err != nil {
		return statsReport{}, err
	}
	use, err := box.Stats(ctx)
	return statsReport{info.ID, use, info.Config.Limits}, err
}

func printStats(w io.Writer, all []statsReport) error {
	t := tabwriter.NewWriter(w, 0, 1, 3, ' ', 0)
	fmt.Fprint(t, "ID\tCPU TIME\tMEMORY / LIMIT\tPEAK\tPIDS / LIMIT\tPEAK\tREAD\tWRITTEN\tRECEIVED\tSENT\n")
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\t%s / %s\t%s\t%s / %d\t%s\t%s\t%s\t%s\t%s\n", s.ID, timeText(s.CPU),
			sizeText(s.Memory), sizeText(int64(s.limits.Memory)), sizeText(s.MemoryPeak),
			countText(s.Pids), s.limits.Pids, countText(s.PidsPeak), sizeText(s.IORead), sizeText(s.IOWritten),
			sizeText(s.NetworkReceived), sizeText(s.NetworkSent))
	}
	return t.Flush()
}

// untold is the text of a value that the host cannot tell.
const untold = "-"

func timeText(d time.Duration) string {
	if d < 0 {
		return untold
	}
	return d.Round(time.Millisecond).String()
}

func sizeText(bytes int64) string {
	if bytes < 0 {
		return untold
	}
	return units.BytesSize(float64(bytes))
}

func countText(n int64) string {
	if n < 0 {
		return untold
	}
	return strconv.FormatInt(n, 10)
}

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
