package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An imagePool is a launcher with a pool and the images of a host.
type imagePool struct {
	*imageHost
	*launcherProcess
	manager *sandbox.Manager // of root
}

// pooled starts a launcher with one blank without an image, and room for blanks with images.
func (h *imageHost) pooled(flags ...string) *imagePool {
	h.t.Helper()
	dir := openDir(h.t)
	socket := filepath.Join(dir, "s")
	args := []string{"--root", h.root, "--data", h.data, "launcher", "--socket", socket, "--pool", "min=1,max=16,warmup=1"}
	p := &launcherProcess{start(h.t, exec.Command(binary(h.t), append(args, flags...)...)), socket}
	h.t.Cleanup(p.leave)
	eventually(h.t, "the launcher listens", func() bool { return strings.Contains(p.stderr(), "listening") })
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = m.Close() }) // the launcher can have been killed
	pool := &imagePool{h, p, m}
	pool.ready(1)
	return pool
}

func (p *imagePool) stats() spec.PoolStats {
	p.imageHost.t.Helper()
	s, err := p.manager.PoolStats(p.imageHost.t.Context())
	if err != nil {
		p.imageHost.t.Fatal(err)
	}
	return s
}

// ready waits until this many blanks are ready, of all kinds.
func (p *imagePool) ready(n int) {
	t := p.imageHost.t
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%+v", p.stats())
		}
	}()
	eventually(t, "blanks", func() bool { s := p.stats(); return s.Ready == n && s.Total == n })
}

// through runs a command of root through the launcher.
func (p *imagePool) through(args ...string) result {
	p.imageHost.t.Helper()
	cmd := exec.Command(binary(p.imageHost.t), append([]string{"--socket", p.socket}, args...)...)
	cmd.Env = p.env
	return run(p.imageHost.t, cmd)
}

// hit is through, for a command that has to claim a blank.
func (p *imagePool) hit(args ...string) result {
	p.imageHost.t.Helper()
	before := p.stats()
	got := p.through(args...)
	if s := p.stats(); s.Hits != before.Hits+1 {
		p.imageHost.t.Errorf("%q claimed no blank: %+v", args, s)
	}
	return got
}

// described is a shell's description of its sandbox.
const described = `id; pwd; env | busybox sort; busybox uname -n; cat /etc/hostname /etc/hosts /etc/resolv.conf
busybox stat -c '%A %u %g %n' / /* /etc/* /bin/* /srv/*; touch /etc/new /bin/new /srv/data/new /tmp/new; ls /srv/data /tmp
busybox grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; busybox cut -d' ' -f2 /proc/self/mounts | busybox sort -u`

