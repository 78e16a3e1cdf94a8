// Command bench measures what a start costs: the binary under test against
// other runtimes on the same bundle, against bubblewrap, and against a plain
// fork and exec. It is a harness of its own because starts must be spaced (back
// to back they hide kernel waits that real requests meet), interleaved, and
// compared in pairs: the machine's speed drifts more than the peers differ.
// It is not for measuring functions; those have Go benchmarks.
//
// It prints a table in Markdown. It needs root, and the peers that
// integration/setup fetches; one that is missing is said so.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// privateVariable marks the process that already has its mount namespace.
const privateVariable = "SANDBOX_RUNTIME_BENCH_PRIVATE"

type options struct {
	binary string
	peers  string
	rounds int
	warmup int
	idle   time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", fromEnvironment("SANDBOX_RUNTIME_BIN", "bin/sandbox-runtime"), "program under test")
	flag.StringVar(&o.peers, "peers", "", "folder that integration/setup printed (default: what it prints with -n)")
	flag.IntVar(&o.rounds, "n", 100, "measured rounds; each runs every peer once")
	flag.IntVar(&o.warmup, "warmup", 5, "rounds before the measured ones")
	flag.DurationVar(&o.idle, "idle", 8*time.Millisecond, "pause before each start")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func fromEnvironment(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func run(o options) error {
	if os.Getenv(privateVariable) == "" {
		return runPrivately()
	}
	if err := hideHybridCgroup(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sandbox-runtime-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // nothing is mounted in it: runtimes mount in namespaces of their own
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	if o.peers == "" {
		out, err := exec.Command("integration/setup", "-n").Output()
		if err != nil {
			return errors.New("no peers: run integration/setup, and this from the repository's root, or give -peers")
		}
		o.peers = strings.TrimSpace(string(out))
	}
	peers, err := allPeers(o, dir)
	if err != nil {
		return err
	}
	times, err := measure(o, present(peers))
	if err != nil {
		return err
	}
	report(os.Stdout, o, peers, times)
	return nil
}

// runPrivately starts this program again in a mount namespace of its own.
func runPrivately() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), privateVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode()) // it has said why
	}
	if err != nil {
		return fmt.Errorf("mount namespace: %w (the benchmark needs root)", err)
	}
	return nil
}

const unified = "/sys/fs/cgroup/unified"

// hideHybridCgroup unmounts the cgroup2 tree of a hybrid host, here only: crun
// refuses hosts that have both, and every peer gets the same.
func hideHybridCgroup() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	err := unix.Unmount(unified, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", unified, err)
	}
	return nil
}
