package admin

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// sealedEnv says that this process has executed itself from a sealed copy.
const sealedEnv = "_SANDBOX_RUNTIME_SEALED"

// runSealed executes this program anew from a copy that nobody can change, where
// that makes starts faster, and does not return then. Its pid, its descriptors
// and its arguments stay.
func runSealed(root string) error {
	if os.Getenv(sealedEnv) != "" {
		commandline.SetName()
		return os.Unsetenv(sealedEnv)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	program, err := container.SealedExecutable(root)
	if err != nil || program == nil {
		return err
	}
	defer program.Close()
	err = unix.Exec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), os.Args, append(os.Environ(), sealedEnv+"=1"))
	return os.NewSyscallError("execve", err)
}