// The second sandbox of an image claims a blank, and is like one that was made without a blank.
func TestABlankOfAnImageIsLikeAColdSandbox(t *testing.T) {
	h := newImageRoots(t)
	tree, given := programs(t), openDir(t)
	writeFile(t, filepath.Join(tree, "etc/hostname"), "of the image\n")
	writeFile(t, filepath.Join(tree, "etc/hosts"), "of the image\n")
	writeFile(t, filepath.Join(given, "word"), "given\n")
	h.good("import", "--name", "app", "-q", saved(t, tree, map[string]any{
		"User": "web", "Env": []string{"COLOUR=red", "PATH=/bin"}, "WorkingDir": "/srv", "Volumes": map[string]any{"/srv/data": map[string]any{}},
		"Entrypoint": []string{"/bin/sh", "-c"}, "Cmd": []string{"id -un; pwd; echo $COLOUR"},
	}))
	p := h.pooled()
	claim := func(name string, args ...string) {
		t.Helper()
		want := h.run(args...)
		if got := p.hit(args...); got.stdout != want.stdout || got.stderr != want.stderr || got.code != want.code || got.stdout == "" {
			t.Errorf("%s: %+v, without a blank %+v", name, got, want)
		}
	}
	if got := p.through("do", "--image", "app"); got.stdout != "web\n/srv\nred\n" {
		t.Fatalf("%+v", got)
	}
	if s := p.stats(); s.Hits != 0 || s.Misses["empty"] != 1 {
		t.Errorf("%+v", s)
	}
	for name, args := range map[string][]string{
		"settings of the image": {"do", "--image", "app"},
		"another name":          {"do", "--image", h.list()[0].ID, "--", described},
		"settings of the flags": {"do", "--image", "app", "--hostname", "mine.example", "--env", "COLOUR=blue", "--cwd", "/etc", "--pids", "50", "--", described},
		"a workspace and a bind": {"do", "--image", "app", "--workspace", given, "--bind", given + ":/given", "--",
			described + "; cat word /given/word"},
	} {
		p.ready(2)
		claim(name, args...)
	}

	// The sandbox stays up, on disk: another kind.
	for _, name := range []string{"miss", "hit"} {
		if got := p.through("up", "--image", "app", name); got.code != 0 {
			t.Errorf("up: %+v", got)
		}
		p.ready(3)
	}
	if s := p.stats(); s.Hits != 5 || s.Misses["empty"] != 2 {
		t.Errorf("%+v", s)
	}
	miss, hit := p.through("exec", "miss", "sh", "-c", described), p.through("exec", "hit", "sh", "-c", described)
	if miss.stdout != hit.stdout || miss.stdout == "" {
		t.Errorf("%+v, without a blank %+v", hit, miss)
	}
	var info struct{ Config spec.Config }
	decode(t, p.through("inspect", "hit").stdout, &info)
	if info.Config.Image != "app" {
		t.Errorf("the image in the configuration: %q", info.Config.Image)
	}
	h.bad("in use by sandbox hit", "rm", "app")
	for _, name := range []string{"miss", "hit"} {
		if got := p.through("down", name); got.code != 0 {
			t.Errorf("down: %+v", got)
		}
	}
	if left := h.uses(); len(left) > 0 {
		t.Errorf("uses of blanks or ended sandboxes: %q", left)
	}
	h.good("rm", "app")
}

// wordImage imports an image with a word in a file.
func (h *imageHost) wordImage(t *testing.T, name, word string) (id string) {
	t.Helper()
	tree := programs(t)
	writeFile(t, filepath.Join(tree, "word"), word)
	return h.good("import", "--name", name, "-q", tree)
}

// A claim gets the image that the name means now. A blank of the earlier image ends with the image.
func TestAMovedNameHasOtherBlanks(t *testing.T) {
	h := newImageRoots(t)
	p := h.pooled()
	do := []string{"do", "--image", "app", "--", "cat", "/word"}
	var ids []string
	for _, word := range []string{"one", "two"} {
		ids = append(ids, h.wordImage(t, "app", word))
		for range 2 {
			if got := p.through(do...); got.stdout != word {
				t.Errorf("%+v, want %q", got, word)
			}
			p.ready(1 + len(ids))
		}
	}
	if s := p.stats(); s.Hits != 2 || s.Misses["empty"] != 2 {
		t.Errorf("%+v", s)
	}
	if got := p.through("image", "prune"); got.code != 0 || !strings.Contains(got.stdout, ids[0]) || strings.Contains(got.stdout, ids[1]) {
		t.Errorf("prune: %+v, images %q", got, ids)
	}
	p.ready(2)
	if got := p.hit(do...); got.stdout != "two" {
		t.Errorf("%+v", got)
	}
}

// Blanks keep no image: a removal ends them. The same image that is pulled again gets new ones.
func TestARemovedImageHasNoBlanks(t *testing.T) {
	h := newImageRoots(t)
	p := h.pooled()
	do := []string{"do", "--pull", "never", "--image", "app", "--", "cat", "/word"}
	for name, remove := range map[string]func() result{
		"by the launcher":    func() result { return p.through("image", "rm", "app") },
		"by another process": func() result { return run(t, h.image("rm", "app")) },
	} {
		id := h.wordImage(t, "app", "word")
		hits := p.stats().Hits
		for range 2 {
			if got := p.through(do...); got.stdout != "word" {
				t.Errorf("%s: %+v", name, got)
			}
			p.ready(2)
		}
		if s := p.stats(); s.Hits != hits+1 {
			t.Errorf("%s: a removed image's blanks were claimed, or none: %+v", name, s)
		}
		p.checksEvery(time.Second)
		if got := remove(); got.code != 0 || !strings.Contains(got.stdout, "Deleted: "+id) {
			t.Errorf("%s: rm: %+v", name, got)
		}
		if got := p.through(do...); got.code == 0 || !strings.Contains(got.stderr, "no such image") {
			t.Errorf("%s: a sandbox of a removed image: %+v", name, got)
		}
		p.ready(1)
		p.checksEvery(time.Hour)
		if left, err := filepath.Glob(filepath.Join(h.data, "images", "[il]*", "*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left: %q, %v", name, left, err)
		}
	}
}

