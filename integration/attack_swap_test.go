package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// raceTime is how long each race is run.
const raceTime = 3 * time.Second

// A race exchanges something on a runtime's way with a link to the victim, a
// directory of the host, while containers are created.
type race struct {
	t            *testing.T
	stop         func() // ends the swaps
	before       func() // each run
	root, victim string
	volume       string // another directory of the host, shared with the attacker
	text         string // of the victim's only file
}

func newRace(t *testing.T) *race {
	t.Helper()
	leavesNothing(t)
	path, text := canary(t)
	return &race{t: t, root: newAttackRoot(t), victim: filepath.Dir(path), volume: t.TempDir(), text: text, before: func() {}}
}

// exchange starts to swap the directory or file at path with a link.
func (r *race) exchange(path, target string) {
	r.t.Helper()
	link := filepath.Join(filepath.Dir(path), "link-"+filepath.Base(path))
	if err := os.Symlink(target, link); err != nil {
		r.t.Fatal(err)
	}
	r.stop = swapping(r.t, path, link)
}

// run creates and runs containers from the bundle while the swaps go on. Some
// come up and some are refused; none may touch the victim.
func (r *race) run(b *bundle, check func(result)) {
	r.t.Helper()
	o := ours(r.t)
	n, up, before := 0, 0, tree(r.t, r.victim)
	attempts(raceTime, func() {
		r.before()
		got := o.runBundle(b)
		n++
		if got.code == 0 {
			up++
		}
		if strings.Contains(got.stdout, r.text) {
			r.t.Errorf("the host is in sight: %+v", got)
		}
		check(got)
	})
	if after := tree(r.t, r.victim); after != before {
		r.t.Errorf("on the host there is now: %s", after)
	}
	r.t.Logf("%d attempts, %d came up", n, up)
	r.stop()
	r.before()
	if got := o.runBundle(b); got.code != 0 {
		r.t.Errorf("when nothing is swapped: %+v", got)
	}
}

// naively shows that the race can be won: a runtime that goes by paths makes
// the directory in the victim.
func (r *race) naively(target string) {
	r.t.Helper()
	eventually(r.t, "a naive runtime makes a directory in the victim", func() bool {
		_ = os.MkdirAll(target, 0o755)
		return exists(filepath.Join(r.victim, "target"))
	})
	if err := os.Remove(filepath.Join(r.victim, "target")); err != nil {
		r.t.Fatal(err)
	}
}

// CVE-2021-30465: two containers share a volume, in which one swaps the
// directory below which the other's mount is going to be.
func TestAttackBySwappingAMountTarget(t *testing.T) {
	r := newRace(t)
	below := filepath.Join(r.volume, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	r.exchange(below, r.victim)
	r.naively(filepath.Join(below, "target"))
	b := newAttack(t, []string{"sh", "-c", "cat /volume/below/canary /volume/below/target/canary; attack climb " + filepath.Join(r.victim, "canary")}, withRoot(r.root),
		withVolume(r.volume, "/volume"), withVolume(t.TempDir(), "/volume/below/target"),
		withMount(specs.Mount{Source: "tmpfs", Destination: "/volume/below/tmpfs", Type: "tmpfs"}))
	r.run(b, func(result) {})
}

// The same with the root's own directories: /dev, which gets device nodes and
// links, with a file system of its own and without one (crun's 2026-47766,
// CVE-2026-41579), and the mount points in it.
func TestAttackBySwappingDev(t *testing.T) {
	for name, change := range map[string]func(*specs.Spec){
		"with a tmpfs": func(*specs.Spec) {},
		"without":      withoutDev,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRace(t)
			r.exchange(filepath.Join(r.root, "dev"), r.victim)
			r.naively(filepath.Join(r.root, "dev", "target"))
			b := newAttack(t, []string{"true"}, withRoot(r.root), change, withVolume(t.TempDir(), "/dev/volume"))
			r.before = func() { emptyDirectory(t, filepath.Join(r.root, "dev"), filepath.Join(r.root, "link-dev")) }
			r.run(b, func(result) {})
		})
	}
}

