package integration

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// monkey does random things to a directory, here and in a sandbox.
//
//go:embed testdata/monkey.py
var monkey string

// seedsVariable names other seeds for the random tests: 17-17, or 0-300.
const seedsVariable = "SANDBOX_RUNTIME_INTEGRATION_SEEDS"

// seeds are those of the random tests.
func seeds(t *testing.T) (first, last int) {
	t.Helper()
	text := os.Getenv(seedsVariable)
	if text == "" {
		return 1, 12
	}
	if n, err := fmt.Sscanf(text, "%d-%d", &first, &last); n != 2 {
		t.Fatalf("%s=%s: %v, want FIRST-LAST", seedsVariable, text, err)
	}
	return first, last
}

// Whatever a sandbox does to its overlays: what is saved of it and extracted over
// what was there before, and what is applied to the host, is what the sandbox saw.
func TestChangesAreWhatTheSandboxSaw(t *testing.T) {
	testhost.Long(t)
	forSeeds(t, func(t *testing.T, ground string, seed int) {
		w := newWild(t, ground, seed)
		w.act(seed)
		saw := w.saw(layertest.All)
		copied := w.copied()
		w.layertar(copied)
		w.compare("saved and extracted", w.trees(copied, layertest.All), saw)
		w.apply("--setuid")
		w.compare("applied", w.trees("", layertest.All), saw)
		if seed%2 == 0 {
			return
		}
		// The sandbox goes on with what is on the host by now.
		w.act(seed + 1000)
		saw = w.saw(layertest.All)
		w.apply("--setuid")
		host := w.trees("", layertest.All)
		w.compare("applied again", host, saw)
		w.act(seed + 2000)
		if got := run(t, w.command("discard", "box")); got.code != 0 {
			t.Errorf("%+v", got)
		}
		w.compare("discarded", w.saw(layertest.All), host)
		if got := run(t, w.command("changes", "box")); got != (result{}) {
			t.Errorf("nothing is left, but: %+v", got)
		}
	})
}

// The same with the content of a patch. Each second seed has binary files.
func TestPatchesAreWhatTheSandboxSaw(t *testing.T) {
	testhost.Long(t)
	forSeeds(t, func(t *testing.T, ground string, seed int) {
		flavour := []string{"text"}
		if seed%2 == 0 {
			flavour = append(flavour, "binary")
		}
		w := newWild(t, ground, seed, flavour...)
		w.act(seed)
		copied := w.copied()
		w.patch(copied)
		w.compare("as a patch", w.trees(copied, 0), w.saw(0))
	})
}

// A transaction joins the same writes as the command makes without one, above earlier writes of other commands.
func TestTransactionsJoinWhatTheyWrote(t *testing.T) {
	testhost.Long(t)
	need(t, layersOfAnywhere(t))
	forSeeds(t, func(t *testing.T, ground string, seed int) {
		var saw []map[string]string
		for _, flags := range [][]string{nil, {"--transaction"}} {
			dir := filepath.Join(ground, fmt.Sprint("of-", len(flags)))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			w := newWild(t, dir, seed, "text", "single")
			w.act(seed)
			w.with = flags
			w.act(seed + 1000)
			saw = append(saw, w.saw(0))
		}
		layertest.Same(t, saw[1], saw[0])
	})
}

