package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The tests run in a world of their own: new mount, pid, network, ipc, uts and
// cgroup namespaces, below a cgroup of their own in every hierarchy, with
// their own /run, /dev/shm and data directory. So a comparison of before and after sees only
// what the tests did, whatever else runs on the host; daemons have private
// ground; and whatever is left over dies with the world.
//
// The test binary runs three times for that. Started by go test, it makes the
// cgroups and starts itself as PID 1 of the new namespaces; that mounts what
// the world needs, starts the binary once more for the tests, and reaps.
const (
	stageVariable = "SANDBOX_RUNTIME_INTEGRATION_STAGE"
	stageInit     = "init"
	stageTests    = "tests"

	// A world's cgroups and its folder end in the PID of who made it.
	cgroupPrefix = "sandbox-runtime-integration-"
	folderPrefix = "srt-world-" // short: a socket's path has 107 bytes
)

// whyNoWorld says what keeps this process from making a world, or nothing.
func whyNoWorld() string {
	if os.Geteuid() != 0 {
		return "not root"
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Sprintf("capget: %v", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return "no CAP_SYS_ADMIN"
	}
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err.Error()
	}
	for _, h := range hierarchies {
		if unix.Access(h.mountPoint, unix.W_OK) != nil {
			return "cgroups are not writable"
		}
	}
	if len(hierarchies) == 0 {
		return "no cgroup hierarchy is mounted"
	}
	return ""
}

// runInWorld makes a world, runs the tests there, removes it, and returns
// their exit status.
func runInWorld() (status int, err error) {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return 0, err
	}
	removeStale(hierarchies)
	unix.Umask(0o022)
	// Nothing is mounted below the folder in this mount namespace: every mount
	// of the tests is made in the world's.
	temp := filepath.Join(os.TempDir(), folderPrefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(temp, 0o711); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()

	releaseData, err := reserveData()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, releaseData()) }()

	name := cgroupPrefix + strconv.Itoa(os.Getpid())
	defer func() { err = errors.Join(err, removeCgroups(hierarchies, name)) }()
	world, err := startWorld(hierarchies, name, temp)
	if err != nil {
		return 0, err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-interrupted; ok {
			_ = world.Process.Kill()
		}
	}()
	_ = world.Wait()
	signal.Stop(interrupted)
	close(interrupted)
	return world.ProcessState.ExitCode(), nil
}

// startWorld starts the world's init with its cgroup namespace rooted at the
// group name in every hierarchy. A child's cgroup namespace is rooted where
// its parent is, so this process visits the group for the moment of the start.
func startWorld(hierarchies []hierarchy, name, temp string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	own, err := ownCgroups(hierarchies)
	if err != nil {
		return nil, err
	}
	for i, h := range hierarchies {
		defer func() { _ = joinCgroup(own[i]) }()
		group := filepath.Join(h.mountPoint, name)
		if err := makeCgroup(group); err != nil {
			return nil, err
		}
		if err := joinCgroup(group); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageVariable+"="+stageInit, "TMPDIR="+temp)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Pdeathsig: syscall.SIGKILL,
	}
	runtime.LockOSThread() // the signal comes when this thread ends: never before the process
	return cmd, cmd.Start()
}

// worldInit is PID 1 of the world: mounts, then the tests, then reaping until
// they end. Its own end kills everything that is left.
func worldInit() int {
	if err := mountWorld(); err != nil {
		fmt.Fprintln(os.Stderr, "integration: world:", err)
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration: world:", err)
		return 1
	}
	if err := os.Setenv(stageVariable, stageTests); err != nil {
		return 1
	}
	tests, err := os.StartProcess(self, os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration: world:", err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			fmt.Fprintln(os.Stderr, "integration: world: wait:", err)
			return 1
		case pid == tests.Pid && (status.Signaled() || status.Exited()):
			thawAll()
			if status.Signaled() {
				return 128 + int(status.Signal())
			}
			return status.ExitStatus()
		}
	}
}

// thawAll lets what a failing test left frozen die with the world, which would
// wait for it forever: a process that the v1 freezer holds cannot be killed.
func thawAll() {
	hierarchies, _ := cgroupHierarchies()
	for _, h := range hierarchies {
		thawBelow(h.mountPoint)
	}
}

// thawBelow thaws the group and all its descendants.
func thawBelow(group string) {
	for _, g := range cgroupsBelow(group) {
		_ = os.WriteFile(filepath.Join(g, "freezer.state"), []byte("THAWED"), 0)
	}
}

func mountWorld() error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unmountNamespaces(); err != nil {
		return err
	}
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil { // with the host's cgroup mounts
		return fmt.Errorf("unmount /sys: %w", err)
	}
	mounts := []struct{ kind, target, data string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"tmpfs", "/run", "mode=755"},
		{"tmpfs", "/dev/shm", "mode=1777"},
		{"tmpfs", dataDir, "mode=700"},
	}
	if filepath.Dir(hierarchies[0].mountPoint) == "/sys/fs/cgroup" {
		mounts = append(mounts, struct{ kind, target, data string }{"tmpfs", "/sys/fs/cgroup", "mode=755"})
	}
	for _, m := range mounts {
		if err := unix.Mount(m.kind, m.target, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, h := range hierarchies {
		if err := h.mountHere(); err != nil {
			return err
		}
	}
	return linkUp("lo")
}

// unmountNamespaces unmounts the copies of namespaces that programs of the host have mounted, such as another router. When
// such a program removes its file, the kernel takes the copy away, too (namespace.c:__detach_mounts()). A test would
// take that for a change of its own.
func unmountNamespaces() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.Contains(line, " - nsfs ") {
			continue
		}
		if err := unix.Unmount(fields[4], unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", fields[4], err)
		}
	}
	return nil
}

func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("link %s up: %w", name, err)
	}
	return nil
}

// removeStale removes the groups and folders of worlds whose makers are dead: a
// go test that was killed removed nothing.
func removeStale(hierarchies []hierarchy) {
	for _, h := range hierarchies { // all, before the first that they are in is removed
		for _, name := range ofTheDead(h.mountPoint, cgroupPrefix) {
			thawBelow(filepath.Join(h.mountPoint, name))
		}
	}
	for _, h := range hierarchies {
		for _, name := range ofTheDead(h.mountPoint, cgroupPrefix) {
			_ = removeCgroups([]hierarchy{h}, name)
		}
	}
	for _, name := range ofTheDead(os.TempDir(), folderPrefix) {
		_ = os.RemoveAll(filepath.Join(os.TempDir(), name))
	}
}

// ofTheDead lists the entries of dir that are prefix and the PID of no process.
func ofTheDead(dir, prefix string) []string {
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		pid, ours := strings.CutPrefix(e.Name(), prefix)
		if _, err := os.Stat("/proc/" + pid); ours && errors.Is(err, fs.ErrNotExist) {
			names = append(names, e.Name())
		}
	}
	return names
}
