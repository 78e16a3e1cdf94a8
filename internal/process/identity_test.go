package process

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// sleeper starts a process that runs until it is killed.
func sleeper(t *testing.T) (*exec.Cmd, ID) {
	t.Helper()
	cmd := testhost.Sleeping(t)
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, id
}

func TestOnlyTheNamedProcessIsKilled(t *testing.T) {
	cmd, id := sleeper(t)
	reused := id
	reused.Start += 2 // a tick is within the error of time namespaces
	if err := reused.End(time.Minute); err != nil || !id.Lives() {
		t.Fatalf("the end of an earlier process with the number: %v; the present process lives: %v", err, id.Lives())
	}
	elsewhere := id
	elsewhere.Namespace = "pid:[1]"
	if err := elsewhere.End(time.Minute); err == nil || !id.Lives() {
		t.Fatalf("of another namespace: %v; lives: %v", err, id.Lives())
	}
	killed, err := id.Kill()
	if err != nil {
		t.Fatal(err)
	}
	defer killed.Close()
	if err := killed.Await(time.Minute); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if err := id.End(time.Minute); err != nil {
		t.Errorf("of a process that has ended: %v", err)
	}
}

func TestAwaitHasAnEnd(t *testing.T) {
	_, id := sleeper(t)
	pidfd, err := id.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	if err := (Victim{id.Pid, pidfd}).Await(10 * time.Millisecond); err == nil {
		t.Error("no error, and the process lives")
	}
}

func TestWhoHasEndedIsToldFromWhoLives(t *testing.T) {
	self, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	cmd, ended := sleeper(t)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	reused, elsewhere := self, self
	reused.Start += 2 // a tick is within the error of time namespaces
	elsewhere.Namespace = "pid:[1]"
	for name, test := range map[string]struct {
		ID
		lives, ends bool
	}{
		"this process":                  {self, true, false},
		"one that had its number":       {reused, false, true},
		"one that has ended":            {ended, false, true},
		"one of another pid namespace":  {elsewhere, true, true},
		"none: of a record that is not": {ID{Namespace: self.Namespace}, false, true},
	} {
		if lives, ends := test.lives, test.ends; test.Lives() != lives || test.Ends() != ends {
			t.Errorf("%s: lives %v, ends %v", name, test.Lives(), test.Ends())
		}
	}
}
