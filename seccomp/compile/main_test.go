package compile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
)

// The tests start this binary again as a child that loads a filter, which
// nobody can take off again, and then does what its mode says.
const (
	childMode    = "SECCOMP_TEST_CHILD"
	childProfile = "SECCOMP_TEST_PROFILE"
	childDir     = "SECCOMP_TEST_DIR"
)

// noProfile stands among the profiles for a child without a filter.
const noProfile = "none"

func profiles() []string { return []string{"default", "strict", "debug"} }

func TestMain(m *testing.M) {
	switch mode := os.Getenv(childMode); mode {
	case "":
		os.Exit(m.Run())
	case "exit":
	case "probe":
		exitOn(mode, loadProfile(os.Getenv(childProfile)))
		exitOn(mode, json.NewEncoder(os.Stdout).Encode(tryAll(os.Getenv(childDir))))
	case "exec":
		exitOn(mode, loadProfile(os.Getenv(childProfile)))
		path, err := exec.LookPath(os.Args[1])
		exitOn(mode, err)
		exitOn(mode, unix.Exec(path, os.Args[1:], programEnviron()))
	}
	os.Exit(0)
}

func exitOn(mode string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "child %s: %v\n", mode, err)
		os.Exit(70)
	}
}

// loadProfile puts all threads of this process under the filter for the
// built-in profile, with no_new_privs.
func loadProfile(name string) error {
	if name == noProfile {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	profile, err := seccomp.Profile(name)
	if err != nil {
		return err
	}
	filter, err := build(profile)
	if err != nil {
		return err
	}
	return filter.Load()
}

// programEnviron is the environment without what is meant for the child.
func programEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "SECCOMP_TEST_") })
}

// child is this binary as a child in a session of its own, killed if it hangs: to
// compile a program, with all of Go's library, takes a slow machine minutes.
func child(t *testing.T, mode, profile, dir string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.WaitDelay = testhost.Patience
	cmd.Dir = dir
	cmd.Env = append(programEnviron(), childMode+"="+mode, childProfile+"="+profile, childDir+"="+dir)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	return cmd
}

// tryAll tries every probe and returns the error number each was answered with,
// 0 for none.
func tryAll(dir string) map[string]unix.Errno {
	answers := map[string]unix.Errno{}
	for _, p := range allProbes() {
		done := make(chan error)
		go func() {
			// Never unlocked: what a call did to its thread ends with it.
			runtime.LockOSThread()
			done <- p.try(dir)
		}()
		err := <-done
		var errno unix.Errno
		if err != nil && !errors.As(err, &errno) {
			exitOn("probe "+p.name, err)
		}
		answers[p.name] = errno
	}
	return answers
}
