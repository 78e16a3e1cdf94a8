package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ownedTree is a directory of an ordinary user's, as a home is one, with a secret.
func ownedTree(t *testing.T, uid int) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"file": "old\n", "gone": "gone\n", "dir/sub/deep": "deep\n", ".ssh/id": "secret\n", ".netrc": "secret\n", ".config/own": "own\n", ".config/gh/hosts": "secret\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	own(t, dir, uid)
	return dir
}

// own gives a tree to a user.
func own(t *testing.T, dir string, uid int) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// stamped is a tree with all that a change of a file leaves a trace in.
func stamped(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		fmt.Fprintf(&b, "%s %d %o %d:%d %d %v\n", strings.TrimPrefix(path, dir), st.Ino, st.Mode, st.Uid, st.Gid, st.Size, st.Ctim)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestOverlayTakesTheWrites of a tree whose files are the sandbox user's inside,
// whoever they belong to outside, and of which the host sees nothing.
func TestOverlayTakesTheWrites(t *testing.T) {
	for _, uid := range []int{4242, 0} {
		s := newSandboxes(t)
		dir := ownedTree(t, uid)
		before := stamped(t, dir)
		got := s.do("--overlay", dir, "--cwd", dir, "--", "sh", "-ec", `
stat -c %U:%G . file dir/sub/deep
echo new > file; cat link
echo more >> dir/sub/deep; cat dir/sub/deep
rm gone; test ! -e gone
mv file moved; cat moved
chmod 600 dir/sub/deep; stat -c %a dir/sub/deep
ln -s nowhere dangling; readlink dangling
mv dir renamed; cat renamed/sub/deep; test ! -e dir
rm -r renamed; mkdir renamed; ls -A renamed
ls`)
		want := strings.Repeat("sandbox:sandbox\n", 3) + "new\ndeep\nmore\nnew\n600\nnowhere\ndeep\nmore\ndangling\nlink\nmoved\nrenamed\n"
		if got.code != 0 || got.stdout != want || !strings.HasPrefix(got.stderr, "discarded ") {
			t.Errorf("of user %d: %+v, want %q", uid, got, want)
		}
		if after := stamped(t, dir); after != before {
			t.Errorf("of user %d, on the host before:\n%safter:\n%s", uid, before, after)
		}
	}
}

// TestOverlayHidesSecrets and the runtime's own directories, and lets nobody put
// anything in their place; what the user binds there is shown.
func TestOverlayHidesSecrets(t *testing.T) {
	s := newSandboxes(t)
	dir := ownedTree(t, 4242)
	s.root = filepath.Join(dir, "state")
	aside := ownedTree(t, 4242)
	if err := os.Symlink(filepath.Join(dir, "dir"), filepath.Join(dir, ".aws")); err != nil {
		t.Fatal(err)
	}
	got := s.do("--overlay", dir, "--cwd", dir, "--bind", aside+"/file:"+dir+"/.config/gh/hosts", "--bind", aside+"/dir:"+dir+"/new/place", "--", "sh", "-c", `
ls -A .ssh dir state; cat .netrc .config/own .config/gh/hosts; ls new/place
for f in .ssh/x .ssh/id .netrc state/x dir/x .config/gh/x; do echo bad 2>/dev/null >$f && echo "$f was written"; done
rm -r .ssh 2>/dev/null; mv .ssh other 2>/dev/null; ls -d .ssh`)
	want := ".ssh:\n\ndir:\n\nstate:\nown\nold\nsub\n.ssh\n"
	if got.stdout != want {
		t.Errorf("%+v, want %q", got, want)
	}
}

// TestOverlayIsNoWayToTheHost by what is no file: a socket, a fifo, a device.
func TestOverlayIsNoWayToTheHost(t *testing.T) {
	s := newSandboxes(t)
	dir := ownedTree(t, 4242)
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if err := unix.Bind(listener, &unix.SockaddrUnix{Name: filepath.Join(dir, "socket")}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(listener, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(dir, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Fatal(err)
	}
	own(t, dir, 4242)
	fifo, err := os.OpenFile(filepath.Join(dir, "fifo"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	if _, err := fifo.WriteString("of the host"); err != nil {
		t.Fatal(err)
	}
	got := s.do("--overlay", dir, "--cwd", dir, "--", hostTool(t, "perl"), "-MSocket", "-MFcntl", "-e", `
socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
print connect($s, pack_sockaddr_un("socket")) ? "connected\n" : "socket: $!\n";
sysopen(my $f, "fifo", O_RDWR|O_NONBLOCK) or die "fifo: $!";
print sysread($f, my $b, 100) ? "fifo: $b\n" : "fifo: $!\n";
print open(my $z, "<", "zero") ? "opened\n" : "device: $!\n"`)
	want := "socket: Connection refused\nfifo: Resource temporarily unavailable\ndevice: Permission denied\n"
	if got.stdout != want {
		t.Errorf("%+v, want %q", got, want)
	}
}

// TestOverlayOfTheWorkspaceIsTheWorkspace at both of its places.
func TestOverlayOfTheWorkspaceIsTheWorkspace(t *testing.T) {
	s := newSandboxes(t)
	dir := ownedTree(t, 4242)
	o := s.json("--overlay", dir, "--workspace", dir, "--", "sh", "-c", "pwd; echo new > file; cat "+dir+"/file; ls -A .ssh")
	if o.Stdout != "/workspace\nnew\n" || o.Limits.Disk != "enforced" {
		t.Errorf("%+v", o)
	}
	if text, err := os.ReadFile(dir + "/file"); string(text) != "old\n" {
		t.Errorf("on the host: %q, %v", text, err)
	}
	if o := s.json("--workspace", dir, "--", "true"); o.Limits.Disk != "unavailable" {
		t.Errorf("a directory of the host: %+v", o)
	}
}

// TestOverlayOfTheWholeRoot is the host's, for its root to try what it likes.
func TestOverlayOfTheWholeRoot(t *testing.T) {
	s := newSandboxes(t)
	const name = "sandbox-runtime-overlay-test"
	got := s.do("--overlay", "/", "--user", "0", "--cwd", "/", "--", "sh", "-c", `
cd /usr/local && echo text > `+name+` && cat `+name+`; stat -c %u:%a /etc/shadow
rm -r /etc/passwd && mkdir /etc/passwd; touch /workspace/x /tmp/x ~/x && echo "hidden:$(ls -A `+dataDir+`)"`)
	if !strings.HasPrefix(got.stdout, "text\n0:") || !strings.HasSuffix(got.stdout, "hidden:\n") {
		t.Errorf("%+v", got)
	}
	if exists("/usr/local/"+name) || !exists("/etc/passwd") {
		t.Error("the host was written to")
	}
	if got := s.do("--overlay", "/", "--", "sh", "-c", "cat /etc/shadow; touch /usr/x"); got.code == 0 || got.stdout != "" {
		t.Errorf("another user than root: %+v", got)
	}
}

// TestOverlayIsRefused with what to do in its place.
func TestOverlayIsRefused(t *testing.T) {
	s := newSandboxes(t)
	dir, fifo := ownedTree(t, 4242), filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		flags []string
		want  string
	}{
		"nothing":               {[]string{"--overlay", dir + "/nowhere"}, "does not exist"},
		"a file":                {[]string{"--overlay", dir + "/file"}, "overlay the directory above it"},
		"a fifo":                {[]string{"--overlay", fifo}, "it is a fifo"},
		"an empty name":         {[]string{"--overlay", ""}, "is empty"},
		"the kernel's":          {[]string{"--overlay", "/proc"}, "shows the host's kernel"},
		"the runtime's":         {[]string{"--overlay", dataDir}, "runtime's own directory"},
		"a user's secrets":      {[]string{"--overlay", "/root/.ssh"}, "overlay /root/.ssh"},
		"twice":                 {[]string{"--overlay", dir, "--overlay", dir}, "named twice"},
		"the root, with one":    {[]string{"--overlay", "/", "--rootfs", dir}, "one root only"},
		"a bind at its place":   {[]string{"--overlay", dir, "--bind", "/usr:" + dir}, "two binds"},
		"more disk than memory": {[]string{"--disk", "2g"}, "--memory"},
		"no disk":               {[]string{"--disk", "0"}, "more than 0"},
		"too few files":         {[]string{"--files", "7"}, "--files"},
		"an unknown storage":    {[]string{"--storage", "tape"}, "--storage"},
	} {
		got := s.do(append(test.flags, "--", "true")...)
		if got.code != 125 || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%s: %+v, want %q", name, got, test.want)
		}
	}
}

// TestDiskLimitsHold for all that a sandbox can write to, in bytes and in files,
// and the host has what it had.
func TestDiskLimitsHold(t *testing.T) {
	s := newSandboxes(t)
	dir := ownedTree(t, 4242)
	for _, place := range []string{dir, "/workspace", "/tmp", "/home/sandbox"} {
		o := s.json("--overlay", dir, "--disk", "8m", "--cwd", place, "--", "sh", "-c", "head -c 9m /dev/zero > big; stat -c %s big; exit 3")
		if o.ExitCode != 3 || !o.hit("limit", "disk limit of 8m") || !strings.Contains(o.Reason, "--disk") || !strings.Contains(o.Stderr, "No space left") {
			t.Errorf("bytes in %s: %+v", place, o)
		}
		o = s.json("--overlay", dir, "--files", "4096", "--cwd", place, "--", "sh", "-c", "i=0; while : > x$i; do i=$((i+1)); done; exit 3")
		if !o.hit("limit", "limit of 4096 files") || !strings.Contains(o.Reason, "--files") || !strings.Contains(o.Stderr, "No space left") {
			t.Errorf("files in %s: %+v", place, o)
		}
	}
	o := s.json("--memory", "64m", "--", "sh", "-c", "stat -f -c '%b %S' /tmp")
	var blocks, size int64
	if _, err := fmt.Sscan(o.Stdout, &blocks, &size); err != nil || blocks*size != 48<<20 {
		t.Errorf("by default there are 3/4 of the memory: %+v, %v", o, err)
	}
}

// A sandbox that fills all it can write to takes no more of the host than its limit,
// and gives that back.
func TestAFullSandboxLeavesTheHostItsSpace(t *testing.T) {
	s := newSandboxes(t)
	dir := ownedTree(t, 4242)
	free := func() int64 {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(dataDir, &st); err != nil { // which nobody else writes to
			t.Fatal(err)
		}
		return int64(st.Bfree) * st.Bsize
	}
	const limit, own = 32 << 20, 4 << 20 // own is of templates, records and the image's tables
	for storage, most := range map[string]int64{"memory": own, "disk": limit + own} {
		before := free()
		s.up("box", "--storage", storage, "--disk", "32m", "--overlay", dir, "--cwd", dir)
		got := s.exec("box", "sh", "-c", "for d in . /workspace /tmp /home/sandbox; do head -c 12m /dev/zero > $d/big; done; sync")
		if !strings.Contains(got.stderr, "No space left") {
			t.Errorf("%s: %+v", storage, got)
		}
		if taken := before - free(); taken > most {
			t.Errorf("%s: %d bytes of the host are taken, more than %d", storage, taken, most)
		}
		s.downIfUp("box")
		if got := run(t, s.command("prune")); got.code != 0 { // of what takes longer than a moment
			t.Errorf("%+v", got)
		}
		if taken := before - free(); taken > own {
			t.Errorf("%s: %d bytes of the host are still taken", storage, taken)
		}
	}
}
