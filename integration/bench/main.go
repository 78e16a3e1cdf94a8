// Command bench measures the cost of the binary under test beside its peers: starts
// against other runtimes on the same bundle, against bubblewrap and against a plain fork
// and exec; execs in a running container, and in a sandbox as a Go program has them; a
// thousand sandboxes at once; sandboxes with a network; the memory that creating a container
// takes; images; and docker run.
// It is a harness of its own because starts must be spaced (back to back they hide kernel
// waits that real requests meet), interleaved, and compared in pairs: the machine's speed
// drifts more than the peers differ. It is not for measuring functions; those have Go
// benchmarks.
//
// It prints tables in Markdown. It needs root, and the peers that integration/setup
// fetches; it names a missing one.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	_ "github.com/sandbox-runtime/sandbox-runtime/internal/launcher/takeover" // the processes that the benchmarks start
)

// privateVariable marks the process that already has its mount namespace.
const privateVariable = "SANDBOX_RUNTIME_BENCH_PRIVATE"

type options struct {
	binary string
	peers  string
	rounds int
	warmup int
	crowd  int
	idle   time.Duration
	only   *regexp.Regexp
	// state is the directory of all state roots. It is in memory, as /run is on common hosts.
	state string
}

// root is a state root for a field, whose directory is dir.
func (o options) root(dir, name string) string {
	return filepath.Join(o.state, filepath.Base(dir), name)
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", cmp.Or(os.Getenv("SANDBOX_RUNTIME_BIN"), "bin/sandbox-runtime"), "program under test")
	flag.StringVar(&o.peers, "peers", "", "folder that integration/setup printed (default: what it prints with -n)")
	flag.IntVar(&o.rounds, "n", 200, "measured rounds; each runs every peer once (docker: a quarter of them)")
	flag.IntVar(&o.warmup, "warmup", 5, "rounds before the measured ones")
	flag.IntVar(&o.crowd, "crowd", 1000, "idle sandboxes at once")
	flag.DurationVar(&o.idle, "idle", 8*time.Millisecond, "pause before each run")
	only := flag.String("only", "", "regular expression over "+fieldNames())
	flag.Parse()
	var err error
	o.only, err = regexp.Compile(*only)
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func fieldNames() string {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

func run(o options) error {
	if os.Getenv(privateVariable) == "" {
		return runPrivately()
	}
	if err := hideHybridCgroup(); err != nil {
		return err
	}
	var err error
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
	header(os.Stdout, o)
	return runFields(os.Stdout, o)
}

// runFields deletes nothing before the end of the run: ext4 passes over the inodes of
// deleted files for minutes, and so makes the new files of later trials slow.
func runFields(w io.Writer, o options) (err error) {
	dir, err := os.MkdirTemp("", "srt-bench-") // short: a socket's path has 107 bytes
	if err != nil {
		return err
	}
	o.state = filepath.Join(dir, "run")
	err = os.Mkdir(o.state, 0o700)
	if err == nil {
		err = os.NewSyscallError("mount", unix.Mount("tmpfs", o.state, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", o.state, err), os.RemoveAll(dir))
	}
	// Nothing else is mounted in dir at the end: runtimes mount in namespaces of their own.
	defer func() {
		if left := unix.Unmount(o.state, unix.MNT_DETACH); left != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", o.state, left))
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	for _, f := range fields {
		if !o.only.MatchString(f.name) {
			continue
		}
		if err := f.run(w, o, filepath.Join(dir, f.name)); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// run runs the field's trials one after the other, in a new directory.
func (f field) run(w io.Writer, o options, dir string) (err error) {
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(o.root(dir, ""), 0o700)); err != nil {
		return err
	}
	trials, done, err := f.open(o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	for _, t := range trials {
		if err := t.run(w, o); err != nil {
			return err
		}
	}
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
