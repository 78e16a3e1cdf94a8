// Package fsmount makes detached mounts of new file systems: fsopen(2), fsconfig(2),
// fsmount(2), Linux 5.2. It attaches none of them.
package fsmount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A Context is a file system that is being configured.
type Context struct {
	fd   int
	name string // type and source, for errors
}

// Open begins with a file system of a type and a source, as in mount(8), and sets options. The
// caller closes it.
func Open(fsType, source string, options ...[2]string) (*Context, error) {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen %s: %w", fsType, err)
	}
	c := &Context{fd: fd, name: fsType + " " + source}
	for _, o := range append([][2]string{{"source", source}}, options...) {
		if err := c.set(o[0], o[1]); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// set sets an option; one without a value is a flag.
func (c *Context) set(key, value string) error {
	var err error
	if value == "" {
		err = unix.FsconfigSetFlag(c.fd, key)
	} else {
		err = unix.FsconfigSetString(c.fd, key, value)
	}
	if err != nil {
		return c.explain(fmt.Errorf("fsconfig %s %s=%s: %w", c.name, key, value, err))
	}
	return nil
}

// SetFile sets an option to an open file.
func (c *Context) SetFile(key string, f *os.File) error {
	if err := unix.FsconfigSetFd(c.fd, key, int(f.Fd())); err != nil {
		return c.explain(fmt.Errorf("fsconfig %s %s=%s by descriptor: %w", c.name, key, f.Name(), err))
	}
	return nil
}

// Mount returns the descriptor of a mount of it that is attached nowhere, nosuid
// and nodev. The caller closes that.
func (c *Context) Mount() (fd int, err error) {
	return c.MountWith(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
}

// MountWith is Mount with other attributes, those of mount_setattr(2).
func (c *Context) MountWith(attributes int) (fd int, err error) {
	if err := unix.FsconfigCreate(c.fd); err != nil {
		return -1, c.explain(fmt.Errorf("mount %s: %w", c.name, err))
	}
	fd, err = unix.Fsmount(c.fd, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", c.name, err)
	}
	return fd, nil
}

// Close ends the configuring. A mount that was made stays.
func (c *Context) Close() { _ = unix.Close(c.fd) }

// explain adds the kernel's reason of a refusal, a line a read.
func (c *Context) explain(err error) error {
	line := make([]byte, 512)
	for {
		n, readErr := unix.Read(c.fd, line)
		if readErr != nil || n == 0 {
			return err
		}
		err = errors.Join(err, errors.New(strings.TrimSpace(string(line[:n]))))
	}
}
