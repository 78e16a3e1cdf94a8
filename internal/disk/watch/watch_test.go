package watch

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shown are changes as one text: + for what came, - for what went, ~ for what is
// another.
func shown(changes []Change) string {
	var all []string
	for _, c := range changes {
		sign := "~"
		if !c.Was {
			sign = "+"
		} else if !c.Is {
			sign = "-"
		}
		all = append(all, sign+c.Path)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// scenes are what is there at first, and what a shell then does to it.
var scenes = []struct{ name, first, then, want string }{
	{"nothing", "echo 1 > a", "cat a; ls; test -e b", ""},
	{"created", "", "echo 1 > a; mkdir d; ln -s x l; mkfifo p", "+/a +/d +/l +/p"},
	{"written", "echo 1 > a", "echo 2 >> a", "~/a"},
	{"truncated", "echo 1 > a", "> a", "~/a"},
	{"opened to write and not written", "echo 1 > a", ": >> a", ""},
	{"other rights", "echo 1 > a; mkdir d", "chmod 600 a; chmod 700 d", "~/a ~/d"},
	{"touched", "echo 1 > a", "touch a", "~/a"},
	{"deleted", "echo 1 > a; mkdir d", "rm a; rmdir d", "-/a -/d"},
	{"came and went", "", "echo 1 > a; rm a; mkdir d; echo 1 > d/x; rm -r d", ""},
	{"went and came", "echo 1 > a", "rm a; echo 2 > a", "~/a"},
	{"went, came and went", "echo 1 > a", "rm a; echo 2 > a; rm a", "-/a"},
	{"came, went and came", "", "echo 1 > a; rm a; echo 2 > a", "+/a"},
	{"renamed", "echo 1 > a", "mv a b", "+/b -/a"},
	{"renamed and back", "echo 1 > a", "mv a b; mv b a", ""},
	{"renamed there and back often", "echo 1 > a", "perl -e 'for (1..7) { rename q(a), q(b); rename q(b), q(a) }'", ""},
	{"renamed an odd number of times", "echo 1 > a", "perl -e 'for (1..7) { rename q(a), q(b); rename q(b), q(a) } rename q(a), q(b)'", "+/b -/a"},
	{"saved as editors do", "echo 1 > a", "echo 2 > a.tmp; mv a.tmp a", "~/a"},
	{"saved by one thread", "echo 1 > a", "perl -e 'open F, q(>t); print F 1; close F; rename q(t), q(a)'", "~/a"},
	{"put in place by one thread that then removes another", "echo 1 > b",
		"perl -e 'open F, q(>t); print F 1; close F; rename q(t), q(a); unlink q(b)'", "+/a -/b"},
	{"put in place by one thread that then links another", "echo 1 > b",
		"perl -e 'open F, q(>t); print F 1; close F; rename q(t), q(a); link q(b), q(c)'", "+/a +/c"},
	{"exchanged", "echo 1 > a; echo 2 > b", "mv --exchange a b", "~/a ~/b"},
	{"a tree removed", "mkdir -p d/e/f; echo 1 > d/e/f/x", "rm -r d", "-/d -/d/e -/d/e/f -/d/e/f/x"},
	{"a tree moved", "mkdir -p d/e; echo 1 > d/e/x", "mv d d2; echo 2 > d2/e/x; echo 1 > d2/e/y", "+/d2 +/d2/e/y -/d ~/d2/e/x"},
	{"moved into a new tree", "echo 1 > a", "mkdir -p n/m; mv a n/m/a", "+/n +/n/m +/n/m/a -/a"},
	{"hard links", "echo 1 > a", "ln a b; echo 2 >> b", "+/b"},
	{"names of any bytes", "", "printf x > \"$(printf 'a\\nb\\377 c')\"", "+/a\nb\xff c"},
}

// A scene in which a tool of this host can't do what it takes is left out.
func TestScenesAreTold(t *testing.T) {
	exchanges := exec.Command("sh", "-c", "mv --help | grep -q -- --exchange").Run() == nil
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			top, dir := memory(t)
			if s.name == "exchanged" && !exchanges {
				s.then = ""
			}
			w := watching(t, group(t).FileSystem, top)
			play(t, dir, s.first)
			awaitTick(t)
			r := record(t, w)
			if s.then == "" {
				must(t, unix.Renameat2(unix.AT_FDCWD, in(dir, "a"), unix.AT_FDCWD, in(dir, "b"), unix.RENAME_EXCHANGE))
			} else {
				play(t, dir, s.then)
			}
			changes, missed := r.End()
			if got := shown(changes); got != s.want || missed {
				t.Errorf("%s\nthen %s\ngot  %q (missed: %v)\nwant %q", s.first, s.then, got, missed, s.want)
			}
		})
	}
}

