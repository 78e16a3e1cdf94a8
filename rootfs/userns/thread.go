package userns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// switching guards the dumpable attribute of the process. The kernel clears the
// attribute when a thread changes its user (credentials(7); PR_SET_DUMPABLE(2const)).
var switching sync.Mutex

// onThreadOf calls f on a locked thread that has the user id uid and keeps all
// capabilities of the thread. The thread has its own user again when onThreadOf
// returns. If that fails, the thread stays locked and ends with the goroutine.
//
// setresuid(2) is called as the raw system call: the function of that name in
// Go changes all threads of the process.
func onThreadOf(uid uint32, f func() error) (err error) {
	runtime.LockOSThread()
	switching.Lock()
	defer switching.Unlock()
	own, err := currentUser()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if back := own.restore(); back != nil {
			err = errors.Join(err, back) // never unlocked
			return
		}
		runtime.UnlockOSThread()
	}()
	if own.caps[0].Effective&(1<<unix.CAP_KILL) == 0 {
		return errNoKill
	}
	if err := own.become(int(uid)); err != nil {
		return err
	}
	return f()
}

// errNoKill is refused early: libcontainer waits without end for a process that it
// could not kill.
var errNoKill = errors.New("without CAP_KILL the processes of a sandbox could not be ended")

// A threadUser is the identity that a thread had.
type threadUser struct {
	real, effective, saved int
	caps                   [2]unix.CapUserData
	dumpable               bool // of the process
}

// currentUser is the user of the calling thread.
func currentUser() (threadUser, error) {
	var u threadUser
	u.real, u.effective, u.saved = unix.Getresuid()
	if err := unix.Capget(capHeader(), &u.caps[0]); err != nil {
		return u, fmt.Errorf("capget: %w", err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	u.dumpable = dumpable == 1
	return u, err
}

// become changes the real and the effective user id of the thread. The saved id
// stays, for the way back. The file system's user stays, too: the program of the
// launcher may be executable for its owner only.
func (u threadUser) become(uid int) error {
	if err := setresuid(uid, uid, u.effective); err != nil {
		return err
	}
	if _, err := unix.SetfsuidRetUid(u.effective); err != nil {
		return fmt.Errorf("setfsuid %d: %w", u.effective, err)
	}
	return u.raise()
}

// restore gives the thread its user back.
func (u threadUser) restore() error {
	if err := u.raise(); err != nil {
		return err
	}
	if err := setresuid(u.real, u.effective, u.saved); err != nil {
		return err
	}
	if err := u.raise(); err != nil {
		return err
	}
	if u.dumpable {
		return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
	return nil
}

// raise gives the thread its effective capabilities back, which a change of the
// user takes away (capabilities(7), "Effect of user ID changes on capabilities").
// The permitted ones stay while one of the three ids is 0.
func (u threadUser) raise() error {
	return os.NewSyscallError("capset", unix.Capset(capHeader(), &u.caps[0]))
}

func capHeader() *unix.CapUserHeader {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

// setresuid changes the calling thread alone, and makes sure of it: on some
// architectures the system call of this number takes ids of 16 bits.
func setresuid(ruid, euid, suid int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(ruid), uintptr(euid), uintptr(suid))
	if errno != 0 {
		return fmt.Errorf("setresuid %d %d %d: %w", ruid, euid, suid, errno)
	}
	if r, e, s := unix.Getresuid(); r != ruid || e != euid || s != suid {
		return fmt.Errorf("setresuid %d %d %d: the ids are %d %d %d", ruid, euid, suid, r, e, s)
	}
	return nil
}
