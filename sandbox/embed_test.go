package sandbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The example is what a program without cgo gets, from the outside.
func TestEmbedExample(t *testing.T) {
	needLauncher(t)
	program := filepath.Join(t.TempDir(), "embed")
	build := exec.Command("go", "build", "-o", program, "../examples/embed")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program).CombinedOutput()
	want := regexp.MustCompile(`^compile part 1
compile part 2
compile part 3
signaled: the caller gave up, and the command ended after SIGTERM
[0-9.]+m?s of processor time, [0-9.]+ MiB at most
build.sh
1000
$`)
	if err != nil || !want.Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}
