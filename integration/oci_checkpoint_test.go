package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// without has criu not on PATH, wherever the tests run.
func without(before func(*ociRuntime, *bundle)) func(*ociRuntime, *bundle) {
	return func(r *ociRuntime, b *bundle) {
		before(r, b)
		hideCRIU(r.t)
	}
}

// hideCRIU takes the folders that have criu from the test's PATH.
func hideCRIU(t testing.TB) {
	t.Helper()
	need(t, peers()) // looked for with the whole PATH
	folders := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool { return exists(filepath.Join(dir, "criu")) })
	t.Setenv("PATH", strings.Join(folders, ":"))
}

func nothing(*ociRuntime, *bundle) {}

func checkpointed(args ...string) []string {
	return append(append([]string{"checkpoint", "--image-path", "BUNDLE/image"}, args...), "c")
}

func restored(args ...string) []string {
	return append(append([]string{"restore", "--image-path", "BUNDLE/image", "--bundle", "BUNDLE"}, args...), "c")
}

var checkpointRefusals = []refusal{
	{name: "checkpoint of nothing", args: []string{"checkpoint"}, says: "requires exactly 1 argument"},
	{name: "checkpoint of an unknown id", args: checkpointed(), says: "container does not exist"},
	{name: "checkpoint of a created one", before: created, args: checkpointed(), says: "Container cannot be checkpointed in created state"},
	{name: "checkpoint of a stopped one", before: stopped, args: checkpointed(), says: "Container cannot be checkpointed in stopped state"},
	{name: "checkpoint without criu", before: without(started), args: checkpointed("--leave-running", "--tcp-established", "--tcp-skip-in-flight",
		"--link-remap", "--ext-unix-sk", "--shell-job", "--lazy-pages", "--status-fd", "1", "--page-server", "127.0.0.1:27", "--file-locks", "--pre-dump",
		"--manage-cgroups-mode", "ignore", "--empty-ns", "network", "--auto-dedup", "--work-path", "BUNDLE"), says: `"criu": executable file not found in \$PATH`},
	{name: "checkpoint of a paused one without criu", before: without(paused), args: checkpointed(), says: `"criu": executable file not found in \$PATH`},
	{name: "checkpoint where nothing can be written", before: started, args: []string{"checkpoint", "--image-path", "/proc/image", "c"}, says: "/proc/image: no such file or directory"},
	{name: "checkpoint into a file", before: started, args: []string{"checkpoint", "--image-path", "BUNDLE/config.json", "c"}, says: "config.json: not a directory"},
	{name: "checkpoint with an absolute parent", before: started, args: checkpointed("--parent-path", "/tmp"), says: "--parent-path must be relative"},
	{name: "checkpoint with a missing parent", before: started, args: checkpointed("--parent-path", "../nobody"), says: "invalid --parent-path: .*nobody: no such file or directory"},
	{name: "checkpoint with a file for a parent", before: started, args: checkpointed("--parent-path", "../config.json"), says: "invalid --parent-path: .*config.json: not a directory"},
	{name: "checkpoint to a server without a port", before: started, args: checkpointed("--page-server", "127.0.0.1"), says: "Use --page-server ADDRESS:PORT to specify page server"},
	{name: "checkpoint to a server without an address", before: started, args: checkpointed("--page-server", ":27"), says: "Use --page-server ADDRESS:PORT to specify page server"},
	{name: "checkpoint to a server at no number", before: started, args: checkpointed("--page-server", "127.0.0.1:http"), says: "Invalid port number"},
	{name: "checkpoint with a namespace that cannot be empty", before: started, args: checkpointed("--empty-ns", "pid"), says: `namespace \\*"pid\\*" is not supported`},
	{name: "checkpoint with a status descriptor that is no number", before: started, args: checkpointed("--status-fd", "x"), says: "status-fd"},
	{name: "restore of nothing", args: []string{"restore"}, says: "requires exactly 1 argument"},
	{name: "restore of a missing bundle", args: []string{"restore", "--image-path", "BUNDLE/image", "--bundle", "/nowhere", "c"}, says: "/nowhere.*no such file or directory"},
	{name: "restore of an empty id", args: []string{"restore", "--image-path", "BUNDLE/image", "--bundle", "BUNDLE", ""}, says: "container id cannot be empty"},
	{name: "restore to an id in use", before: started, args: restored(), says: "container with given ID already exists"},
	{name: "restore with a namespace that cannot be empty", args: restored("--empty-ns", "pid"), says: `namespace \\*"pid\\*" is not supported`},
	{name: "restore without criu", before: without(nothing), args: restored("--tcp-established", "--ext-unix-sk", "--shell-job", "--file-locks",
		"--manage-cgroups-mode", "soft", "--detach", "--pid-file", "BUNDLE/pid", "--no-subreaper", "--no-pivot", "--empty-ns", "network", "--auto-dedup",
		"--lazy-pages", "--lsm-profile", "apparmor:x", "--lsm-mount-context", "x", "--work-path", "BUNDLE"), says: `"criu": executable file not found in \$PATH`},
	{name: "restore in the background with a terminal", spec: func(s *specs.Spec) { s.Process.Terminal = true },
		args: restored("--detach"), says: "cannot allocate tty if .* will detach without setting console socket"},
	{name: "restore with a console socket and no terminal", args: restored("--console-socket", "/nowhere"),
		says: "cannot use console socket if .* will not detach or allocate tty"},
}

