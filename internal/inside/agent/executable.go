package agent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// FilesExecutable returns the program that serves a sandbox's files, to be the
// Program of a [Command]; otherwise it is as Executable.
func FilesExecutable() (*os.File, error) { return inMemory("sandbox-files", filesProgram) }

// Executable returns the agent's program as a sealed file in memory, to be
// given as descriptor 3 to the process that executes /proc/self/fd/3. One file
// serves any number of sandboxes at once; the caller closes it.
//
// The file can be executed and not read. A process whose program it may not
// read is undumpable from its first instruction, and its files in /proc belong
// to the root of a user namespace in which the program's owner exists, so to
// none in the sandbox (would_dump in fs/exec.c, Linux 4.10).
func Executable() (*os.File, error) { return inMemory("sandbox-agent", program) }

func inMemory(name, program string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("create a file in memory for %s: %w: sysctl vm.memfd_noexec is 2, set it to 1 or 0", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("create a file in memory for %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := fill(f, program); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func fill(f *os.File, program string) error {
	if _, err := f.WriteString(program); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	if err := f.Chmod(0o111); err != nil {
		return fmt.Errorf("protect %s: %w", f.Name(), err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	// F_SEAL_EXEC is of Linux 6.3.
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals|unix.F_SEAL_EXEC)
	if errors.Is(err, unix.EINVAL) {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return fmt.Errorf("seal %s: %w", f.Name(), err)
	}
	return nil
}
