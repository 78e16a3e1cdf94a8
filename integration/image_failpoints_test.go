package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// An imageOrdeal is a command about images that is disturbed, each time on a store in the same state.
type imageOrdeal struct {
	*imageHost
	t *testing.T
	// before prepares the store. Without before the image "new" is missing.
	before func(*imageHost)
	// args are the command.
	args []string
	// again says that the command succeeds when it has succeeded before.
	again bool
	// after are the files of the store after the undisturbed command.
	after []string
}

func imageOrdeals(i *imageTools) map[string]imageOrdeal {
	layer := tarOfImage(i.t, imageFile("bin/program", strings.Repeat("text", 5000)), imageSymlink("link", "bin/program"))
	archive := dockerArchive(i.t, []string{"new"}, layer, tarOfImage(i.t, imageFile("second", "layer")))
	pulled := i.serveRegistry("", false) + "/some/image:1"
	i.run("skopeo", "copy", "--dest-tls-verify=false", "docker-archive:"+archive, "docker://"+pulled)
	return map[string]imageOrdeal{
		"pull":   {args: []string{"pull", "--quiet", "--name", "new", pulled}, again: true},
		"import": {args: []string{"import", "--quiet", archive}, again: true},
		"rm":     {args: []string{"rm", "new"}, before: func(h *imageHost) { h.good("import", "-q", archive) }},
		"prune":  {args: []string{"prune"}, before: func(h *imageHost) { h.good("import", "-q", imageTree(i.t, "nameless")) }, again: true},
	}
}

// reset brings the store into the state before the command. The image "kept" stays.
func (o *imageOrdeal) reset() {
	o.t.Helper()
	for _, image := range o.list() {
		for _, r := range image.References {
			if r.Name == "docker.io/library/new:latest" {
				o.good("rm", "new")
			}
		}
	}
	o.good("prune")
	if err := os.RemoveAll(o.cache()); err != nil { // which would spare the download
		o.t.Fatal(err)
	}
	if o.before != nil {
		o.before(o.imageHost)
	}
}

// cache is the directory of downloads.
func (h *imageHost) cache() string {
	for _, variable := range slices.Backward(h.env) {
		if dir, ok := strings.CutPrefix(variable, "XDG_CACHE_HOME="); ok {
			return dir
		}
	}
	return ""
}

// files are the paths in the store.
func (o *imageOrdeal) files() (all []string) {
	o.t.Helper()
	err := filepath.WalkDir(filepath.Join(o.data, "images"), func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return all
}

// check holds that the store is whole, and that one more command succeeds.
func (o *imageOrdeal) check(when string) {
	o.t.Helper()
	for _, args := range [][]string{{"ls"}, {"verify"}} {
		if got := run(o.t, o.image(args...)); got.code != 0 || got.stderr != "" {
			o.t.Errorf("%s: image %q: %s", when, args, answered(got))
		}
	}
	got := run(o.t, o.image(o.args...))
	if done := !o.again && strings.Contains(got.stderr, "no such image"); got.code != 0 && !done {
		o.t.Errorf("%s, and again: %s", when, answered(got))
	}
	if now := o.files(); !slices.Equal(now, o.after) {
		o.t.Errorf("%s, and again:\n%q, want\n%q", when, now, o.after)
	}
	// Temporary files are manifests and configs. A later pull removes them after some days.
	parts, err := filepath.Glob(filepath.Join(o.cache(), "sandbox-runtime/images/partial/*"))
	parts = slices.DeleteFunc(parts, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "tmp-") })
	if err != nil || len(parts) > 0 {
		o.t.Errorf("%s, and again: %q are left in the cache, %v", when, parts, err)
	}
	if got := run(o.t, o.image("prune")); got.code != 0 || got.stderr != "" {
		o.t.Errorf("%s: prune: %s", when, answered(got))
	}
}

// eachImageOrdeal runs a test with each command on a host's store.
func eachImageOrdeal(t *testing.T, test func(o *imageOrdeal)) {
	i := newImageTools(t)
	for name, o := range imageOrdeals(i) {
		t.Run(name, func(t *testing.T) {
			o.imageHost, o.t = newImageHost(t), t
			test(&o)
		})
	}
}