// forSeeds runs a test with each seed. Each file system has its part of the seeds, and
// all of them where the environment names the seeds. The test gets an empty directory on
// the file system.
func forSeeds(t *testing.T, test func(t *testing.T, ground string, seed int)) {
	leavesNothing(t)
	first, last := seeds(t)
	all := os.Getenv(seedsVariable) != ""
	for i, fsType := range hostFileSystems {
		t.Run(fsType, func(t *testing.T) {
			disk := filepath.Join(t.TempDir(), fsType)
			newFileSystem(t, fsType, disk, 512)
			for seed := first; seed <= last; seed++ {
				// Seeds that differ by 4 are alike: each file system gets all kinds.
				if kinds := len(hostFileSystems); !all && (seed+seed/kinds)%kinds != i {
					continue
				}
				ground := filepath.Join(disk, fmt.Sprint(seed))
				if err := os.Mkdir(ground, 0o755); err != nil {
					t.Fatal(err)
				}
				if !t.Run(fmt.Sprint(seed), func(t *testing.T) { test(t, ground, seed) }) {
					t.Logf("again: %s=%d-%d", seedsVariable, seed, seed)
				}
				if err := os.RemoveAll(ground); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A wild sandbox has overlays of an ordinary user's random trees: one, or two with
// every third seed; its store is on disk with every other two. With every other
// seed no file of the trees has two names: to remove one changes the other's ctime,
// in which an apply that comes later sees a conflict.
type wild struct {
	*sandboxes
	t       *testing.T
	dirs    []string
	flavour []string
	// with are flags of exec.
	with []string
}

const wildOwner = 4242

func newWild(t *testing.T, ground string, seed int, flavour ...string) *wild {
	t.Helper()
	w := &wild{sandboxes: newSandboxes(t), t: t, flavour: flavour}
	flags := []string{"--storage", []string{"memory", "disk"}[seed/2%2]}
	before := flavour
	if seed%2 == 1 {
		before = append(before, "single")
	}
	for i := range 1 + (seed%3)/2 {
		dir := filepath.Join(ground, fmt.Sprint("wild-", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(hostTool(t, "python3"), append([]string{"-c", monkey, dir, fmt.Sprint(2*seed + i), "150"}, before...)...)
		if got := run(t, cmd); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		own(t, dir, wildOwner)
		w.dirs, flags = append(w.dirs, dir), append(flags, "--overlay", dir)
	}
	w.up("box", flags...)
	return w
}

// act has the monkey in the sandbox.
func (w *wild) act(seed int) {
	w.t.Helper()
	if w.actTimes(seed, 150) == 0 {
		w.t.Fatal("the sandbox has changed nothing")
	}
}

// actTimes is act with so many tries. It returns how many things were possible.
func (w *wild) actTimes(seed, count int) (done int) {
	w.t.Helper()
	for i, dir := range w.dirs {
		got := w.exec(append(append(slices.Clone(w.with), "box", "python3", "-c", monkey, dir, fmt.Sprint(2*seed+i+7), fmt.Sprint(count)), w.flavour...)...)
		n, err := strconv.Atoi(strings.TrimSpace(got.stdout))
		if got.code != 0 || err != nil {
			w.t.Fatalf("%+v", got)
		}
		done += n
	}
	return done
}

// trees describes all trees, which lie below root. Their owner has no number.
func (w *wild) trees(root string, parts layertest.Parts) map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for i, dir := range w.dirs {
		at := filepath.Join(root, dir)
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			w.t.Fatal(err)
		}
		for path, text := range layertest.Tree(w.t, at, parts) {
			text = strings.Replace(text, fmt.Sprintf(" %d:%d ", st.Uid, st.Gid), " its owner ", 1)
			all[fmt.Sprint(i, "/", path)] = strings.Replace(text, " 1000:1000 ", " its owner ", 1) // as an archive has it
		}
	}
	return all
}

// saw is what the sandbox sees.
func (w *wild) saw(parts layertest.Parts) map[string]string {
	w.t.Helper()
	return w.trees(fmt.Sprintf("/proc/%d/root", w.pid("box")), parts)
}

func (w *wild) compare(what string, got, want map[string]string) {
	w.t.Helper()
	w.t.Log(what)
	for path, text := range got {
		// A file that was below and has got a second name has two numbers, for
		// whoever looks at the overlay, until it is mounted again.
		if text, _, is := strings.Cut(text, " is "); is && text == want[path] {
			got[path] = text
		}
	}
	layertest.Same(w.t, got, want)
}

// copied is where the trees are copied to, at the same paths below.
func (w *wild) copied() string {
	w.t.Helper()
	root := w.t.TempDir()
	for _, dir := range w.dirs {
		if out, err := exec.Command("sh", "-euc", `mkdir -p "$2"; cp -a "$1/." "$2"`, "sh", dir, root+dir).CombinedOutput(); err != nil {
			w.t.Fatalf("%v: %s", err, out)
		}
	}
	return root
}

// save saves the changes, and returns the file and the directory below root that
// its paths lie in.
func (w *wild) save(root, suffix string) (file, dir string) {
	w.t.Helper()
	file = filepath.Join(w.t.TempDir(), "changes"+suffix)
	if got := run(w.t, w.command("save", "box", file)); got.code != 0 {
		w.t.Fatalf("%+v", got)
	}
	if len(w.dirs) == 1 {
		return file, root + w.dirs[0]
	}
	return file, root
}

func (w *wild) layertar(root string) {
	w.t.Helper()
	file, dir := w.save(root, ".tar")
	f, err := os.Open(file)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	layertest.Extract(w.t, f, dir)
}

func (w *wild) patch(root string) {
	w.t.Helper()
	file, dir := w.save(root, ".patch")
	cmd := exec.Command("git", "apply", "--whitespace=nowarn", file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Errorf("%v: %s", err, out)
	}
}

func (w *wild) apply(flags ...string) {
	w.t.Helper()
	if got := run(w.t, w.command(append(append([]string{"apply", "--yes"}, flags...), "box")...)); got.code != 0 {
		w.t.Fatalf("%+v", got)
	}
}
