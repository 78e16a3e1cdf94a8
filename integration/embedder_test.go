package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// moduleCopy has the committed files of the module, on a mount that nobody can write to, as
// the module cache of another user.
func moduleCopy(t *testing.T) string {
	t.Helper()
	if exec.Command("git", "-C", "..", "rev-parse", "HEAD").Run() != nil {
		t.Skip("the checkout has no history")
	}
	dir := t.TempDir()
	copied := exec.Command("sh", "-euc", `cd ..; git ls-files -z | tar --null -T - -c | tar -x -C "$1"`, "sh", dir)
	if said, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// An embedder is a Go module of its own that requires this one.
type embedder struct {
	t   *testing.T
	dir string
}

func newEmbedder(t *testing.T, program string) *embedder {
	t.Helper()
	e := &embedder{t, t.TempDir()}
	main, err := os.ReadFile("testdata/embedder/" + program + "/main.go")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../go.sum") // "go get" writes these lines
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/sandbox-runtime/sandbox-runtime"
	mod := "module example.org/embedder\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + moduleCopy(t) + "\n"
	for name, content := range map[string]string{"main.go": string(main), "go.sum": string(sums), "go.mod": mod} {
		if err := os.WriteFile(filepath.Join(e.dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// build returns the program, alone in a directory. The flags give packages that later runs
// and "make build" find in Go's build cache.
func (e *embedder) build(cgo, tags string) (program, said string, err error) {
	e.t.Helper()
	program = filepath.Join(e.t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", tags, "-o", program, ".")
	cmd.Dir = e.dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "CGO_ENABLED="+cgo)
	out, err := cmd.CombinedOutput()
	return program, string(out), err
}

func TestEmbedderWithoutCgoBuildsFromTheModuleAlone(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	program, said, err := newEmbedder(t, "beside").build("0", "")
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	cmd := exec.Command(program, t.TempDir())
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary(t))+":"+os.Getenv("PATH"))
	if got := run(t, cmd); got.stdout != "42\n1000\n<nil> full\n" {
		t.Errorf("%+v", got)
	}
}

func TestEmbedderWithItsOwnLauncherIsOneFile(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	program, said, err := newEmbedder(t, "onefile").build("1", "seccomp netgo osusergo")
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	cmd := exec.Command(program, t.TempDir())
	cmd.Env = []string{"PATH=/nowhere"}
	if got := run(t, cmd); got.stdout != "1000\n<nil> full\n42\n<nil>\n" {
		t.Errorf("%+v", got)
	}
}

func TestEmbedderWithoutTheTagIsToldTheTag(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	_, said, err := newEmbedder(t, "onefile").build("1", "netgo osusergo")
	if err == nil || !strings.Contains(said, "build_with_tags_seccomp") {
		t.Errorf("%v: %s", err, said)
	}
}
