package layertest

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Extract applies an archive to a directory, as image-spec v1.1.1 layer.md
// "Applying Changesets" has it. A second reading, by GNU tar, is in
// TestTarReadsTheArchive of package layer.
func Extract(t testing.TB, archive io.Reader, dir string) {
	t.Helper()
	// The earlier content of a directory must be told from the layer's entries.
	made := map[string]bool{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		check(t, err)
		name := strings.TrimSuffix(h.Name, "/")
		if made[name] {
			t.Errorf("%q is in the archive twice", name)
		}
		made[name] = true
		path := filepath.Join(dir, filepath.FromSlash(name))
		parent, base := filepath.Split(path)
		if base == ".wh..wh..opq" {
			hide(t, dir, parent, made)
			continue
		}
		if gone, ok := strings.CutPrefix(base, ".wh."); ok {
			if _, err := os.Lstat(parent + gone); err != nil {
				t.Errorf("nothing at %q for a whiteout", parent+gone)
			}
			check(t, os.RemoveAll(parent+gone))
			continue
		}
		entry(t, r, h, dir, path)
	}
}

func hide(t testing.TB, dir, parent string, made map[string]bool) {
	t.Helper()
	entries, err := os.ReadDir(parent)
	check(t, err)
	for _, e := range entries {
		name, err := filepath.Rel(dir, parent+e.Name())
		check(t, err)
		if !made[name] {
			check(t, os.RemoveAll(parent+e.Name()))
		}
	}
}

func entry(t testing.TB, r io.Reader, h *tar.Header, dir, path string) {
	t.Helper()
	if info, err := os.Lstat(path); err == nil && (!info.IsDir() || h.Typeflag != tar.TypeDir) {
		check(t, os.RemoveAll(path))
	}
	switch h.Typeflag {
	case tar.TypeReg:
		data, err := io.ReadAll(r)
		check(t, err)
		check(t, os.WriteFile(path, data, 0o600))
	case tar.TypeDir:
		if err := os.Mkdir(path, 0o700); !errors.Is(err, fs.ErrExist) {
			check(t, err)
		}
	case tar.TypeSymlink:
		check(t, os.Symlink(h.Linkname, path))
	case tar.TypeFifo:
		check(t, unix.Mkfifo(path, 0o600))
	case tar.TypeLink:
		check(t, os.Link(filepath.Join(dir, h.Linkname), path))
		return
	default:
		t.Errorf("%q is of type %q", h.Name, h.Typeflag)
		return
	}
	check(t, os.Lchown(path, h.Uid, h.Gid))
	if h.Typeflag != tar.TypeSymlink {
		check(t, unix.Chmod(path, uint32(h.Mode)))
	}
	replaceXattrs(t, path, h)
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	check(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
}

// replaceXattrs: an entry's are all that a path has.
func replaceXattrs(t testing.TB, path string, h *tar.Header) {
	t.Helper()
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, list)
	check(t, err)
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if name != "" {
			check(t, unix.Lremovexattr(path, name))
		}
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			check(t, unix.Lsetxattr(path, name, []byte(value), 0))
		}
	}
}
