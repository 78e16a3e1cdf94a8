package protocol

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// sources are the files and directories of the host that a configuration names, opened.
type sources struct {
	paths []string
	files []*os.File
}

func (s *sources) close() { descriptor.Close(s.files...) }

// openSources opens the paths of a configuration, with the caller's rights and
// from the caller's working directory, and makes them absolute in it.
func openSources(c *spec.Config) (_ *sources, err error) {
	s := &sources{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := checkText(*c); err != nil {
		return nil, err
	}
	c.Binds, c.Overlays = slices.Clone(c.Binds), slices.Clone(c.Overlays)
	if err := s.add("rootfs", &c.Rootfs, false); err != nil {
		return nil, err
	}
	if err := s.add("workspace", &c.Workspace, true); err != nil {
		return nil, err
	}
	for i := range c.Overlays {
		field := fmt.Sprintf("overlays[%d]", i)
		if c.Overlays[i] == "" {
			return nil, &fault.ConfigError{Reason: field + ": is empty"}
		}
		if err := s.add(field, &c.Overlays[i], false); err != nil {
			return nil, err
		}
	}
	for i := range c.Binds {
		b := &c.Binds[i]
		if b.Source == "" {
			return nil, &fault.ConfigError{Reason: fmt.Sprintf("binds[%d].source: is empty", i)}
		}
		if err := s.add(fmt.Sprintf("binds[%d].source", i), &b.Source, b.Writable); err != nil {
			return nil, err
		}
	}
	if strings.Contains(c.Seccomp, "/") || strings.HasSuffix(c.Seccomp, ".json") {
		if err := s.add("seccomp", &c.Seccomp, false); err != nil {
			return nil, err
		}
	}
	if len(s.files) > channel.MaxFiles {
		return nil, &fault.ConfigError{Reason: fmt.Sprintf("binds: more than %d different paths", channel.MaxFiles)}
	}
	return s, nil
}

// checkText refuses text that JSON cannot hold: encoding/json would put other characters in its place, and the sandbox
// would have another value than the caller's.
func checkText(c spec.Config) error {
	if !utf8.ValidString(c.Cwd) {
		return notText("cwd", fmt.Sprintf("%q", c.Cwd))
	}
	for i, b := range c.Binds {
		if !utf8.ValidString(b.Target) {
			return notText(fmt.Sprintf("binds[%d].target", i), fmt.Sprintf("%q", b.Target))
		}
	}
	for name, value := range c.Env {
		switch { // the error has no value: it can be a password
		case !utf8.ValidString(name):
			return notText("env", fmt.Sprintf("the name %q", name))
		case !utf8.ValidString(value):
			return notText("env", fmt.Sprintf("the value of %s", name))
		}
	}
	return nil
}

func notText(field, what string) error {
	return &fault.ConfigError{Reason: fmt.Sprintf("%s: %s is not UTF-8, which a configuration has to be", field, what)}
}

// add opens one path, unless it is empty or was opened before in a way that is
// good enough.
func (s *sources) add(field string, path *string, writable bool) error {
	if *path == "" {
		return nil
	}
	if !utf8.ValidString(*path) {
		return notText(field, fmt.Sprintf("%q", *path))
	}
	abs, err := hostpaths.Absolute(*path)
	if err != nil {
		return err
	}
	*path = abs
	f, err := openSource(field, abs, writable)
	if err != nil {
		return err
	}
	if i := slices.Index(s.paths, abs); i >= 0 {
		// Named twice: the one that may be written serves both.
		if writable {
			f, s.files[i] = s.files[i], f
		}
		return f.Close()
	}
	s.paths, s.files = append(s.paths, abs), append(s.files, f)
	return nil
}

// openSource opens a file or a directory so that the descriptor proves the caller's
// rights: to read it, and to write it where that is wanted; a directory is opened for
// reading in any case. Nothing else is opened, since to open a device or a FIFO may have
// effects.
//
// If the caller may only name the path, the descriptor proves no more (O_PATH), and the
// launcher decides.
func openSource(field, path string, writable bool) (*os.File, error) {
	fd, err := descriptor.Open(unix.AT_FDCWD, path, descriptor.NoMagicLinks, unix.O_PATH)
	if err != nil {
		return nil, openError(field, path, writable, err)
	}
	named := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		named.Close()
		return nil, openError(field, path, writable, err)
	}
	flags := unix.O_RDONLY
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		flags |= unix.O_DIRECTORY
	case unix.S_IFREG:
		if writable {
			flags = unix.O_RDWR
		}
	default:
		return named, nil // the launcher names the problem
	}
	opened, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return named, nil //nolint:nilerr // see above
	}
	named.Close()
	return os.NewFile(uintptr(opened), path), nil
}

func openError(field, path string, writable bool, err error) error {
	if strings.HasPrefix(field, "binds") {
		field = "bind"
	}
	if strings.HasPrefix(field, "overlays") {
		field = "overlay"
	}
	text := fmt.Sprintf("%s: open %s: %v", field, path, err)
	switch {
	case errors.Is(err, fs.ErrNotExist) && writable:
		text = fmt.Sprintf("%s %s does not exist, and it is not created: make it first, with the owner its files shall have", field, path)
	case errors.Is(err, fs.ErrNotExist):
		text = fmt.Sprintf("%s %s does not exist", field, path)
	}
	return fault.Worded(text, []error{&fault.ConfigError{Reason: text}, err})
}
