package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// WithIDs returns the configuration with ids in place of the name of its user, which it looks up
// in the /etc/passwd that the sandbox begins with. [Manager.Create] and [Manager.Up] do so, too.
//
// Errors: *ConfigError for a name without ids.
func WithIDs(c Config) (Config, error) {
	if c.User == nil || c.User.Name == "" || c.Image != "" { // a launcher finds names of an image
		return c, nil
	}
	passwd, group, where, err := userFiles(c)
	if err == nil {
		c.User, err = lookUpIDs(*c.User, passwd, group, where)
	}
	if err != nil {
		return c, &ConfigError{Reason: fmt.Sprintf("user: %v", err)}
	}
	return c, nil
}

// lookup gives a command ids in place of the name of its user, which it looks up in the sandbox's
// present files.
func (s *Sandbox) lookup(ctx context.Context, c *Command) error {
	if c.User == nil || c.User.Name == "" || s.info.Provider != ProviderIsolated {
		return nil // all other providers see the name
	}
	passwd, err := s.userFile(ctx, "/etc/passwd")
	if err != nil {
		return err
	}
	group, err := s.userFile(ctx, "/etc/group")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if c.User, err = lookUpIDs(*c.User, passwd, group, "the sandbox"); err != nil {
		return &ConfigError{Reason: err.Error()}
	}
	return nil
}

// userFile reads a file of the sandbox, with the rights of the sandbox's user.
func (s *Sandbox) userFile(ctx context.Context, name string) ([]byte, error) {
	r, err := s.files.Open(ctx, name, 0, spec.MaxUserFile+1)
	if err != nil {
		return nil, fmt.Errorf("user: %w", err)
	}
	defer r.Close()
	return readUserFile(name, r)
}

func lookUpIDs(u User, passwd, group []byte, where string) (*User, error) {
	found, err := u.Lookup(passwd, group)
	if errors.Is(err, spec.ErrNoName) {
		err = fmt.Errorf("%w of %s; use ids, as UID:GID", err, where)
	}
	return &found, err
}

// The files of a sandbox with the host's own /usr. Package rootfs makes the same files.
const (
	hostPasswd = "root:x:0:0\nsandbox:x:1000:1000\nnobody:x:65534:65534\n"
	hostGroup  = "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"
)

// userFiles are the contents of /etc/passwd and /etc/group that a sandbox begins with.
func userFiles(c Config) (passwd, group []byte, where string, err error) {
	if cover := covering(c); cover != "" {
		return nil, nil, "", fmt.Errorf("no name can be looked up before the sandbox is made, since %s covers files of /etc; use ids, as UID:GID", cover)
	}
	dir := c.Rootfs
	where = dir
	if slices.Contains(c.Overlays, "/") {
		dir, where = "/", "the host"
	}
	if dir == "" {
		return []byte(hostPasswd), []byte(hostGroup), "the sandbox, which has only root, sandbox, nobody and nogroup", nil
	}
	root, err := os.Open(dir)
	if err != nil {
		return nil, nil, "", err
	}
	defer root.Close()
	if passwd, err = fileIn(root, "/etc/passwd"); err != nil {
		return nil, nil, "", err
	}
	if group, err = fileIn(root, "/etc/group"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, "", err
	}
	return passwd, group, where, nil
}

// covering is a place of the configuration that covers the root's /etc, or files there.
func covering(c Config) string {
	places := slices.DeleteFunc(slices.Clone(c.Overlays), func(dir string) bool { return dir == "/" })
	for _, b := range c.Binds {
		places = append(places, b.Target)
	}
	for _, place := range places {
		for _, file := range []string{"/etc/passwd", "/etc/group"} {
			if place = filepath.Clean(place); place == file || strings.HasPrefix(file, place+"/") {
				return place
			}
		}
	}
	return ""
}

// fileIn reads a file of a tree that untrusted code may have made. It follows no link, and opens
// only a regular file for reading.
func fileIn(root *os.File, name string) ([]byte, error) {
	full := filepath.Join(root.Name(), name)
	fd, err := descriptor.OpenIn(root, name, descriptor.InRoot, unix.O_PATH)
	if err == unix.ELOOP {
		return nil, fmt.Errorf("%s leads through a symbolic link; use ids, as UID:GID", full)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: full, Err: err}
	}
	defer descriptor.CloseFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is not a regular file; use ids, as UID:GID", full)
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readUserFile(full, f)
}

func readUserFile(name string, r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, spec.MaxUserFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > spec.MaxUserFile {
		return nil, fmt.Errorf("%s is larger than %s; use ids, as UID:GID", name, spec.Size(spec.MaxUserFile))
	}
	return data, nil
}