// undisturbed prepares the store, and notes what the command leaves.
func (o *imageOrdeal) undisturbed() {
	o.t.Helper()
	o.good("import", "-q", "--name", "kept", imageTree(o.t, "kept"))
	o.reset()
	o.good(o.args...)
	o.after = o.files()
	o.reset()
}

// A command that is killed at any time leaves a whole store. One more command succeeds, and nothing is left on the host.
func TestImageCommandsKilledAtFailpoints(t *testing.T) {
	eachImageOrdeal(t, func(o *imageOrdeal) {
		o.undisturbed()
		before, err := readHost()
		if err != nil {
			o.t.Fatal(err)
		}
		points := len(o.strike(0).Points)
		const strikes = 15 // more take too long for each run
		kills := 0
		for _, n := range someFailpoints(points, max(1, points/strikes)) {
			o.reset()
			trace := o.strike(n)
			when := "killed nowhere"
			if trace.Killed {
				kills++
				when = fmt.Sprintf("killed at %d, %v", n, trace.Points[n-1])
			}
			o.check(when)
			if left := before.differsFrom(readHost); left != "" {
				o.t.Errorf("%s: left behind:\n%s", when, left)
			}
			if o.t.Failed() {
				return
			}
		}
		if kills == 0 {
			o.t.Error("never killed")
		}
		o.t.Logf("%d failpoints, %d kills", points, kills)
	})
}

// strike kills the command at its n-th failpoint.
func (o *imageOrdeal) strike(n int) failpoint.Trace {
	o.t.Helper()
	cmd := o.image(o.args...)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1") // less of Go's own threads
	trace, err := failpoint.Run(cmd, n, patience)
	if err != nil {
		o.t.Fatal(err)
	}
	if !trace.Killed && trace.Status.ExitStatus() != 0 {
		o.t.Errorf("undisturbed: status %#x", trace.Status)
	}
	return trace
}

// A command without space fails in one line and leaves nothing half-made. With space it succeeds. A removal needs no space.
func TestImageCommandsOnAFullDisk(t *testing.T) {
	testhost.Long(t)
	eachImageOrdeal(t, func(o *imageOrdeal) {
		disk := filepath.Join(o.t.TempDir(), "disk")
		newFileSystem(o.t, "ext4", disk, 16)
		o.data = filepath.Join(disk, "data")
		o.env = append(o.env, "XDG_CACHE_HOME="+filepath.Join(disk, "cache"))
		o.undisturbed()
		filling := filepath.Join(disk, "filling")
		failed := 0
		for free := int64(0); ; free += 8 << 10 {
			fill(o.t, disk)
			if err := os.Truncate(filling, max(0, sizeOf(o.t, filling)-free)); err != nil {
				o.t.Fatal(err)
			}
			got := run(o.t, o.image(o.args...))
			if got.code == 0 {
				break
			}
			failed++
			when := fmt.Sprintf("with %d bytes", free)
			if !strings.Contains(got.stderr, "no space left on device") || strings.Count(got.stderr, "\n") != 1 {
				o.t.Errorf("%s: %s", when, answered(got))
			}
			if got := run(o.t, o.image("ls")); got.code != 0 || strings.Contains(got.stdout, "new") || !strings.Contains(got.stdout, "kept") {
				o.t.Errorf("%s: ls: %s", when, answered(got))
			}
			if left := o.drafts(); len(left) > 0 {
				o.t.Errorf("%s: left behind: %q", when, left)
			}
			if err := os.Remove(filling); err != nil {
				o.t.Fatal(err)
			}
			o.check(when)
			o.reset()
			if o.t.Failed() {
				return
			}
		}
		if removal := o.args[0] == "rm" || o.args[0] == "prune"; removal == (failed > 0) {
			o.t.Errorf("failed %d times", failed)
		}
		if err := os.Remove(filling); err != nil {
			o.t.Fatal(err)
		}
		o.check("with enough space")
		o.t.Logf("failed %d times", failed)
	})
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
