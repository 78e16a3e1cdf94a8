package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An apply reads the layers before it changes the host. A directory that is renamed in between would lose its
// content with the host's directory.
func TestUntieRefusesADirectoryThatWasRenamedSinceLayers(t *testing.T) {
	for _, unprivileged := range []bool{false, true} {
		l := newTestLauncher(t)
		dir := overlaid(t)
		sb := createUp(t, l, "", spec.Config{Overlays: []string{dir}})
		layers := func() []layer.Overlay {
			t.Helper()
			trees, err := layersOf(t, sb, unprivileged)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closeTrees(trees) })
			return trees
		}
		layers()
		if _, out := sh(t, sb, "cd "+dir+" && python3 -c 'import os; os.rename(\"dir\", \"new\")'"); out.stderr != "" {
			t.Fatal(out.stderr)
		}
		if err := sb.Untie(t.Context(), untied()); !errors.Is(err, layer.ErrRenamed) || !strings.Contains(err.Error(), dir+"/new") {
			t.Errorf("renamed since: %v", err)
		}
		trees := layers()
		if _, err := os.Stat(filepath.Join("/proc/self/fd", strconv.Itoa(int(trees[0].Layers[0].Dir.Fd())), "new/file")); err != nil {
			t.Errorf("the layer is not whole: %v", err)
		}
		if marks := trees[0].Layers[0].Marks; unprivileged && !marks["new"].Opaque {
			t.Errorf("the marks are %v", marks)
		}
		if err := sb.Untie(t.Context(), untied()); err != nil {
			t.Errorf("whole: %v", err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "dir")); err != nil {
			t.Fatal(err)
		}
		if _, out := sh(t, sb, "ls "+dir+"/new"); out.stdout != "file\n" {
			t.Errorf("without the host's directory there is %+v", out)
		}
		if r := sb.session.Current(); r.Version != record.FormatVersion || r.Switch != nil {
			t.Errorf("the record is %+v", r)
		}
	}
}

// renamedBy returns a sandbox in which a script of Python has renamed directories. They are whole.
func renamedBy(t *testing.T, dir, script string) *Sandbox {
	t.Helper()
	sb := createUp(t, newTestLauncher(t), "", spec.Config{Overlays: []string{dir}})
	p := detachedStart(t, sb, spec.Command{Args: []string{"python3", "-u", "-c", "import ctypes, os, threading, time\nos.chdir('" + dir + "')\n" + script}})
	testhost.Eventually(t, "the renames", func() bool { return readOutput(t, p).stdout == "renamed\n" })
	trees, err := layersOf(t, sb, false)
	if err != nil {
		t.Fatal(err)
	}
	closeTrees(trees)
	return sb
}

