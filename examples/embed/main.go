// Embed is a Go program that runs a build in a sandbox: it shows the build's output as it
// comes, cancels it, reads the result, and goes on in the same sandbox. It needs no cgo:
//
//	CGO_ENABLED=0 go build ./examples/embed
//	./embed
//
// It takes the launcher that listens on this host, or starts one of its own from the PATH:
// have sandbox-runtime there, and be root.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// build is a build that takes long.
const build = `for n in $(seq 1000); do echo "compile part $n"; sleep 0.05; done`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	workspace, err := os.MkdirTemp("", "embed")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(workspace)) }()
	if err := os.WriteFile(filepath.Join(workspace, "build.sh"), []byte(build), 0o644); err != nil {
		return err
	}

	m, err := sandbox.NewManager(sandbox.ManagerConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	sb, err := m.Create(ctx, sandbox.Config{
		Workspace: workspace,
		Limits:    sandbox.Limits{Memory: 256 << 20, CPUs: 0.5, Pids: 64},
	}, sandbox.Tied())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()

	result, err := cancelled(ctx, sb, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s\n", result.Status, result.Reason)
	fmt.Fprintf(out, "%s of processor time, %s at most\n", result.CPU.Round(time.Millisecond), size(result.PeakMemory))

	// The sandbox lives on, and so do the build's files in it.
	result, err = sb.Run(ctx, "ls; id -u")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s", result.Stdout)
	return nil
}

// cancelled starts the build, passes three lines of it on, and cancels it.
func cancelled(ctx context.Context, sb *sandbox.Sandbox, out io.Writer) (sandbox.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines, w := io.Pipe()
	p, err := sb.Start(ctx, sandbox.Command{Args: []string{"sh", "build.sh"}, Stdout: w, Stderr: w})
	if err != nil {
		return sandbox.Result{}, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen := 0
		for scanner := bufio.NewScanner(lines); scanner.Scan(); {
			if seen++; seen <= 3 {
				fmt.Fprintln(out, scanner.Text())
			}
			if seen == 3 {
				cancel() // ends the build with all it has started
			}
		}
	}()
	result, err := p.Wait()
	err = errors.Join(err, w.Close())
	<-done
	return result, err
}

func size(bytes uint64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/(1<<20)), ".0") + " MiB"
}