// criuWorks says whether criu, if there is one on PATH, can do anything on this
// kernel.
func criuWorks() bool { return exec.Command("criu", "check").Run() == nil }

// saying is a program that counts aloud, which a checkpoint must not disturb.
func saying(t *testing.T) *bundle {
	t.Helper()
	return newBundle(t, []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"}, func(s *specs.Spec) {
		// To lock a network of its own, criu would need iptables.
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(44))}
		if cgroupV2() {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
		}
	})
}

// cgroupV2 says whether this host has no v1 controllers.
func cgroupV2() bool {
	var st unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// counted is the last number that p has said; it fails if one is missing.
func counted(t *testing.T, p *testProcess, first int) (last int) {
	t.Helper()
	last = first - 1
	for line := range strings.Lines(p.stdout()) {
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || n != last+1 {
			t.Fatalf("after %d it says %q", last, line)
		}
		last = n
	}
	return last
}

// A checkpoint is a container's whole way to disk and back.
type checkpoint struct {
	r           *ociRuntime
	b           *bundle
	image, work string // folders
}

func newCheckpoint(t *testing.T, r *ociRuntime) *checkpoint {
	t.Helper()
	dir := t.TempDir()
	return &checkpoint{r: r, b: saying(t), image: filepath.Join(dir, "image"), work: filepath.Join(dir, "work")}
}

// run starts the container and has it count to three.
func (c *checkpoint) run(t *testing.T) *testProcess {
	t.Helper()
	p := start(t, c.r.command("run", "--bundle", c.b.dir, "c"))
	eventually(t, "it counts", func() bool { return counted(t, p, 1) >= 3 })
	return p
}

func (c *checkpoint) save(flags ...string) result {
	args := append([]string{"checkpoint", "--image-path", c.image, "--work-path", c.work}, flags...)
	return run(c.r.t, c.r.command(append(args, "c")...))
}

// restore returns the restored container once it counts.
func (c *checkpoint) restore(t *testing.T, next int, flags ...string) *testProcess {
	t.Helper()
	args := append([]string{"restore", "--image-path", c.image, "--work-path", c.work, "--bundle", c.b.dir}, flags...)
	p := start(t, c.r.command(append(args, "c")...))
	eventually(t, "it counts on", func() bool {
		if p.ended() && p.stdout() == "" {
			t.Fatalf("restore: %s; %s", p.stderr(), tail(filepath.Join(c.work, "restore.log")))
		}
		return counted(t, p, next) >= next+3
	})
	return p
}

// tail is the end of a log that may not be there.
func tail(path string) string {
	data, _ := os.ReadFile(path)
	return string(data[max(0, len(data)-2000):])
}

// mustSave makes a checkpoint and says what criu says if it fails.
func (c *checkpoint) mustSave(t *testing.T, flags ...string) {
	t.Helper()
	if got := c.save(flags...); got.code != 0 {
		t.Fatalf("checkpoint: %+v; %s", got, tail(filepath.Join(c.work, "dump.log")))
	}
}

// Where criu does not work, for this host has none or it does not know the
// kernel, both refuse alike and the container goes on. The cgroup v2 guest
// (integration/vm) has one that works.
func TestCheckpointWithoutAWorkingCRIUChangesNothing(t *testing.T) {
	leavesNothing(t)
	if criuWorks() {
		hideCRIU(t)
	}
	try := func(r *ociRuntime) (result, result) {
		c := newCheckpoint(t, r)
		p := c.run(t)
		save := c.save()
		if got := r.state("c").Status; got != "running" {
			t.Errorf("%s: %s after the checkpoint failed", r.program, got)
		}
		said := counted(t, p, 1)
		eventually(t, "it counts on", func() bool { return counted(t, p, 1) > said })
		r.run("kill", "c", "9")
		p.wait()
		back := run(t, r.command("restore", "--image-path", c.image, "--bundle", c.b.dir, "c"))
		return save, back
	}
	save, back := try(ours(t))
	wantSave, wantBack := try(reference(t))
	for name, got := range map[string][2]result{"checkpoint": {save, wantSave}, "restore": {back, wantBack}} {
		if got[0].code != 1 || got[0].code != got[1].code || !strings.Contains(got[0].stderr, strings.TrimSpace(got[1].stderr)) {
			t.Errorf("%s: %+v, runc's %+v", name, got[0], got[1])
		}
	}
}

// withCRIU makes the claim of runc and of ours where criu works; see the test
// above for elsewhere.
func withCRIU(t *testing.T, claim func(*testing.T, *ociRuntime)) {
	t.Helper()
	if !criuWorks() {
		need(t, "criu does not work here")
	}
	haveGzip(t)
	likeRunc(t, claim)
}

// haveGzip puts a gzip on PATH, which criu packs a tmpfs with.
func haveGzip(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("gzip"); err == nil {
		return
	}
	need(t, peers())
	dir := t.TempDir()
	if err := os.Symlink(peer("bin/busybox"), filepath.Join(dir, "gzip")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", os.Getenv("PATH")+":"+dir)
}

func TestCheckpointAndRestoreGoOn(t *testing.T) {
	withCRIU(t, func(t *testing.T, r *ociRuntime) {
		c := newCheckpoint(t, r)
		p := c.run(t)
		c.mustSave(t)
		if got := p.wait(); got.code != 137 {
			t.Errorf("run: %d", got.code)
		}
		if ids := r.ids(); len(ids) != 0 {
			t.Errorf("containers left: %q", ids)
		}
		for _, file := range []string{c.image + "/inventory.img", c.image + "/descriptors.json", c.work + "/dump.log"} {
			if !exists(file) {
				t.Errorf("no %s", file)
			}
		}
		pidFile := filepath.Join(t.TempDir(), "pid")
		p = c.restore(t, counted(t, p, 1)+1, "--pid-file", pidFile)
		s := r.state("c")
		if s.Status != "running" || strconv.Itoa(s.PID) != content(t, pidFile) || s.Bundle != c.b.dir {
			t.Errorf("state %+v, pid file %s", s, content(t, pidFile))
		}
		if got := limitOf(t, s.PID, "pids.max", "pids.max"); got != "44" {
			t.Errorf("pids.max %s", got)
		}
		if got := r.run("exec", "c", "cat", "/proc/1/comm").stdout; got != "sh\n" {
			t.Errorf("exec: %q", got)
		}
		r.run("pause", "c")
		r.run("resume", "c")
		r.run("kill", "c", "9")
		if got := p.wait(); got.code != 137 {
			t.Errorf("restore: %+v", got)
		}
		if ids := r.ids(); len(ids) != 0 {
			t.Errorf("containers left: %q", ids)
		}
	})
}

func TestCheckpointLeavesRunning(t *testing.T) {
	withCRIU(t, func(t *testing.T, r *ociRuntime) {
		c := newCheckpoint(t, r)
		p := c.run(t)
		c.mustSave(t, "--leave-running")
		said := counted(t, p, 1)
		eventually(t, "it counts on", func() bool { return counted(t, p, 1) > said })
		r.run("kill", "c", "9")
		p.wait()
	})
}

func TestCheckpointOnTopOfAPreDump(t *testing.T) {
	withCRIU(t, func(t *testing.T, r *ociRuntime) {
		c := newCheckpoint(t, r)
		p := c.run(t)
		parent := *c
		parent.image = filepath.Join(filepath.Dir(c.image), "parent")
		parent.mustSave(t, "--pre-dump")
		if got := r.state("c").Status; got != "running" {
			t.Errorf("after the pre-dump: %s", got)
		}
		c.mustSave(t, "--parent-path", "../parent", "--auto-dedup")
		p.wait()
		p = c.restore(t, counted(t, p, 1)+1)
		r.run("kill", "c", "9")
		p.wait()
	})
}

func TestRestoreDetached(t *testing.T) {
	withCRIU(t, func(t *testing.T, r *ociRuntime) {
		c := newCheckpoint(t, r)
		p := c.run(t)
		c.mustSave(t, "--file-locks", "--ext-unix-sk", "--tcp-established", "--manage-cgroups-mode", "soft", "--empty-ns", "network")
		p.wait()
		cmd := r.command("restore", "--image-path", c.image, "--bundle", c.b.dir, "--detach", "--file-locks", "--ext-unix-sk", "--tcp-established", "c")
		// Its standard streams must be pipes, as they were.
		out := pipes(t, cmd)
		if err := cmd.Run(); err != nil {
			t.Fatalf("restore --detach: %v; %s", err, tail(filepath.Join(c.image, "restore.log")))
		}
		if line := out(); line != fmt.Sprintln(counted(t, p, 1)+1) {
			t.Errorf("it says %q after %d", line, counted(t, p, 1))
		}
		if got := r.state("c").Status; got != "running" {
			t.Errorf("restored: %s", got)
		}
		r.run("delete", "--force", "c")
	})
}

// pipes gives the command pipes for its standard streams; out reads a line.
func pipes(t *testing.T, cmd *exec.Cmd) (out func() string) {
	t.Helper()
	var ends []*os.File
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		ends = append(ends, r, w)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ends[0], ends[3], ends[5]
	return func() string {
		var line []byte
		for !slices.Contains(line, '\n') {
			b := make([]byte, 1)
			if _, err := ends[2].Read(b); err != nil {
				t.Fatal(err)
			}
			line = append(line, b...)
		}
		return string(line)
	}
}

func TestRestoreOfWhatIsNoCheckpoint(t *testing.T) {
	withCRIU(t, func(t *testing.T, r *ociRuntime) {
		b := saying(t)
		got := run(t, r.command("restore", "--image-path", filepath.Join(b.dir, "nowhere"), "--bundle", b.dir, "c"))
		if got.code != 1 || !strings.Contains(got.stderr, "no such file or directory") || len(r.ids()) != 0 {
			t.Errorf("got %+v, left %q", got, r.ids())
		}
		r.started(b)
		got = run(t, r.command("checkpoint", "--image-path", filepath.Join(b.dir, "image"), "--manage-cgroups-mode", "nonsense", "c"))
		if got.code != 1 || !strings.Contains(got.stderr, "invalid manage-cgroups-mode value") {
			t.Errorf("got %+v", got)
		}
	})
}
