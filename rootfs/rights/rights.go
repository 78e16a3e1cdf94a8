// Package rights runs functions with the rights to files that another user has.
package rights

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// With runs f with the rights to files of a user and the user's groups, at least one and the primary one first,
// and without the capabilities that go around them, as file servers do: setfsuid(2) is of the
// calling thread and takes CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and their like from it
// (capabilities(7), "Effect of user ID changes on capabilities").
func With(uid uint32, gids []uint32, f func() error) (err error) {
	runtime.LockOSThread()
	groups, err := unix.Getgroups()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("getgroups: %w", err)
	}
	defer func() {
		if back := setFileIDs(os.Geteuid(), os.Getegid(), groups); back != nil {
			// The thread stays locked, and ends with the goroutine: it has
			// too few rights, not too many.
			err = errors.Join(err, back)
			return
		}
		runtime.UnlockOSThread()
	}()
	theirs := make([]int, len(gids))
	for i, gid := range gids {
		theirs[i] = int(gid)
	}
	if err := setFileIDs(int(uid), theirs[0], theirs); err != nil {
		return err
	}
	if err := lacksFileCapabilities(); err != nil {
		return err
	}
	return f()
}

// setFileIDs changes the thread, and makes sure of it: setfsuid(2) has no error.
func setFileIDs(uid, gid int, groups []int) error {
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	for _, set := range []struct {
		name string
		call func(int) (int, error)
		id   int
	}{{"setfsgid", unix.SetfsgidRetGid, gid}, {"setfsuid", unix.SetfsuidRetUid, uid}} {
		if _, err := set.call(set.id); err != nil {
			return fmt.Errorf("%s %d: %w", set.name, set.id, err)
		}
		if now, err := set.call(-1); err != nil || now != set.id {
			return fmt.Errorf("%s %d: it is %d: %w", set.name, set.id, now, errors.Join(unix.EPERM, err))
		}
	}
	return nil
}

// lacksFileCapabilities refuses a process whose securebits let it keep them.
func lacksFileCapabilities() error {
	const fileCapabilities = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if data[0].Effective&fileCapabilities != 0 {
		return errors.New("this process keeps the right to every file when it takes another user's (SECBIT_NO_SETUID_FIXUP): start it without that")
	}
	return nil
}
