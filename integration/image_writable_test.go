package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newWritableRoots is a host with the image app, whose roots can be writable.
func newWritableRoots(t *testing.T) *imageHost {
	t.Helper()
	need(t, layersOfAnywhere(t))
	h := newImageRoots(t)
	h.good("import", "--name", "app", "-q", saved(t, system(t), map[string]any{"User": "0", "WorkingDir": "/"}))
	return h
}

// system makes the tree of an image with a shell and files to change. The files belong to root in the image.
func system(t *testing.T) string {
	t.Helper()
	dir := programs(t)
	for _, name := range []string{"mkdir", "rm", "mv", "chmod", "chown", "dd", "stat", "echo", "sleep", "wc"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"srv/big": strings.Repeat("0123456789", 1<<20), "srv/dir/one": "one\n", "srv/dir/two": "two\n", "srv/old": "old\n", "srv/owned": "owned\n", "etc/hosts": "",
	} {
		testhost.WriteFile(t, filepath.Join(dir, name), text)
	}
	err := errors.Join(
		unix.Setxattr(filepath.Join(dir, "srv/old"), "user.note", []byte("kept"), 0),
		os.Chmod(filepath.Join(dir, "srv/owned"), 0o755|os.ModeSetuid),
	)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// writable makes a sandbox of the image, which the end of the test removes.
func (h *imageHost) writable(name string, flags ...string) {
	h.t.Helper()
	if got := h.run(slices.Concat([]string{"up", "--image", "app", "--writable"}, flags, []string{name})...); got.code != 0 || got.stdout != name+"\n" {
		h.t.Fatalf("up %s: %+v", name, got)
	}
	h.t.Cleanup(func() { h.downImage(name) })
}

// downImage removes a sandbox that the test has left.
func (h *imageHost) downImage(name string) {
	if !exists(filepath.Join(h.root, "@sandboxes", name)) {
		return
	}
	if got := h.run("down", name); got.code != 0 {
		h.t.Errorf("down %s: %+v", name, got)
	}
}

// in runs a script as root of the sandbox.
func (h *imageHost) in(name, script string) string {
	h.t.Helper()
	got := h.run("exec", "--user", "0", name, "sh", "-c", script)
	if got.code != 0 || got.stderr != "" {
		h.t.Errorf("in %s, %q: %+v", name, script, got)
	}
	return got.stdout
}

// changed lists the changes of a sandbox, each as a kind and a path.
func (h *imageHost) changed(name string) (all []string) {
	h.t.Helper()
	got := h.run("changes", "--json", name)
	if got.code != 0 {
		h.t.Fatalf("changes: %+v", got)
	}
	for line := range strings.Lines(got.stdout) {
		var c spec.Change
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			h.t.Fatal(err)
		}
		all = append(all, string(c.Kind)+" "+c.Path)
	}
	return all
}

func wantChanges(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("changes: %q, want %q", got, want)
	}
}