// Each directory that is renamed again during Untie must have its content without the host's directory.
func TestUntieFollowsRenames(t *testing.T) {
	dir := overlaid(t)
	for i := range 9 {
		if out, err := exec.Command("cp", "-a", dir+"/dir", fmt.Sprintf("%s/dir%d", dir, i)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	sb := renamedBy(t, dir, `
for i in range(9): os.rename(f'dir{i}', f'a{i}')
print('renamed')
while True:
    for i in range(9): os.rename(f'a{i}', f'b{i}')
    for i in range(9): os.rename(f'b{i}', f'a{i}')
`)
	// A look at the layers can miss a directory that is being renamed. The caller tries again.
	for err := sb.Untie(t.Context(), untied()); err != nil; err = sb.Untie(t.Context(), untied()) {
		if !errors.Is(err, layer.ErrRenamed) {
			t.Fatal(err)
		}
		trees, err := layersOf(t, sb, false)
		if err != nil {
			t.Fatal(err)
		}
		closeTrees(trees)
	}
	for i := range 9 {
		if err := os.RemoveAll(fmt.Sprintf("%s/dir%d", dir, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root%s/", sb.session.Init().Pid, dir)
	if files, err := filepath.Glob(root + "[ab][0-8]/file"); err != nil || len(files) != 9 {
		t.Errorf("of 9 directories these have their file: %q, %v", files, err)
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A killed Untie can have marked the directories of the layer. The kernel still remembers the directories of the host.
func TestUntieAfterAKilledOne(t *testing.T) {
	dir := overlaid(t)
	sb := renamedBy(t, dir, "os.rename('dir', 'new'); print('renamed'); os.stat('new/file'); time.sleep(600)")
	store, err := record.OpenStore(sb.session.Init())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	upper, err := descriptor.OpenDir(store, "layer/0/data")
	if err != nil {
		t.Fatal(err)
	}
	defer upper.Close()
	if err := layer.MakeOpaque(t.Context(), upper, "new"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one has nothing to do
		if err := sb.Untie(t.Context(), untied()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "dir")); err != nil {
		t.Fatal(err)
	}
	if _, out := sh(t, sb, "ls "+dir+"/new"); out.stdout != "file\n" {
		t.Errorf("without the host's directory there is %+v", out)
	}
}

// procfs shows no directory of an ended main thread, although the rest of the process uses it.
func TestUntieSeesAProcessWithoutItsMainThread(t *testing.T) {
	for name, use := range map[string]string{
		"directory": "os.chdir('new')",
		"file":      "f = open('new/file')",
		"memory":    "f = open('new/file'); ctypes.CDLL(None).mmap(None, 4096, 1, 2, f.fileno(), 0); f.close()",
	} {
		t.Run(name, func(t *testing.T) {
			sb := renamedBy(t, overlaid(t), "os.rename('dir', 'new'); "+use+`
def tell():
    while open(f'/proc/self/stat').read().rsplit(')')[1].split()[0] != 'Z': time.sleep(.01)
    print('renamed')
    time.sleep(600)
threading.Thread(target=tell).start()
ctypes.CDLL(None).pthread_exit(0)
`)
			if err := sb.Untie(t.Context(), untied()); !errors.Is(err, fault.ErrBusy) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// untied is the question of an apply that has begun to read just now.
func untied() protocol.Untie { return protocol.Untie{Since: time.Now(), Directories: true} }

// A client that reads while a directory of the host has another name finds the directory deleted, or finds another one in
// its place. Nothing of that is left in the layer once the directory has its first name again.
func TestUntieKnowsWhatWasRenamedBack(t *testing.T) {
	const rename = "import os; os.rename('dir', 'new'); os.rename('new', 'dir')"
	dir := overlaid(t)
	sb := createUp(t, newTestLauncher(t), "", spec.Config{Overlays: []string{dir}})
	for _, directories := range []bool{true, false} {
		question := protocol.Untie{Since: time.Now(), Directories: directories}
		if err := sb.Untie(t.Context(), question); err != nil {
			t.Errorf("directories %t: before a rename: %v", directories, err)
		}
		if _, out := sh(t, sb, `cd `+dir+` && python3 -c "`+rename+`"`); out.stderr != "" {
			t.Fatal(out.stderr)
		}
		if err := sb.Untie(t.Context(), question); !errors.Is(err, layer.ErrRenamed) || !strings.Contains(err.Error(), dir+"/dir: ") {
			t.Errorf("directories %t: renamed and renamed back: %v", directories, err)
		}
		time.Sleep(50 * time.Millisecond)
		question.Since = time.Now()
		if err := sb.Untie(t.Context(), question); err != nil {
			t.Errorf("directories %t: another apply: %v", directories, err)
		}
	}
	if _, out := sh(t, sb, "cat "+dir+"/dir/file"); out.stderr != "" {
		t.Errorf("the sandbox sees %+v", out)
	}
}

// The sandbox chooses the names of its processes and directories. None of them makes a line of its own in an error.
func TestUntieNamesAProcessOnOneLine(t *testing.T) {
	dir := overlaid(t)
	sb := renamedBy(t, dir, `
ctypes.CDLL(None).prctl(15, b'a\nb', 0, 0, 0)
os.rename('dir', 'new\nline')
os.chdir('new\nline')
print('renamed')
time.sleep(60)
`)
	err := sb.Untie(t.Context(), untied())
	if !errors.Is(err, fault.ErrBusy) || !strings.Contains(err.Error(), `("a\nb") is in "`+dir+`/new\nline"; `) {
		t.Errorf("Untie: %v", err)
	}
}
