package sandbox_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

func TestRunHasATimeout(t *testing.T) {
	fake := &sandboxtest.Fake{}
	m := newFake(t, fake)
	for _, config := range []sandbox.Config{{}, {Timeout: sandbox.Duration(time.Hour)}} {
		if _, err := create(t, m, config).Run(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	asked := fake.Commands()
	if asked[0].Timeout != sandbox.RunTimeout || asked[1].Timeout != 0 {
		t.Errorf("got %s, %s", asked[0].Timeout, asked[1].Timeout)
	}
}

func TestMistakesInACommandAreErrors(t *testing.T) {
	fake := &sandboxtest.Fake{}
	sb := create(t, newFake(t, fake), sandbox.Config{})
	args := []string{"true"}
	for name, c := range map[string]sandbox.Command{
		"no program":       {},
		"empty program":    {Args: []string{""}},
		"NUL in argument":  {Args: []string{"true", "a\x00b"}},
		"NUL in directory": {Args: args, Cwd: "/\x00"},
		"NUL in variable":  {Args: args, Env: map[string]string{"A": "\x00"}},
		"= in name":        {Args: args, Env: map[string]string{"A=B": ""}},
		"empty name":       {Args: args, Env: map[string]string{"": "x"}},
		"relative cwd":     {Args: args, Cwd: "x"},
		"negative timeout": {Args: args, Timeout: -1},
		"negative limit":   {Args: args, OutputLimit: -1},
		"the agent's user": {Args: args, User: &sandbox.User{UID: 65535}},
		"terminal, stderr": {Args: args, Terminal: &sandbox.Winsize{}, Stderr: os.Stderr},
		"detached, stdin":  {Args: args, Detached: true, Stdin: os.Stdin},
		"detached, stdout": {Args: args, Detached: true, Stdout: os.Stdout},
	} {
		t.Run(name, func(t *testing.T) {
			var wrong *sandbox.ConfigError
			if _, err := sb.Start(t.Context(), c); !errors.As(err, &wrong) {
				t.Errorf("Start: %v", err)
			}
			if _, err := sb.Exec(t.Context(), c); !errors.As(err, &wrong) {
				t.Errorf("Exec: %v", err)
			}
		})
	}
	if len(fake.Commands()) != 0 {
		t.Errorf("%v were asked for", fake.Commands())
	}
	if _, err := sb.Exec(t.Context(), sandbox.Command{Args: args, Detached: true}); err == nil {
		t.Error("a detached command was waited for")
	}
}

// Who was handed the command's output by it, and keeps it, is not waited for;
// what was written before is not lost.
func TestEndDoesNotWaitForOtherHoldersOfTheOutput(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	for _, pause := range []string{"", "sleep 0.05;"} {
		begun := time.Now()
		r, err := sb.Run(t.Context(), "echo last words; "+pause+" setsid sleep 60 &"+pause+" true")
		if err != nil || string(r.Stdout) != "last words\n" || time.Since(begun) > testhost.Patience {
			t.Errorf("%q: got %+v after %s, %v", pause, r, time.Since(begun), err)
		}
	}
}

func TestContextThatIsDoneStartsNothing(t *testing.T) {
	fake := &sandboxtest.Fake{}
	sb := create(t, newFake(t, fake), sandbox.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.Run(ctx, "true"); !errors.Is(err, context.Canceled) || len(fake.Commands()) != 0 {
		t.Errorf("%v were asked for, %v", fake.Commands(), err)
	}
}