// emptyDirectory empties the one of two names that is a directory. libcontainer
// trips over the links it made in a root's own /dev before.
func emptyDirectory(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		dir, err := os.OpenFile(name, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // it is the link
		}
		defer dir.Close()
		entries, err := dir.ReadDir(-1)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if err := os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// withoutDev has the runtime make devices in the root's own /dev.
func withoutDev(s *specs.Spec) {
	for _, d := range []string{"/dev", "/dev/pts", "/dev/shm", "/dev/mqueue"} {
		withoutMount(d)(s)
	}
}

// devVolume is a directory of the host that can be a container's /dev.
func devVolume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// CVE-2024-45310: a file or directory for a mount is made where a swapped
// directory of the root leads.
func TestAttackBySwappingAMountTargetsParent(t *testing.T) {
	r := newRace(t)
	file, _ := canary(t)
	r.exchange(filepath.Join(r.root, "run"), r.victim)
	r.naively(filepath.Join(r.root, "run", "target"))
	r.run(newAttack(t, []string{"true"}, withRoot(r.root), withVolume(file, "/run/a/file"), withVolume(t.TempDir(), "/run/b/directory"),
		func(s *specs.Spec) { s.Process.Cwd = "/run/cwd" }), func(result) {})
}

// CVE-2025-31133: paths are masked with the /dev/null of the container, which
// is swapped for a link to what the attacker wants to write to.
func TestAttackBySwappingDevNull(t *testing.T) {
	r := newRace(t)
	dev := devVolume(t)
	r.exchange(filepath.Join(dev, "null"), "/proc/sys/kernel/domainname")
	// The UTS namespace is the container's: what the attack writes is its own.
	attack := throughMasks + "; cat /proc/keys /proc/timer_list; for f in /proc/keys /proc/timer_list; do echo canary > $f; done; cat /proc/sys/kernel/domainname; cat /proc/self/mountinfo"
	b := newAttack(t, []string{"sh", "-c", attack}, withRoot(r.root), func(s *specs.Spec) {
		withoutDev(s)
		withVolumeFirst(dev, "/dev")(s)
	})
	r.run(b, func(got result) {
		if strings.Contains(got.stdout, "canary") || strings.Contains(got.stdout, "read /") || strings.Contains(got.stdout, "wrote /") {
			t.Errorf("a masked path can be written: %+v", got)
		}
		if strings.Contains(got.stdout, "domainname /proc/") || strings.Contains(got.stdout, "/sys/kernel/domainname /") {
			t.Errorf("a mask is not /dev/null: %+v", got)
		}
	})
	if name := content(t, "/proc/sys/kernel/domainname"); strings.Contains(name, "canary") {
		t.Errorf("the host's domain name is %s", name)
	}
}

// The same without a race: the image has a link from the start.
func TestAttackByAnImagesDevNullAndConsole(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	victim, _ := canary(t)
	unchanged(t, victim)
	control := newAttack(t, []string{"cat", "/dev/null"}, withRoot(newAttackRoot(t)), withoutDev)
	if got := r.runBundle(control); got.code != 0 {
		t.Errorf("without a link: %+v", got)
	}
	for _, name := range []string{"null", "console", "ptmx", "stdout", "fd", "pts"} {
		for _, target := range []string{"/proc/sys/kernel/domainname", victim, "../../../../../../../.." + victim} {
			root := newAttackRoot(t)
			if err := os.Symlink(target, filepath.Join(root, "dev", name)); err != nil {
				t.Fatal(err)
			}
			b := newAttack(t, []string{"sh", "-c", throughMasks + "; echo canary > /dev/" + name}, withRoot(root), withoutDev)
			if got := r.runBundle(b); strings.Contains(got.stdout, "read /") || strings.Contains(got.stdout, "wrote /") {
				t.Errorf("/dev/%s is a link to %s: %+v", name, target, got)
			}
		}
	}
}

// CVE-2025-52565: the console is mounted on /dev/console, which is swapped for
// a link while that is done.
func TestAttackBySwappingDevConsole(t *testing.T) {
	r := newRace(t)
	dev := devVolume(t)
	console := filepath.Join(dev, "console")
	if err := os.WriteFile(console, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.exchange(console, "/proc/sys/kernel/domainname")
	o := ours(t)
	b := newAttack(t, []string{"cat", "/proc/self/mountinfo"}, withRoot(r.root), func(s *specs.Spec) {
		s.Process.Terminal = true
		withoutDev(s)
		withVolumeFirst(dev, "/dev")(s)
		withMount(specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}})(s)
	})
	up := 0
	attempts(raceTime, func() {
		term, p := onTerminal(t, o.command("run", "--bundle", b.dir, "console"))
		got := p.wait()
		<-term.closed
		if got.code == 0 {
			up++
		}
		for line := range strings.Lines(term.output()) {
			if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], "/proc/sys/kernel") {
				t.Errorf("the console is mounted over %s", f[4])
			}
		}
	})
	t.Logf("%d came up", up)
	r.stop()
	term, p := onTerminal(t, o.command("run", "--bundle", b.dir, "console"))
	if got := p.wait(); got.code != 0 {
		t.Errorf("when nothing is swapped: %+v, %s", got, term.output())
	}
}

