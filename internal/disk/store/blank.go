package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

const (
	// blockSize is a size that every kernel mounts, with any size of its pages.
	blockSize = 4 << 10
	// leastBytes is where ext4 begins to have room for a journal.
	leastBytes = 8 << 20
	// mostBlanks bounds the kept templates: each new pair of limits makes one, of some
	// hundred KiB.
	mostBlanks = 64
	// bytesPerFile keeps the inodes, of 256 bytes, from taking most of the room.
	bytesPerFile = 2 << 10
)

// A LimitsError says that no image can have such limits, and which it can.
type LimitsError struct {
	Limits Limits
	Reason string
}

func (e *LimitsError) Error() string {
	return fmt.Sprintf("%d bytes and %d files on disk: %s", e.Limits.Bytes, e.Limits.Files, e.Reason)
}

// checkImage refuses limits that ext4 cannot have.
func (l Limits) checkImage() error {
	if err := l.check(); err != nil {
		return err
	}
	if l.Bytes < leastBytes {
		return &LimitsError{l, fmt.Sprintf("ext4 with a journal needs %d MiB; ask for more, or for memory", leastBytes>>20)}
	}
	if most := l.Bytes / bytesPerFile; l.Files > most {
		return &LimitsError{l, fmt.Sprintf("it can have %d files; ask for more bytes, or for fewer files", most)}
	}
	return nil
}

// openBlank opens the template of images with these limits, and makes it where it
// is missing.
func openBlank(l Limits, dir string) (*os.File, error) {
	path := filepath.Join(dir, fmt.Sprintf("%d-%d.img", l.Bytes, l.Files))
	f, err := os.Open(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := makeBlank(path, l); err != nil {
		return nil, fmt.Errorf("make the template %s: %w", path, err)
	}
	return os.Open(path)
}

// formatTime bounds the wait for another process that formats the template. mkfs takes long on a slow disk.
const formatTime = 10 * time.Minute

// makeBlank formats a template under another name. Only one process does so at a time. makeBlank first removes
// the draft of a killed process: the mkfs of that process may still write to its file.
func makeBlank(path string, l Limits) error {
	dir, err := descriptor.OpenLockedWithin(formatTime, filepath.Dir(path), unix.O_RDONLY, descriptor.Exclusive)
	if err != nil {
		return err
	}
	defer dir.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err // made while this process waited
	}
	draft := filepath.Join(dir.Name(), "draft")
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = formatAt(draft, l)
	if err == nil {
		err = prepare(draft)
	}
	if err != nil {
		return errors.Join(err, os.Remove(draft))
	}
	return errors.Join(os.Rename(draft, path), removeOldBlanks(dir, path))
}

// removeOldBlanks removes the oldest templates if there are too many, but not the one at
// keep. A process that has opened one goes on with it.
func removeOldBlanks(dir *os.File, keep string) error {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	var old []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".img") && e.Name() != filepath.Base(keep) {
			old = append(old, info)
		}
	}
	slices.SortFunc(old, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range old[:max(0, len(old)+1-mostBlanks)] {
		if err := os.Remove(filepath.Join(dir.Name(), info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func formatAt(path string, l Limits) error {
	f, err := os.OpenFile(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(l.Bytes &^ (blockSize - 1)); err != nil {
		return err
	}
	return format(f, l.Files)
}

// format runs mkfs.ext4, which reads the host's mke2fs.conf and nothing else of
// this process. No block is reserved for root, none is written to that does not
// have to be, and the checksums do not depend on the UUID, which each image gets.
func format(image *os.File, files int64) error {
	mkfs, err := findMkfs()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd := exec.Command(mkfs, "-q", "-F", "-b", strconv.Itoa(blockSize), "-m", "0", "-N", strconv.FormatInt(files, 10),
		"-O", "has_journal,extent,metadata_csum,metadata_csum_seed,^resize_inode",
		"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", "/proc/self/fd/3")
	cmd.Env = []string{"LC_ALL=C"}
	cmd.ExtraFiles = []*os.File{image}
	cmd.Stdin = image // unread; without one it takes /dev/null, which a bare host lacks
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", mkfs, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// findMkfs looks also where a user's PATH does not lead.
func findMkfs() (string, error) {
	for _, name := range []string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", &UnsupportedError{"mkfs.ext4 is not installed", "install e2fsprogs"}
}

// prepare closes a new file system's root to others, and leaves nothing in it.
func prepare(path string) error {
	m, err := MountImage(path)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := errors.Join(os.Chmod(in(m), 0o700), os.Remove(in(m)+"/lost+found")); err != nil {
		return err
	}
	return Sync(path, m)
}
