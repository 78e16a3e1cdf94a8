package process

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// headless starts a process and returns when its main thread has ended.
func headless(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testhost.Headless(t))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("it prints %q, %v", line, err)
	}
	return cmd
}

func TestAProcessOutlivesItsMainThread(t *testing.T) {
	cmd := headless(t)
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatalf("a process without its main thread: %v", err)
	}
	if !id.Lives() || id.Ends() || !LacksMainThread(id.Pid) {
		t.Errorf("lives %v, ends %v, lacks its main thread %v", id.Lives(), id.Ends(), LacksMainThread(id.Pid))
	}
	dir := Dir(id.Pid)
	if dir == "/proc/"+strconv.Itoa(id.Pid) {
		t.Errorf("its directory is that of the main thread, %s", dir)
	}
	if _, err := os.Readlink(dir + "/cwd"); err != nil {
		t.Error(err)
	}
	if err := id.End(time.Minute); err != nil {
		t.Fatal(err)
	}
	if id.Lives() || !id.Ends() || LacksMainThread(id.Pid) {
		t.Errorf("killed: lives %v, ends %v, lacks its main thread %v", id.Lives(), id.Ends(), LacksMainThread(id.Pid))
	}
}

func TestDirOfAProcessWithItsMainThread(t *testing.T) {
	if got, want := Dir(os.Getpid()), "/proc/"+strconv.Itoa(os.Getpid()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