// CVE-2025-52881: what the runtime writes below /proc, labels and settings,
// goes to a directory that looks like it.
func TestAttackBySwappingProc(t *testing.T) {
	r := newRace(t)
	fake := fakeProc(t)
	before := tree(t, fake)
	r.exchange(filepath.Join(r.root, "proc"), fake)
	r.run(newAttack(t, []string{"true"}, withRoot(r.root), forwarding), func(result) {})
	if after := tree(t, fake); after != before {
		t.Errorf("the runtime wrote to the fake:\n%s", after)
	}
}

// What do shows is what it has checked: a bind, a workspace or a root that is
// swapped for a link to the runtime's own state, or for a root of the host,
// shows neither.
func TestAttackBySwappingWhatDoShows(t *testing.T) {
	s := newSandboxes(t)
	held := start(t, s.command("do", "--", "sh", "-c", "echo ready; sleep 1000"))
	held.prints("ready\n")
	before := tree(t, s.root)
	dir := t.TempDir()
	for _, name := range []string{"bind", "workspace"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := newAttackRoot(t)
	path, text := canary(t)
	for _, attack := range []struct {
		flags           []string
		swapped, victim string
	}{
		{[]string{"--bind", dir + "/bind:/data:rw"}, dir + "/bind", s.root},
		{[]string{"--workspace", dir + "/workspace", "--cwd", "/"}, dir + "/workspace", s.root},
		{[]string{"--rootfs", root}, root + "/etc", filepath.Dir(path)},
	} {
		flags, victim := attack.flags, attack.victim
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
		stop := swapping(t, attack.swapped, link)
		up := 0
		try := func() {
			got := s.do(append(slices.Clone(flags), "--user", "0", "--", "sh", "-c", "ls -A /data /workspace; cat /etc/canary; echo > /data/made; echo > /workspace/made")...)
			if got.code != 125 {
				up++
			}
			if strings.Contains(got.stdout, "@sandboxes") || strings.Contains(got.stdout, text) {
				t.Errorf("%q shows %s: %+v", flags, victim, got)
			}
		}
		attempts(raceTime/2, try)
		eventually(t, "the sandbox comes up once", func() bool { // all it looks at has to be between two swaps
			if up == 0 {
				try()
			}
			return up > 0
		})
		stop()
		t.Logf("%q: %d came up", flags, up)
	}
	if after := tree(t, s.root); after != before {
		t.Errorf("the state root has changed:\n%s\nwas\n%s", after, before)
	}
	interrupt(t, held)
}