func TestImagesTakeWritesOnALayer(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	h.writable("other")
	wantChanges(t, h.changed("box"))
	h.in("box", "cd /; rm bin/id; mv srv/dir srv/moved; echo more >>srv/big; chmod 700 etc; rm srv/old; echo new >srv/old; mkdir -p opt/a; echo x >opt/a/x; ln -s x opt/a/link; echo x >top")
	wantChanges(t, h.changed("box"),
		"deleted /bin/id", "modified /etc", "created /opt", "created /opt/a", "created /opt/a/link", "created /opt/a/x",
		"modified /srv/big", "deleted /srv/dir", "created /srv/moved", "created /srv/moved/one", "created /srv/moved/two", "modified /srv/old", "created /top")
	if got := h.in("box", "stat -c %a /srv/owned; cat /srv/moved/one /srv/old; busybox tail -c 10 /srv/big; wc -c </srv/big"); got != "4755\none\nnew\n56789more\n10485765\n" {
		t.Errorf("box has %q", got)
	}
	wantChanges(t, h.changed("other"))
	if got := h.in("other", "ls /bin/id /srv; cat /srv/old"); got != "/bin/id\n\n/srv:\nbig\ndata\ndir\nold\nowned\nold\n" {
		t.Errorf("other has %q", got)
	}
	h.good("verify", "app")
	for _, args := range [][]string{{"apply", "box"}, {"apply", "--yes", "box", "/etc"}, {"apply", "--dry-run", "box"}} {
		wantFailure(t, h.run(args...), "nothing of the host is below")
	}
	file := filepath.Join(t.TempDir(), "box.tar")
	if got := h.run("save", "box", file); got.code != 0 {
		t.Errorf("save: %+v", got)
	}
	listed, err := exec.Command("tar", "-tf", file).Output()
	for _, name := range []string{"bin/.wh.id\n", "srv/.wh.dir\n", "srv/moved/one\n", "opt/a/link\n", "top\n"} {
		if err != nil || !strings.Contains("\n"+string(listed), "\n"+name) {
			t.Errorf("the file has no %q: %q, %v", name, listed, err)
		}
	}
	if got := h.run("diff", "box"); !strings.Contains(got.stdout, "+++ b/top\n") {
		t.Errorf("diff: %+v", got)
	}
	h.bad("in use by sandbox box", "rm", "app")
	for _, name := range []string{"box", "other"} {
		h.downImage(name)
	}
	h.good("rm", "app")
}

// The files of a sandbox in memory are gone after a crash of the host, and the use of the image with them. No trace
// of the sandbox would lead to the use.
func TestAUseOfAnImageLastsAsLongAsTheFiles(t *testing.T) {
	h := newWritableRoots(t)
	for flags, outlives := range map[string]bool{"--storage=memory": false, "--disk=4m": false, "--storage=disk": true, "--disk=64m": true} {
		h.writable("box", flags) // a file system of 4m is too small for the disk
		uses, err := filepath.Glob(filepath.Join(h.data, "images/users/0/uses/*"))
		if err != nil || len(uses) != 1 {
			t.Fatalf("%s: uses %q, %v", flags, uses, err)
		}
		var use struct{ Boot string }
		text, err := os.ReadFile(uses[0])
		if link, lerr := os.Readlink(uses[0]); lerr == nil { // until the next boot, the content is that of a link
			text, err = []byte(link), nil
		}
		if err := errors.Join(err, json.Unmarshal(text, &use)); err != nil || (use.Boot == "") != outlives {
			t.Errorf("%s: %s, %v", flags, text, err)
		}
		h.downImage("box")
	}
}

// Root of an image has no rights over other ids, and set-user-ID files and devices have no effect.
func TestWritableRootsGiveNoRights(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	got := h.run("exec", "--user", "0", "box", "sh", "-c", "busybox mknod /null c 1 3; chown 7 /top; cp /bin/busybox /top; chmod 4755 /top; busybox grep CapEff /proc/self/status; busybox mount -t tmpfs none /srv; echo >/sys/x; echo >/proc/sys/kernel/domainname")
	for _, words := range []string{"mknod: /null: Operation not permitted", "Operation not permitted", "CapEff:\t0000000000000000", "can't create /sys/x: Read-only file system", "domainname: Read-only file system"} {
		if !strings.Contains(got.stdout+got.stderr, words) {
			t.Errorf("no %q in %+v", words, got)
		}
	}
	if got := h.run("exec", "--user", "1000", "box", "/srv/owned"); got.code != 126 && got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := h.run("exec", "--user", "1000", "box", "sh", "-c", "busybox cp /bin/busybox /tmp/b; busybox touch /etc/x"); !strings.Contains(got.stderr, "Permission denied") {
		t.Errorf("a user wrote to a directory of the image's root: %+v", got)
	}
}

