package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// listen starts a launcher with the images of the host, and with rules.
func (h *imageHost) listen(rules string) *launcherProcess {
	h.t.Helper()
	dir := openDir(h.t)
	path, socket := filepath.Join(dir, "rules.json"), filepath.Join(dir, "s")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command(binary(h.t), "--root", h.root, "--data", h.data, "launcher", "--socket", socket, "--mode", "0666", "--rules", path)
	p := &launcherProcess{start(h.t, cmd), socket}
	h.t.Cleanup(p.leave)
	eventually(h.t, "the launcher listens", func() bool { return strings.Contains(p.stderr(), "listening") })
	return p
}

// openDir is a directory of the test's that each user can enter.
func openDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for above := dir; above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// An imageUser is an ordinary user of a launcher.
type imageUser struct {
	t    *testing.T
	uid  uint32
	l    *launcherProcess
	home string
}

func newImageUser(t *testing.T, uid uint32, l *launcherProcess) *imageUser {
	t.Helper()
	home := openDir(t)
	if err := os.Chown(home, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	return &imageUser{t, uid, l, home}
}

func (u *imageUser) image(args ...string) *exec.Cmd {
	cmd := exec.Command(binary(u.t), append([]string{"--socket", u.l.socket, "image"}, args...)...)
	cmd.Env = []string{"HOME=" + u.home, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = u.home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.uid, Gid: u.uid}}
	return cmd
}

func (u *imageUser) good(args ...string) string {
	u.t.Helper()
	got := run(u.t, u.image(args...))
	if got.code != 0 {
		u.t.Fatalf("user %d, image %q: %+v", u.uid, args, got)
	}
	return strings.TrimSuffix(got.stdout, "\n")
}

// tree is a directory that the user can read, with the same content for each user.
func sharedTree(t *testing.T, text string) string {
	t.Helper()
	dir := openDir(t)
	writeFile(t, filepath.Join(dir, "word"), text)
	return dir
}

func TestImagesNeedARule(t *testing.T) {
	h := newImageHost(t)
	l := h.listen(`{"peers":[{"user":4241},{"user":4242,"images":"1m"}]}`)
	dir := sharedTree(t, "word")
	without, with := newImageUser(t, 4241, l), newImageUser(t, 4242, l)
	for _, args := range [][]string{{"ls"}, {"import", dir}, {"inspect", "x"}, {"rm", "x"}, {"prune"}, {"verify", "x"}} {
		got := run(t, without.image(args...))
		if got.code == 0 || !strings.Contains(got.stderr, "refused by the launcher's rules: images; a rule with") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	id := with.good("import", dir, "--name", "mine")
	if got := with.good("ls", "--no-trunc"); !strings.Contains(got, "mine") || !strings.Contains(got, id) {
		t.Errorf("%q", got)
	}
	with.good("verify", "mine")
	if got := with.good("rm", "mine"); !strings.Contains(got, "Deleted: "+id) {
		t.Errorf("%q", got)
	}
}

func TestImagesOfAUserAreBounded(t *testing.T) {
	h := newImageHost(t)
	l := h.listen(`{"peers":[{"user":4242,"images":"1m"}]}`)
	u := newImageUser(t, 4242, l)
	large := sharedTree(t, strings.Repeat("x", 2<<20))
	wantRefusal := func(got result, words string) {
		t.Helper()
		if got.code == 0 || !strings.Contains(got.stderr, words) {
			t.Errorf("want %q, got %+v", words, got)
		}
	}
	wantRefusal(run(t, u.image("import", large)), "your images may have 1m, and have 0")
	if left := h.drafts(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	half := strings.Repeat("y", 600<<10)
	u.good("import", sharedTree(t, half), "--name", "half")
	wantRefusal(run(t, u.image("import", sharedTree(t, half+"z"))), "your images may have 1m")
	u.good("rm", "half")
	u.good("import", sharedTree(t, half+"z"), "--name", "half")
}

// A user neither reaches nor notices the private image of another user, also not with the whole config and the layer's
// digest in hand.
func TestImagesOfAnotherUserAreHidden(t *testing.T) {
	h := newImageHost(t)
	l := h.listen(`{"peers":[{"user":4241,"images":"10m"},{"user":4242,"images":"10m"}]}`)
	owner, other := newImageUser(t, 4241, l), newImageUser(t, 4242, l)
	dir := sharedTree(t, "private")
	id := owner.good("import", dir, "--name", "private")
	for _, args := range [][]string{{"inspect"}, {"rm"}, {"verify"}} {
		for _, name := range []string{"private", id, strings.TrimPrefix(id, "sha256:")[:12]} {
			there, none := run(t, other.image(append(args, name)...)), run(t, other.image(append(args, "zz"+name[2:])...))
			if there.code == 0 || there.code != none.code || !strings.Contains(there.stderr, fmt.Sprintf("no such image %q", name)) {
				t.Errorf("%q %s: %+v, and one that is missing: %+v", args, name, there, none)
			}
		}
	}
	if got := other.good("ls", "--json"); got != "" {
		t.Errorf("%q", got)
	}
	other.good("prune")
	// Who has the content itself gets the image, and only removes the own right to it.
	if got := other.good("import", dir, "--name", "found"); got != id {
		t.Errorf("%s and %s", got, id)
	}
	other.good("rm", "found")
	owner.good("verify", "private")
	if got := run(t, h.image("ls")); got.code != 0 || strings.Contains(got.stdout, "private") {
		t.Errorf("root's own list: %+v", got)
	}
}
