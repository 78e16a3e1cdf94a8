package process

import (
	"os"
	"os/exec"
	"testing"
)

func TestWhoHasEndedIsToldFromWhoLives(t *testing.T) {
	self, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	reused, elsewhere := self, self
	reused.Start++
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
