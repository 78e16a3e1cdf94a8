package testhost

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// leaveVariable, when set, says what the test binary's own test leaves behind.
const leaveVariable = "TESTHOST_TEST_LEAVE"

func TestMain(m *testing.M) { os.Exit(RunMounting(m)) }

func TestWhatIsLeftFailsThePackage(t *testing.T) {
	NeedRoot(t, "mounts are made")
	for name, fails := range map[string]bool{"nothing": false, "descriptor": true, "mount": true} {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestLeave$")
		cmd.Env = append(os.Environ(), leaveVariable+"="+name)
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
		if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""); err != nil {
			t.Log(err) // a test that fails would look like one that is found out
		}
	}
}
