package integration

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A host is what this kernel holds in the tests' world at one moment: each
// process, cgroup, mount, network link and namespace, file under /run and
// /dev/shm, image and loop device of one, as one readable line.
type host map[string]bool

func readHost() (host, error) {
	h := host{}
	for _, read := range []func(host) error{addProcesses, addCgroups, addMounts, addLinks, addVolatile, addImages} {
		if err := read(h); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// lasting says whether a line is of what the runtime makes once and keeps, for
// it costs nothing while empty; what is in it is not lasting.
func lasting(line string) bool {
	switch line {
	case "file /run/sandbox-runtime", "file /run/sandbox-runtime.stage":
		return true
	case "file /run/criu.kdat": // what criu has found out about the kernel
		return true
	}
	return strings.HasPrefix(line, "cgroup ") && filepath.Base(line) == "sandbox-runtime"
}

// leftovers returns the lines that differ from h now, each with + or -, or
// nothing if there is no difference. What is going away is waited for: of a
// network namespace, say, the kernel removes the links when it comes to that.
func (h host) leftovers() string { return h.differsFrom(readHost) }

func (h host) differsFrom(read func() (host, error)) string {
	var diff string
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		now, err := read()
		if err != nil {
			return fmt.Sprintf("cannot look: %v\n", err)
		}
		if diff = h.diff(now); diff == "" || time.Now().After(end) {
			return diff
		}
	}
}

func (h host) diff(now host) string {
	var lines []string
	for line := range now {
		if !h[line] && !lasting(line) {
			lines = append(lines, "+ "+line+"\n")
		}
	}
	for line := range h {
		if !now[line] {
			lines = append(lines, "- "+line+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// processes is the part of the host that changes by itself.
func processes(t testing.TB) host {
	t.Helper()
	h := host{}
	if err := addProcesses(h); err != nil {
		t.Fatal(err)
	}
	return h
}

// leavesNothing fails the test if, after it and the clean-ups it registers
// later, the host is not as it is now. It skips without a world.
func leavesNothing(t *testing.T) {
	t.Helper()
	need(t, world())
	before, err := readHost()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := before.leftovers(); left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	})
}

func addProcesses(h host) error {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		command, err := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		if err != nil {
			continue // it ended meanwhile
		}
		if len(command) == 0 { // a zombie has no arguments
			command, _ = os.ReadFile("/proc/" + d.Name() + "/comm")
		}
		h[fmt.Sprintf("process %s: %.100q", d.Name(), strings.ReplaceAll(string(command), "\x00", " "))] = true
		if ns, err := os.Readlink("/proc/" + d.Name() + "/ns/net"); err == nil {
			h["network namespace "+ns] = true
		}
	}
	return nil
}

func addCgroups(h host) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hy := range hierarchies {
		for _, group := range cgroupsBelow(hy.mountPoint) {
			h["cgroup "+group] = true
		}
	}
	return nil
}

func addMounts(h host) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	n := map[string]int{} // the same mount may lie there twice
	for line := range strings.Lines(string(mounts)) {
		left, right, _ := strings.Cut(line, " - ")
		f := strings.Fields(left)
		if len(f) < 5 {
			return fmt.Errorf("mountinfo: %q", line)
		}
		mount := fmt.Sprintf("mount %s of %s %s", f[4], f[3], strings.TrimSpace(right))
		n[mount]++
		h[fmt.Sprintf("%s #%d", mount, n[mount])] = true
	}
	return nil
}

func addLinks(h host) error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		h["link "+l.Name] = true
	}
	return nil
}

// addVolatile adds the files where programs keep what lasts until the next
// boot. Both are the world's own and small.
func addVolatile(h host) error {
	for _, root := range []string{"/run", "/dev/shm"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && !strings.Contains(path, "/@etc") { // copies of the host's files come and go as /etc changes
				h["file "+path] = true
			}
			return nil // a file that vanished meanwhile is none
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addImages adds the images of sandboxes, without the last part of their names,
// which is another one each time, and the loop devices that these, or any file of
// the data directory, have.
func addImages(h host) error {
	images, err := filepath.Glob(dataDir + "/stores/*.img")
	if err != nil {
		return err
	}
	for _, path := range images {
		addNumbered(h, "image "+path)
	}
	var data unix.Stat_t
	if err := unix.Stat(dataDir, &data); err != nil {
		return fmt.Errorf("stat %s: %w", dataDir, err)
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, file := range files {
		// Another world's data directory has the same path, but is another tmpfs.
		if of, err := os.ReadFile(file); err == nil && onDevice(strings.Split(file, "/")[3], data.Dev) {
			addNumbered(h, "loop device of "+string(of))
		}
	}
	return nil
}

// onDevice says whether a loop device has a file of a file system.
func onDevice(loop string, device uint64) bool {
	f, err := os.Open("/dev/" + loop)
	if err != nil {
		return false // it is gone
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	return err == nil && info.Device == device
}

// addNumbered adds what is alike up to "@" under different names.
func addNumbered(h host, line string) {
	line, _, _ = strings.Cut(line, "@")
	for n := 1; ; n++ {
		if numbered := fmt.Sprintf("%s #%d", line, n); !h[numbered] {
			h[numbered] = true
			return
		}
	}
}