// checksEvery sets the time between two checks of a blank. Nobody can claim a blank during its check.
func (p *imagePool) checksEvery(d time.Duration) {
	p.imageHost.t.Helper()
	c := sandbox.PoolConfig{Min: 1, Max: 16, WarmUp: 1, CheckEvery: spec.Duration(d)}
	if _, err := p.manager.ResizePool(p.imageHost.t.Context(), c); err != nil {
		p.imageHost.t.Fatal(err)
	}
}

// A user cannot claim the blank of a private image of another user, and learns nothing of the image.
func TestBlanksOfAnotherUsersImage(t *testing.T) {
	h := newImageRoots(t)
	rules := filepath.Join(t.TempDir(), "rules.json")
	writeFile(t, rules, `{"peers":[{"user":4241,"images":"10m"},{"user":4242,"images":"10m"}]}`)
	p := h.pooled("--mode", "0666", "--rules", rules)
	owner, other := newImageUser(t, 4241, p.launcherProcess), newImageUser(t, 4242, p.launcherProcess)
	tree := programs(t)
	if err := errors.Join(os.Chmod(filepath.Dir(tree), 0o755), os.Chmod(tree, 0o755)); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(tree, "word"), "private")
	id := owner.good("import", "-q", "--name", "private", tree)
	do := func(u *imageUser, image string) result {
		t.Helper()
		cmd := exec.Command(binary(t), "--socket", p.socket, "do", "--pull", "never", "--image", image, "--", "cat", "/word")
		cmd.Env, cmd.Dir = []string{"HOME=" + u.home, "PATH=" + os.Getenv("PATH")}, u.home
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.uid, Gid: u.uid}}
		return run(t, cmd)
	}
	for range 2 {
		if got := do(owner, "private"); got.stdout != "private" {
			t.Fatalf("%+v", got)
		}
		p.ready(2)
	}
	hits := p.stats().Hits
	if hits != 1 {
		t.Errorf("%d hits", hits)
	}
	for _, name := range []string{"private", id} {
		there, none := do(other, name), do(other, "zz"+name[2:])
		if there.code == 0 || there.code != none.code || there.stdout != "" || !strings.Contains(there.stderr, "no such image") {
			t.Errorf("%s: %+v, and one that is missing: %+v", name, there, none)
		}
	}
	// With the same image of its own, the other user still gets no blank of the owner's.
	if got := other.good("import", "-q", "--name", "mine", tree); got != id {
		t.Errorf("%s is not %s", got, id)
	}
	if got := do(other, "mine"); got.stdout != "private" {
		t.Errorf("%+v", got)
	}
	p.ready(3)
	if s := p.stats(); s.Hits != hits || s.Misses["empty"] != 2 {
		t.Errorf("%+v", s)
	}
	other.good("rm", "mine")
	p.ready(2)
	if got := do(owner, "private"); got.stdout != "private" || p.stats().Hits != hits+1 {
		t.Errorf("%+v, %+v", got, p.stats())
	}
}

// The blanks of a killed launcher hold no image.
func TestBlanksOfImagesOfAKilledLauncher(t *testing.T) {
	h := newImageRoots(t)
	p := h.pooled()
	id := h.wordImage(t, "app", "word")
	if got := p.through("do", "--image", "app", "--", "cat", "/word"); got.stdout != "word" {
		t.Fatalf("%+v", got)
	}
	p.ready(2)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait()
	if got := h.run("prune"); got.code != 0 || strings.Count(got.stdout, "removed") < 2 { // or 3, with a removal that was not finished
		t.Errorf("prune: %+v", got)
	}
	if left := h.state(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if left := h.uses(); len(left) > 0 {
		t.Errorf("uses: %q", left)
	}
	if got := h.good("rm", "app"); !strings.Contains(got, "Deleted: "+id) {
		t.Errorf("%q", got)
	}
}