// awaitTick waits until files get another time than those that are there.
func awaitTick(t testing.TB) {
	t.Helper()
	var first, now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME, &first))
	for now.Nano() < first.Nano() {
		time.Sleep(time.Millisecond)
		must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
	}
}

func play(t testing.TB, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = strings.Replace(dir, "self", fmt.Sprint(os.Getpid()), 1)
	if out, err := cmd.CombinedOutput(); err != nil && !strings.Contains(script, "test -e") {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// What is written through a mapping is told, when that goes.
func TestMappedFileIsTold(t *testing.T) {
	top, dir := memory(t)
	write(t, in(dir, "a"))
	awaitTick(t)
	r := record(t, watching(t, group(t).FileSystem, top))
	f, err := os.OpenFile(in(dir, "a"), os.O_RDWR, 0)
	must(t, err)
	memory, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	must(t, f.Close())
	memory[0] = 'y'
	must(t, unix.Munmap(memory))
	if changes, _ := r.End(); shown(changes) != "~/a" {
		t.Errorf("got %s", shown(changes))
	}
}

// What others do before and after is not told, and each recording is of its own.
func TestRecordingsOverlap(t *testing.T) {
	top, dir := memory(t)
	w := watching(t, group(t).FileSystem, top)
	write(t, in(dir, "before"))
	first := record(t, w)
	write(t, in(dir, "a"))
	second := record(t, w)
	write(t, in(dir, "b"))
	a, _ := first.End()
	write(t, in(dir, "c"))
	b, _ := second.End()
	if shown(a) != "+/a +/b" || shown(b) != "+/b +/c" {
		t.Errorf("got %s and %s", shown(a), shown(b))
	}
}

// Two file systems in one group are told apart, also where their handles are alike.
func TestFileSystemsAreToldApart(t *testing.T) {
	one, here := memory(t)
	other, there := memory(t)
	g := group(t)
	a, b := watching(t, g.FileSystem, one), watching(t, g.FileSystem, other)
	both, first := record(t, a, b), record(t, a)
	write(t, in(here, "x"))
	write(t, in(there, "y"))
	all, _ := both.End()
	some, _ := first.End()
	if shown(all) != "+/x +/y" || shown(some) != "+/x" || len(first.names) != 1 {
		t.Errorf("got %s and %s, of %d names", shown(all), shown(some), len(first.names))
	}
}

// The top of each ext4, for one, has the same handle.
func TestHandlesThatAreAlikeAreToldApart(t *testing.T) {
	one, other := &Watch{fsid: [8]byte{1}}, &Watch{fsid: [8]byte{2}}
	r := &Recording{names: map[string]*name{}, last: map[int32]act{}, removed: map[string]*name{}}
	top := place{[]byte("1234handle"), []byte("x")}
	for _, w := range []*Watch{one, other} {
		r.add(w, event{mask: unix.FAN_DELETE | unix.FAN_ONDIR, at: top, file: []byte("1234x")})
	}
	if len(r.names) != 2 || len(r.removed) != 2 {
		t.Errorf("%d names and %d removed directories are told apart", len(r.names), len(r.removed))
	}
}

// What came to a name, left it and came again was not there before all, whatever it
// is exchanged with then.
func TestWhatCameTwiceWasNotThereBefore(t *testing.T) {
	top, dir := memory(t)
	runtime.LockOSThread() // the kernel tells of threads
	defer runtime.UnlockOSThread()
	w := watching(t, group(t).FileSystem, top)
	write(t, in(dir, "s"))
	write(t, in(dir, "u"))
	write(t, in(dir, "v"))
	r := record(t, w)
	for _, move := range [][2]string{{"s", "b"}, {"b", "c"}, {"u", "b"}} {
		must(t, os.Rename(in(dir, move[0]), in(dir, move[1])))
	}
	must(t, unix.Renameat2(unix.AT_FDCWD, in(dir, "b"), unix.AT_FDCWD, in(dir, "v"), unix.RENAME_EXCHANGE))
	must(t, unix.Renameat2(unix.AT_FDCWD, in(dir, "v"), unix.AT_FDCWD, in(dir, "b"), unix.RENAME_EXCHANGE))
	if changes, _ := r.End(); shown(changes) != "+/b +/c -/s -/u" {
		t.Errorf("got %s", shown(changes))
	}
}

// Of a mount only what is written through it is told, and nothing that is written
// beside it.
func TestMountTellsWhatIsWrittenThroughIt(t *testing.T) {
	host := t.TempDir()
	must(t, os.Mkdir(in(host, "tree"), 0o755))
	must(t, os.Mkdir(in(host, "tree/sub"), 0o755))
	write(t, in(host, "tree/old"))
	write(t, in(host, "tree/gone"))
	awaitTick(t)
	top, dir := bound(t, in(host, "tree"))
	w := watching(t, group(t).Mount, top)
	r := record(t, w)
	write(t, in(host, "tree/not through the mount"))
	write(t, in(host, "outside"))
	write(t, in(dir, "old"))
	write(t, in(dir, "sub/new"))
	write(t, in(dir, "temporary"))
	must(t, os.Rename(in(dir, "temporary"), in(dir, "kept")))
	write(t, in(dir, "brief"))
	must(t, os.Remove(in(dir, "brief")))
	must(t, os.Remove(in(dir, "gone")))
	changes, missed := r.End()
	if got := shown(changes); got != "+/kept +/sub/new ~/old" || missed {
		t.Errorf("got %s, missed %v", got, missed)
	}
}

func TestMountOfOneFile(t *testing.T) {
	host := t.TempDir()
	write(t, in(host, "a"))
	write(t, in(host, "b"))
	awaitTick(t)
	top, file := bound(t, in(host, "a"))
	w := watching(t, group(t).Mount, top)
	r := record(t, w)
	write(t, file)
	write(t, in(host, "b"))
	if changes, missed := r.End(); len(changes) != 1 || !changes[0].Was || missed {
		t.Errorf("got %s, missed %v", shown(changes), missed)
	}
}

// Of a file that is not below the mount any more nothing is said, nor where it is.
func TestMountTellsNothingOfWhatLeftIt(t *testing.T) {
	host := t.TempDir()
	must(t, os.MkdirAll(in(host, "tree/sub"), 0o755))
	top, dir := bound(t, in(host, "tree"))
	w := watching(t, group(t).Mount, top)
	r := record(t, w)
	write(t, in(dir, "sub/x"))
	must(t, os.Rename(in(host, "tree/sub"), in(host, "elsewhere")))
	if changes, _ := r.End(); len(changes) > 0 {
		t.Errorf("got %s", shown(changes))
	}
}

// More names than are held are not, and what is there in time costs no more events.
func TestTooManyNamesAreBounded(t *testing.T) {
	top, dir := memory(t)
	w := watching(t, group(t).FileSystem, top)
	r := record(t, w)
	for i := range 2 * maxNames {
		write(t, in(dir, fmt.Sprint(i)))
	}
	changes, missed := r.End()
	if !missed || len(changes) != maxNames || w.marked {
		t.Errorf("%d changes, missed %v, still told %v", len(changes), missed, w.marked)
	}
	again := record(t, w)
	write(t, in(dir, "later"))
	if changes, missed := again.End(); shown(changes) != "+/later" || missed {
		t.Errorf("the next recording: %s, missed %v", shown(changes), missed)
	}
}

// What comes and goes takes no room, but not without end.
func TestTooManyEventsAreBounded(t *testing.T) {
	top, dir := memory(t)
	w := watching(t, group(t).FileSystem, top)
	r := record(t, w)
	for i := range maxNames * 3 {
		write(t, in(dir, fmt.Sprint(i)))
		must(t, os.Remove(in(dir, fmt.Sprint(i))))
	}
	write(t, in(dir, "last"))
	must(t, w.group.take())
	w.group.mu.Lock()
	r.events = maxEvents * 1000
	w.group.mu.Unlock()
	write(t, in(dir, "too much"))
	changes, missed := r.End()
	if shown(changes) != "+/last" || !missed {
		t.Errorf("got %s, missed %v", shown(changes), missed)
	}
}

// When more happens at once than the kernel keeps, that is said.
func TestOverflowIsSaid(t *testing.T) {
	top, dir := memory(t)
	g := group(t)
	w := watching(t, g.FileSystem, top)
	r := record(t, w)
	g.mu.Lock() // nobody takes any
	for i := range 17_000 {
		must(t, os.Mkdir(in(dir, fmt.Sprint(i)), 0o755))
		must(t, os.Remove(in(dir, fmt.Sprint(i))))
	}
	g.mu.Unlock()
	if _, missed := r.End(); !missed {
		t.Error("nothing is said of what was dropped")
	}
}

func TestGroupClosesTwice(t *testing.T) {
	top, _ := memory(t)
	g := group(t)
	watching(t, g.FileSystem, top)
	must(t, g.Close())
	must(t, g.Close())
	if _, err := g.FileSystem(top); err == nil {
		t.Error("a closed group watches")
	}
}

// What a recording adds to something that changes nothing.
func BenchmarkNothing(b *testing.B) {
	top, _ := memory(b)
	w := watching(b, group(b).FileSystem, top)
	for b.Loop() {
		if changes, missed := record(b, w).End(); len(changes) > 0 || missed {
			b.Fatal(changes, missed)
		}
	}
}