func TestWritableRootsHaveLimits(t *testing.T) {
	h := newWritableRoots(t)
	for _, storage := range []string{"memory", "disk"} {
		for flags, script := range map[string]string{
			"--disk=32m":   "dd if=/dev/zero of=/srv/big bs=1M count=64",
			"--files=4096": "i=0; while [ $i -lt 5000 ]; do : >/srv/$i || exit 1; i=$((i+1)); done",
		} {
			got := h.run("do", "--image", "app", "--writable", "--storage", storage, flags, "--", "/bin/sh", "-c", script)
			if got.code == 0 || !strings.Contains(got.stderr, "No space left on device") {
				t.Errorf("%s, %s: %+v", storage, flags, got)
			}
		}
	}
	if left := h.uses(); len(left) > 0 {
		t.Errorf("uses: %q", left)
	}
	h.good("verify", "app")
}

// A package manager writes thousands of files in many directories.
func TestWritableRootsTakeManyFiles(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box", "--files", "10000")
	h.in("box", "i=0; while [ $i -lt 50 ]; do mkdir -p /usr/lib/p$i; j=0; while [ $j -lt 40 ]; do echo $j >/usr/lib/p$i/f$j; j=$((j+1)); done; i=$((i+1)); done")
	if got := len(h.changed("box")); got != 2+50+50*40 {
		t.Errorf("%d changes", got)
	}
}

// The files of a command's Result are compared with those of the image. The files of the host do not matter, and
// nothing tells which of them are there.
func TestChangedFilesOfAWritableRoot(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	if !exists("/etc/shells") {
		t.Fatal("the test needs a file of the host that the image lacks")
	}
	got := h.run("exec", "--json", "box", "--", "/bin/sh", "-c", "echo new >/srv/old; echo x >/etc/shells; rm /srv/dir/one; echo x >/srv/dir/three")
	var o outcome
	decode(t, got.stdout, &o)
	if o.Files == nil || o.Status != "exited" || o.ExitCode != 0 {
		t.Fatalf("%+v", got)
	}
	if !slices.Equal(o.Files.Created, []string{"/etc/shells", "/srv/dir/three"}) || !slices.Equal(o.Files.Modified, []string{"/srv/old"}) || !slices.Equal(o.Files.Deleted, []string{"/srv/dir/one"}) {
		t.Errorf("%+v", o.Files)
	}
}

func TestSnapshotsOfWritableRoots(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	h.in("box", "rm /bin/id; echo first >/srv/old")
	if got := h.run("snapshot", "box", "snap"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { h.run("snapshot", "--remove", "snap") })
	h.in("box", "echo second >/srv/old; echo x >/later")
	if got := h.in("box", "cat /srv/old /later; ls /proc/self/fd | wc -l; echo t >/tmp/t; cat /etc/hostname"); got != "second\nx\n4\nsandbox\n" {
		t.Errorf("after the snapshot the sandbox has %q", got)
	}
	wantChanges(t, h.changed("box"), "deleted /bin/id", "created /later", "modified /srv/old")
	h.good("import", "--name", "app", "-q", programs(t)) // the name is of another image now
	if got := h.run("up", "--from", "snap", "fork"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { h.downImage("fork") })
	if got := h.in("fork", "cat /srv/old; ls /later /bin/id 2>&1; :"); got != "first\nls: /later: No such file or directory\nls: /bin/id: No such file or directory\n" {
		t.Errorf("the fork has %q", got)
	}
	wantChanges(t, h.changed("fork"), "deleted /bin/id", "modified /srv/old")
	wantFailure(t, h.run("up", "--image", "app", "--writable", "--from", "snap", "none"), "has files above the image")
	wantFailure(t, h.run("up", "--image", "app", "--from", "snap", "none"), "has files above the image")
	for _, name := range []string{"box", "fork"} {
		h.downImage(name)
	}
	h.good("rm", "app")
	if h.good("prune"); len(h.uses()) != 1 {
		t.Errorf("uses of the snapshot: %q", h.uses())
	}
	if got := h.run("up", "--from", "snap", "fork"); got.code != 0 {
		t.Errorf("after a prune: %+v", got)
	}
	wantChanges(t, h.changed("fork"), "deleted /bin/id", "modified /srv/old")
	h.downImage("fork")
	if got := h.run("snapshot", "--remove", "snap"); got.code != 0 || len(h.uses()) > 0 {
		t.Errorf("%+v, uses %q", got, h.uses())
	}
	if got := h.good("prune"); !strings.Contains(got, "Deleted: sha256:") {
		t.Errorf("prune: %q", got)
	}
}

