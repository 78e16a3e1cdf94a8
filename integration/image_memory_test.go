package integration

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// measured runs a command. It returns the most memory of the command's process, together with that of the largest
// of its children. Children run the same program, so the pages of its file count once. On a busy machine a command
// that refuses something can end before the first look: then it runs again.
func measured(t *testing.T, cmd *exec.Cmd) (result, int64) {
	t.Helper()
	for range 20 {
		again := *cmd // with its user, too
		if r, most := measuredOnce(t, &again); most > 0 {
			return r, most
		}
	}
	t.Fatalf("%q: ended before it was measured, each time", cmd.Args)
	return result{}, 0
}

// measuredOnce returns no memory for a command that has ended before the first look.
func measuredOnce(t *testing.T, cmd *exec.Cmd) (result, int64) {
	t.Helper()
	r := start(t, cmd)
	pid := r.cmd.Process.Pid
	most := map[int]memoryOf{}
	const often = 2 * time.Millisecond
	watch := time.NewTicker(often)
	defer watch.Stop()
	for !r.ended() {
		noteMemory(pid, "", most)
		<-watch.C
	}
	own, largest := most[pid].all, int64(0)
	if own == 0 {
		return r.wait(), 0
	}
	delete(most, pid)
	for _, m := range most {
		largest = max(largest, m.private)
	}
	return r.wait(), own + largest
}

// memoryOf is the most memory that a process has had, in bytes. The private part is without pages of files.
type memoryOf struct{ all, private int64 }

// noteMemory notes the memory of a process and of those below it. A new process still has the memory and the
// arguments of its parent.
func noteMemory(pid int, above string, most map[int]memoryOf) {
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || string(arguments) == above {
		return // it has ended, or is new
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return
	}
	all, had := kibibytes(string(status), "VmHWM"), most[pid]
	most[pid] = memoryOf{max(had.all, all), max(had.private, all-kibibytes(string(status), "RssFile"))}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, thread := range threads {
		children, _ := os.ReadFile(thread) // the thread may have ended
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				noteMemory(n, string(arguments), most)
			}
		}
	}
}

// kibibytes is a field of /proc/PID/status in bytes, 0 if it is missing.
func kibibytes(status, field string) (bytes int64) {
	_, after, _ := strings.Cut(status, "\n"+field+":")
	if _, err := fmt.Sscan(after, &bytes); err != nil {
		return 0
	}
	return bytes << 10
}

// manyFiles writes the tar of a root with empty files.
func manyFiles(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "root.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for i := range n {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("usr/share/directory-%d/file-%d", i/100, i), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// The program and the child that reads the content have at most 64 MiB for 20,000 files, and then 1.5 KiB for each.
func TestImagesNeedLittleMemory(t *testing.T) {
	i, h := newImageTools(t), newImageHost(t)
	const base, few, each = 64 << 20, 20_000, 3 << 9
	counts := []int{few}
	if os.Getenv(failpointsVariable) == "all" {
		counts = append(counts, 10*few)
	}
	for _, n := range counts {
		archive := manyFiles(t, n)
		bound := int64(base + (n-few)*each)
		for what, cmd := range map[string]*exec.Cmd{
			"import": h.image("import", "--quiet", archive, "--name", "imported"),
			"pull":   h.image("pull", "--quiet", i.pushed(archive)),
		} {
			got, bytes := measured(t, cmd)
			if got.code != 0 {
				t.Fatalf("%s: %+v", what, got)
			}
			t.Logf("%s of %d files: %d KiB", what, n, bytes>>10)
			if bytes > bound {
				t.Errorf("%s of %d files took %d bytes of memory, more than %d", what, n, bytes, bound)
			}
			h.good("rm", strings.TrimSpace(got.stdout))
		}
	}
}

// pushed puts the tar of a root into a registry, and returns the name of the image.
func (i *imageTools) pushed(archive string) string {
	i.t.Helper()
	layout := filepath.Join(i.t.TempDir(), "layout")
	i.run("umoci", "init", "--layout", layout)
	i.run("umoci", "new", "--image", layout+":1")
	i.run("umoci", "raw", "add-layer", "--image", layout+":1", archive)
	name := i.serveRegistry("", false) + "/some/image:1"
	i.run("skopeo", "copy", "--dest-tls-verify=false", "oci:"+layout+":1", "docker://"+name)
	return name
}
