package testhost

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// leaveVariable, when set, says what the test binary's own test leaves behind.
const leaveVariable = "TESTHOST_TEST_LEAVE"

func TestMain(m *testing.M) { os.Exit(RunMounting(m)) }

func TestWhatIsLeftFailsThePackage(t *testing.T) {
	NeedRoot(t, "mounts are made")
	for name, fails := range map[string]bool{"nothing": false, "descriptor": true, "mount": true, "mount of others": false} {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestLeave$")
		cmd.Env = append(os.Environ(), leaveVariable+"="+name, "TMPDIR="+t.TempDir())
		cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} // makes / private, too
		if out, err := cmd.CombinedOutput(); (err != nil) != fails {
			t.Errorf("%s left: %v\n%s", name, err, out)
		}
	}
}

func TestLeave(t *testing.T) {
	switch os.Getenv(leaveVariable) {
	case "descriptor":
		if _, err := unix.Open("/", unix.O_PATH, 0); err != nil {
			t.Fatal(err)
		}
	case "mount":
		leaveMount(t, os.TempDir()+"/testhost-left")
	case "mount of others":
		leaveMount(t, filepath.Dir(os.TempDir())+"/of-others")
	}
}

// leaveMount mounts at a directory. After an error the test goes on: a test that fails would look
// like a mount that is found.
func leaveMount(t *testing.T, dir string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o700), unix.Mount("tmpfs", dir, "tmpfs", 0, "")); err != nil {
		t.Log(err)
	}
}
