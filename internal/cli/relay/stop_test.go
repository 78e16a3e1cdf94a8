package relay

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stoppedEnv has the test binary be a program whose relay has stopped.
const stoppedEnv = "RELAY_STOPPED"

func TestMain(m *testing.M) {
	if os.Getenv(stoppedEnv) != "" {
		_, r := Catch(context.Background(), "prune")
		r.Stop()
		for range 3_000 {
			if _, err := fmt.Println("stopped"); err != nil {
				os.Exit(4)
			}
			time.Sleep(10 * time.Millisecond)
		}
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// A signal has its usual effect once the relay has stopped: a program that hangs in its last write ends.
func TestSignalsEndAProgramAfterStop(t *testing.T) {
	for _, s := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), stoppedEnv+"=1")
		out, err := cmd.StdoutPipe()
		if err == nil {
			caught := make(chan os.Signal, 1)
			signal.Notify(caught, s) // below nohup a program would inherit that SIGHUP is ignored
			err = cmd.Start()
			signal.Stop(caught)
		}
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "stopped\n" {
			t.Fatalf("read %q: %v", line, err)
		}
		if s == unix.SIGPIPE { // a write raises it
			err = out.Close()
		} else {
			err = cmd.Process.Signal(s)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the status is looked at below
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != s {
			t.Errorf("%v: ended with %v", s, cmd.ProcessState)
		}
	}
}
