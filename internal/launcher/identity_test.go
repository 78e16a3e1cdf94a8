package launcher

import (
	"errors"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestWhoHasEndedIsToldFromWhoLives(t *testing.T) {
	self, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	reused, elsewhere := self, self
	reused.Start++
	elsewhere.Namespace = "pid:[1]"
	for name, test := range map[string]struct {
		identity
		lives, ends bool
	}{
		"this process":                  {self, true, false},
		"one that had its number":       {reused, false, true},
		"one that has ended":            {deadProcess(t), false, true},
		"one of another pid namespace":  {elsewhere, true, true},
		"none: of a record that is not": {identity{Namespace: self.Namespace}, false, true},
	} {
		if lives, ends := test.lives, test.ends; test.identity.lives() != lives || test.identity.ends() != ends {
			t.Errorf("%s: lives %v, ends %v", name, test.identity.lives(), test.identity.ends())
		}
	}
}

// A connection that is lost is no sandbox that has ended.
func TestALostConnectionIsNotTheSandboxesEnd(t *testing.T) {
	l := newTestLauncher(t)
	sb := up(t, l, "", spec.Config{})
	conn, err := sb.live.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = sb.Start(t.Context(), launch.Command{Args: []string{"true"}}, [3]*os.File{})
	if err == nil || errors.Is(err, launch.ErrNotRunning) {
		t.Errorf("got %v", err)
	}
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("the next: %+v", r)
	}
}
