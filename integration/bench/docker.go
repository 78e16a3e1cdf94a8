package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// daemonPatience is how long dockerd may take to answer, and to end.
const daemonPatience = 30 * time.Second

// openDocker compares docker run with each runtime, by one dockerd of its own.
func openDocker(o options, dir string) ([]trial, func() error, error) {
	d := &dockerDaemon{dir: dir, peers: o.peers, group: fmt.Sprintf("/sandbox-runtime-bench-%d", os.Getpid())}
	runtimes := []ociRuntime{{name: runcName, program: filepath.Join(o.peers, "bin/runc")}, {name: ourName, program: o.binary}}
	if err := d.start(runtimes); err != nil {
		return nil, nil, errors.Join(err, d.stop())
	}
	var peers []peer
	for _, r := range runtimes {
		cmd := d.client("run", "--rm", "--runtime", r.name, "busybox", "true")
		peers = append(peers, peer{name: r.name + " under docker run", args: cmd.Args, env: cmd.Env})
	}
	return []trial{contest{
		title: "`docker run`",
		about: "`docker run --rm busybox true` on the default bridge, with one dockerd 20.10 and either runtime.",
		unit:  "ms", base: peers[0].name, peers: peers, rounds: max(o.rounds/4, 1), measure: milliseconds,
		bounds: []bound{{peers[1].name, peers[0].name, 1.0}},
	}}, d.stop, nil
}

// dockerDaemon is a dockerd with everything it writes below dir, but for a
// private /run, in a network namespace of its own.
type dockerDaemon struct {
	dir, peers string
	group      string // parent of its containers' cgroups
	cmd        *exec.Cmd
}

func (d *dockerDaemon) in(path string) string { return filepath.Join(d.peers, path) }

func (d *dockerDaemon) environment() []string {
	libs, _ := filepath.Glob(d.in("usr/lib/*-linux-gnu"))
	xtables, _ := filepath.Glob(d.in("usr/lib/*-linux-gnu/xtables"))
	return []string{
		"HOME=" + d.dir, "TMPDIR=" + d.dir,
		"PATH=" + strings.Join([]string{d.in("bin"), d.in("usr/bin"), d.in("usr/sbin"), "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":"),
		"LD_LIBRARY_PATH=" + strings.Join(libs, ":"),
		"XTABLES_LIBDIR=" + strings.Join(xtables, ":"),
	}
}

func (d *dockerDaemon) client(args ...string) *exec.Cmd {
	cmd := exec.Command(d.in("usr/bin/docker"), append([]string{"--host", "unix://" + filepath.Join(d.dir, "s")}, args...)...)
	cmd.Env = d.environment()
	return cmd
}

func (d *dockerDaemon) start(runtimes []ociRuntime) error {
	// This mount namespace is the benchmark's own.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	config := filepath.Join(d.dir, "daemon.json") // instead of the host's
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		return err
	}
	args := []string{"--config-file", config, "--host", "unix://" + filepath.Join(d.dir, "s"), "--cgroup-parent", d.group,
		"--data-root", filepath.Join(d.dir, "data"), "--exec-root", filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid")}
	for _, r := range runtimes {
		if r.name == runcName {
			// "runc" is dockerd's word for the one on its PATH, which starts with ours.
			continue
		}
		args = append(args, "--add-runtime", r.name+"="+r.program)
	}
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = exec.Command(d.in("usr/sbin/dockerd"), args...)
	d.cmd.Env = d.environment()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(daemonPatience); d.client("version").Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("dockerd does not answer: %s", text)
		}
	}
	return d.importImage()
}

func (d *dockerDaemon) importImage() error {
	root := filepath.Join(d.dir, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := bundle.MakeRoot(root, d.in("bin/busybox")); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		w.CloseWithError(errors.Join(tw.AddFS(os.DirFS(root)), tw.Close()))
	}()
	cmd := d.client("import", "-", "busybox")
	cmd.Stdin = r
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker import: %w: %s", err, out)
	}
	return nil
}

// stop ends the daemon and removes its files outside its folder.
func (d *dockerDaemon) stop() error {
	var errs []error
	if d.cmd != nil && d.cmd.Process != nil {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		killer := time.AfterFunc(daemonPatience, func() { _ = d.cmd.Process.Kill() })
		_ = d.cmd.Wait()
		killer.Stop()
	}
	if host, err := cgroups.Probe(); err == nil {
		if group, err := host.Open(d.group); err == nil {
			errs = append(errs, group.Delete(context.Background()))
		}
	}
	if err := unix.Unmount("/run", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		errs = append(errs, fmt.Errorf("unmount /run: %w", err))
	}
	return errors.Join(errs...)
}