// A process with its directory in the root, or with an open file, keeps the root as it is.
func TestSnapshotsOfWritableRootsInUse(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	t.Cleanup(func() { h.run("snapshot", "--remove", "snap") })
	if got := h.run("cp", testhost.Headless(t), "box:/tmp/headless"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	const outlives = "/tmp/headless >/tmp/ready & echo $! >/tmp/pid; until grep -q ready /tmp/ready; do sleep 0.1; done; "
	for script, words := range map[string]string{
		"cd /srv; touch /tmp/here; exec sleep 1000":                               "its directory in",
		"exec 5</srv/old; touch /tmp/here; exec sleep 1000":                       "open",
		"cd /srv; " + outlives + "cd /; touch /tmp/here; exec sleep 1000":         "(headless) has its directory in",
		"exec 5</srv/old; " + outlives + "exec 5<&-; touch /tmp/here; sleep 1000": "(headless) has /srv/old open",
	} {
		if got := h.run("exec", "--user", "0", "--detach", "box", "sh", "-c", script); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		testhost.Eventually(t, "the process is there", func() bool { return h.run("exec", "box", "ls", "/tmp/here").code == 0 })
		wantFailure(t, h.run("snapshot", "box", "snap"), words)
		h.in("box", "rm /tmp/here; busybox killall sleep; echo x >/srv/still; ! test -e /tmp/pid || kill -9 $(cat /tmp/pid); rm -f /tmp/pid /tmp/ready")
	}
	if got := h.run("exec", "--user", "0", "--detach", "box", "sh", "-c", "cd /; touch /tmp/here; until ls /srv/after >/tmp/seen; do sleep 0.1; done"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	testhost.Eventually(t, "the process is there", func() bool { return h.run("exec", "box", "ls", "/tmp/here").code == 0 })
	if got := h.run("snapshot", "box", "snap"); got.code != 0 {
		t.Errorf("a process in / is moved to the new root: %+v", got)
	}
	h.in("box", "echo x >/srv/after")
	testhost.Eventually(t, "the process sees what is written after the snapshot", func() bool { return h.in("box", "cat /tmp/seen") == "/srv/after\n" })
}

func TestDiscardOfWritableRoots(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	h.in("box", "rm /bin/id; echo x >/new; echo x >>/srv/big")
	if got := h.run("discard", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	wantChanges(t, h.changed("box"))
	if got := h.in("box", "ls /bin/id /new 2>&1; cat /etc/hostname; wc -c </srv/big; echo x >/again"); got != "ls: /new: No such file or directory\n/bin/id\nsandbox\n10485760\n" {
		t.Errorf("%q", got)
	}
	wantChanges(t, h.changed("box"), "created /again")
}

func TestTransactionsInWritableRoots(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	transaction := func(script string) result {
		return h.run("exec", "--user", "0", "--transaction", "box", "sh", "-c", script)
	}
	if got := transaction("rm /bin/id; echo x >/new; mkdir /dir; cat /etc/hostname; ls /dev/null; false"); got.code != 1 || got.stdout != "sandbox\n/dev/null\n" {
		t.Errorf("%+v", got)
	}
	wantChanges(t, h.changed("box"))
	if got := transaction("rm /bin/id; echo x >/new; mkdir /dir; echo y >/dir/y; echo more >>/srv/old"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	wantChanges(t, h.changed("box"), "deleted /bin/id", "created /dir", "created /dir/y", "created /new", "modified /srv/old")
	if got := h.in("box", "cat /dir/y /srv/old"); got != "y\nold\nmore\n" {
		t.Errorf("%q", got)
	}
	if got := h.run("undo", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := h.in("box", "cat /srv/old; ls /bin/id /dir 2>&1; :"); got != "old\nls: /dir: No such file or directory\n/bin/id\n" {
		t.Errorf("after undo there is %q", got)
	}
}

func TestWritableRootsBesideDirectoriesOfTheHost(t *testing.T) {
	h := newWritableRoots(t)
	work, over, bound := openDir(t), openDir(t), openDir(t)
	for _, dir := range []string{work, over, bound} {
		writeFile(t, filepath.Join(dir, "file"), "of the host\n")
	}
	h.writable("box", "--workspace", work, "--overlay", over, "--bind", bound+":/mnt/deep/bound", "--bind", bound+":/srv/rw:rw")
	wantChanges(t, h.changed("box"))
	h.in("box", fmt.Sprintf("cat /workspace/file /mnt/deep/bound/file; echo w >/workspace/w; echo o >%s/o; echo r >/srv/rw/r; echo x >/x", over))
	for _, name := range []string{work + "/w", bound + "/r"} {
		if !exists(name) {
			t.Errorf("%s was not written", name)
		}
	}
	wantChanges(t, h.changed("box"), "created /x", "created "+over+"/o")
	for _, args := range [][]string{{"snapshot", "box", "snap"}, {"snapshot", "--remove", "snap"}, {"discard", "box"}} {
		h.in("box", fmt.Sprintf("echo o >%s/o; echo x >/x", over))
		if got := h.run(args...); got.code != 0 {
			t.Errorf("%q: %+v", args, got)
		}
		h.in("box", "cat /workspace/file /mnt/deep/bound/file /srv/rw/r; echo more >>/srv/rw/r")
	}
	h.in("box", fmt.Sprintf("echo o >%s/o; echo x >/x", over))
	got := h.run("apply", "--yes", "box")
	if got.code != 0 || !strings.Contains(got.stderr, "nothing of the host is below") || !exists(over+"/o") {
		t.Errorf("apply: %+v", got)
	}
	if exists("/x") {
		t.Error("a file of the image's root is on the host")
	}
	wantFailure(t, h.run("apply", "--yes", "box", "/x"), "nothing of the host is below")
}

func TestWritableRootsThatHaveStopped(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	h.in("box", "rm /bin/id; echo x >/new")
	killAndWait(t, h.pid("box"))
	wantChanges(t, h.changed("box"), "deleted /bin/id", "created /new")
	h.good("prune")
	got := h.run("up", "--image", "app", "--writable", "box")
	name := keptName(got.stderr)
	if got.code != 0 || name == "" {
		t.Fatalf("%+v", got)
	}
	wantChanges(t, h.changed("box"))
	if got := h.run("up", "--from", name, "fork"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	wantChanges(t, h.changed("fork"), "deleted /bin/id", "created /new")
	for _, name := range []string{"box", "fork"} {
		h.downImage(name)
	}
	if got := h.run("snapshot", "--remove", name); got.code != 0 || len(h.uses()) > 0 {
		t.Errorf("%+v, uses %q", got, h.uses())
	}
	h.good("rm", "app")
}

func TestWritableNeedsAnImage(t *testing.T) {
	h := newWritableRoots(t)
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"--writable: needs an image", []string{"--writable", "--", "true"}},
		{"--writable: needs an image", []string{"--writable", "--rootfs", "/", "--", "true"}},
		{"--apply: nothing of the host is below", []string{"--image", "app", "--writable", "--apply", "--", "true"}},
		{"--review: nothing of the host is below", []string{"--image", "app", "--writable", "--review", "--", "true"}},
	} {
		wantFailure(t, h.run(append([]string{"do"}, c.args...)...), c.words)
	}
	if left := h.uses(); len(left) > 0 {
		t.Errorf("uses: %q", left)
	}
}

// An ordinary user reads the changes with the rights of the user.
func TestUsersHaveWritableRoots(t *testing.T) {
	h := newWritableRoots(t)
	l := h.listen(`{"peers":[{"user":4242,"images":"1g"}]}`)
	user := newImageUser(t, 4242, l)
	tree := openDir(t)
	if out, err := exec.Command("cp", "-rT", system(t), tree).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	user.good("import", "--name", "mine", "-q", tree)
	as := func(args ...string) result {
		cmd := user.image()
		cmd.Args = slices.Concat(cmd.Args[:3], args)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.uid, Gid: user.uid}}
		return run(t, cmd)
	}
	if got := as("up", "--image", "mine", "--writable", "--user", "0", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { as("down", "box") })
	if got := as("exec", "box", "sh", "-c", "rm /bin/id && echo x >/srv/new && chmod 600 /srv/old && echo more >>/srv/old"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	got := as("changes", "--json", "box")
	for _, words := range []string{`"path":"/bin/id","kind":"deleted"`, `"path":"/srv/new","kind":"created"`, `"path":"/srv/old","kind":"modified"`} {
		if !strings.Contains(got.stdout, words) {
			t.Errorf("no %s in %+v", words, got)
		}
	}
	file := filepath.Join(user.home, "box.tar")
	if got := as("save", "box", file); got.code != 0 || !exists(file) {
		t.Errorf("%+v", got)
	}
	wantFailure(t, as("apply", "--yes", "box"), "nothing of the host is below")
	if got := as("down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// Killed at any moment, a snapshot of a root is there or not, and the sandbox goes on with the same files.
func TestSnapshotOfAWritableRootKilledAtFailpoints(t *testing.T) {
	h := newWritableRoots(t)
	h.writable("box")
	strike := func(n int) failpoint.Trace {
		cmd := exec.Command(binary(t), "--root", h.root, "--data", h.data, "snapshot", "box", "snap")
		cmd.Env = h.env
		trace, err := failpoint.Run(cmd, n, patience)
		if err != nil {
			t.Fatal(err)
		}
		return trace
	}
	h.in("box", "echo old >/srv/old; echo old >/file")
	points := len(strike(0).Points)
	kills, snapshots := 0, 0
	const last = 30 // the mounts change then
	all := someFailpoints(points-last, 8)
	for n := points - last + 1; n <= points; n += 2 {
		all = append(all, n)
	}
	for i, n := range all {
		h.run("snapshot", "--remove", "snap")
		h.in("box", "echo old >/srv/old; echo old >/file")
		trace := strike(n)
		if trace.Killed {
			kills++
		}
		at := fmt.Sprintf("killed at %d, %v", n, trace.Points[len(trace.Points)-1])
		if i%2 == 0 {
			if got := h.run("prune"); got.code != 0 {
				t.Fatalf("%s: prune: %+v", at, got)
			}
		}
		if got := h.in("box", "cat /srv/old /file; echo new >/srv/old; cat /srv/old; ls /dev/null; cat /etc/hostname"); got != "old\nold\nnew\n/dev/null\nsandbox\n" {
			t.Fatalf("%s: there is %q", at, got)
		}
		if got := h.changed("box"); !slices.Equal(got, []string{"created /file", "modified /srv/old"}) {
			t.Fatalf("%s: changes %q", at, got)
		}
		if h.run("snapshot", "--list").stdout == "snap\n" {
			snapshots++
			if got := h.run("up", "--from", "snap", "fork"); got.code != 0 {
				t.Fatalf("%s: %+v", at, got)
			}
			if got := h.in("fork", "cat /srv/old /file"); got != "old\nold\n" {
				t.Fatalf("%s: a fork has %q", at, got)
			}
			h.downImage("fork")
		}
	}
	t.Logf("%d failpoints, %d kills, %d times there was a snapshot", points, kills, snapshots)
	if kills == 0 || snapshots == 0 {
		t.Error("never killed, or always before there was a snapshot")
	}
	h.run("snapshot", "--remove", "snap")
	h.downImage("box")
	if got := h.run("prune"); got.code != 0 || len(h.uses()) > 0 {
		t.Errorf("%+v, uses %q", got, h.uses())
	}
}
