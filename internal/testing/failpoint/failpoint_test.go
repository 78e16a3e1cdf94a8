package failpoint

import (
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// A goroutine can start a process on a thread that traces later. The goroutine can still wait for its process.
func TestTheTracerLeavesOtherChildren(t *testing.T) {
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for range 50 {
				cmd := exec.Command("true")
				err := cmd.Start()
				time.Sleep(10 * time.Millisecond) // the thread is free for others
				if err := errors.Join(err, cmd.Wait()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var tracers sync.WaitGroup
	for range 4 {
		tracers.Go(func() {
			for range 10 {
				if _, err := Run(exec.Command("sleep", "0.02"), 0, time.Minute); err != nil {
					t.Error(err)
				}
			}
		})
	}
	tracers.Wait()
	others.Wait()
}
