package process

import (
	"bufio"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The offsets of a process's children say nothing about the process: with them each living process looks dead.
func TestOffsetsOfAnotherTimeNamespaceAreNotUsed(t *testing.T) {
	testhost.NeedRoot(t, "makes a time namespace")
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not on PATH")
	}
	const newTime = `
import ctypes
if ctypes.CDLL(None).unshare(0x80) == 0:
    open('/proc/self/timens_offsets', 'w').write('boottime 5000 0')
    print('ready', flush=True)
    input()
`
	cmd := exec.Command("python3", "-c", newTime)
	stdin, inErr := cmd.StdinPipe()
	stdout, err := cmd.StdoutPipe()
	if err != nil || inErr != nil {
		t.Fatal(err, inErr)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = cmd.Wait() // input fails
	}()
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Skip("this kernel has no time namespaces (Linux 5.6)")
	}
	if got, err := offsetOf("/proc/" + strconv.Itoa(cmd.Process.Pid)); err == nil {
		t.Errorf("got %s, want an error", got)
	}
	if got, err := offsetOf("/proc/self"); err != nil || got > time.Hour {
		t.Errorf("this process: %s, %v", got, err)
	}
}
