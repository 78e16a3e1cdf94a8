package launcher

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// openStamps opens a file of stamps. It returns nil if there is no such file.
func openStamps(file string) (*os.File, error) {
	f, err := os.Open(file)
	return f, erase.IgnoreMissing(err)
}

// maxStamps bounds the stamps of a sandbox, in bytes. Stamps lie beside the record, mostly
// in memory, and a sandbox may have thousands of trees. Users with a rule have less, since
// no other limit counts their stamps.
const (
	maxStamps     = 32 << 20
	maxPeerStamps = 16 << 20
)

// roomForStamps is the bound for a sandbox of a user, in bytes.
func roomForStamps(uid uint32) int64 {
	if uid == 0 || int(uid) == os.Geteuid() {
		return maxStamps
	}
	return maxPeerStamps
}

// stampsBut returns the size of the stamps of all trees except one. It removes the stamps of
// discarded layers.
func (s *Sandbox) stampsBut(r record.Record, tree int) (size int64, err error) {
	kept := map[string]bool{}
	for i, t := range r.Trees {
		kept[s.session.StampsPath(i, t)] = i != tree
	}
	dir := filepath.Dir(s.session.StampsPath(tree, r.Trees[tree]))
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		other, known := kept[file]
		if !known {
			if err := os.Remove(file); err != nil {
				return 0, err
			}
		}
		if !other {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		size += info.Size()
	}
	return size, erase.IgnoreMissing(err)
}

// Applied notes the changes of a tree that were applied on the host, so that a later apply does
// not report them as conflicts. A stamp of time 0 says that the path no longer exists. If a path
// has two stamps, the later stamp in the list counts. Applied sorts the list.
//
// A stopped sandbox notes the stamps if its storage is on disk.
//
// Errors: [fault.ErrNotFound], [fault.ErrNotRunning], [fault.ErrBusy],
// *[fault.ConfigError] for a tree without an overlay in the sandbox, an invalid path, and more
// stamps than fit.
func (s *Sandbox) Applied(ctx context.Context, path string, stamps []protocol.Stamp) error {
	if err := checkStamps(stamps); err != nil {
		return err
	}
	slices.SortStableFunc(stamps, protocol.Stamp.ComparePaths)
	return s.withLockAndFiles(ctx, func() error {
		r, err := record.Read(s.session.Path())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(r.Trees, func(t record.Tree) bool { return t.Path == path })
		if i < 0 {
			return fault.Refusal(fmt.Errorf("the sandbox has no overlay of %.4096q", path))
		}
		others, err := s.stampsBut(r, i)
		if err != nil {
			return err
		}
		m := stampMerge{added: stamps, since: r.Trees[i].Since.UnixNano(), room: roomForStamps(r.UID) - others}
		err = m.write(s.session.StampsPath(i, r.Trees[i]))
		if errors.Is(err, errStampsFull) {
			return fault.Refusal(fmt.Errorf("more than %d bytes for the applied paths of all overlays, with the new paths below %s; discard the changes of the sandbox", roomForStamps(r.UID), path))
		}
		return err
	})
}

// maxStampPath bounds the path of a stamp: no layer lists a longer path.
const maxStampPath = 64 << 10

// checkStamps refuses paths that a list cannot hold.
func checkStamps(stamps []protocol.Stamp) error {
	for _, s := range stamps {
		if len(s.Path) > maxStampPath || bytes.IndexByte(s.Path, 0) >= 0 {
			return fault.Refusal(fmt.Errorf("applied path %.200q: it has a NUL byte, or more than %d bytes", s.Path, maxStampPath))
		}
	}
	return nil
}

var errStampsFull = errors.New("no room for more stamps")

// A stampMerge adds stamps to a file of stamps. The new stamps and the file are sorted by path, so
// that only a buffer of the file is in memory.
type stampMerge struct {
	added []protocol.Stamp
	// since is the time of the layers' creation: older stamps are of discarded layers.
	since int64
	// room is the maximum size of the file, in bytes.
	room int64

	out  *bufio.Writer
	line []byte
}

// write replaces the file.
func (m *stampMerge) write(file string) error {
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return draft.File{Path: file}.Write(func(w io.Writer) error {
		m.out = bufio.NewWriterSize(w, protocol.PieceSize)
		return errors.Join(m.merge(file), m.out.Flush())
	})
}

// merge writes the stamps of the file and the added ones.
func (m *stampMerge) merge(file string) error {
	slices.Reverse(m.added) // CompactFunc keeps the first of each path, and the last one counts
	m.added = slices.CompactFunc(m.added, func(a, b protocol.Stamp) bool { return a.ComparePaths(b) == 0 })
	slices.Reverse(m.added)
	old, err := openStamps(file)
	if err != nil {
		return err
	}
	if old == nil {
		return m.add(len(m.added))
	}
	defer old.Close()
	for r := protocol.NewStampReader(old); ; {
		s, err := r.Next()
		if errors.Is(err, io.EOF) {
			return m.add(len(m.added))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		before := 0
		for before < len(m.added) && m.added[before].ComparePaths(s) < 0 {
			before++
		}
		if err := m.add(before); err != nil {
			return err
		}
		if len(m.added) > 0 && m.added[0].ComparePaths(s) == 0 && m.supersedes(m.added[0]) {
			continue
		}
		if err := m.put(s); err != nil {
			return err
		}
	}
}

// add writes the first n of the added stamps, and removes them from m.added.
func (m *stampMerge) add(n int) error {
	for _, s := range m.added[:n] {
		if !m.counts(s) {
			continue
		}
		if err := m.put(s); err != nil {
			return err
		}
	}
	m.added = m.added[n:]
	return nil
}

// counts tells whether a stamp must be kept.
func (m *stampMerge) counts(s protocol.Stamp) bool { return !isZero(s) && s.Time > m.since }

func isZero(s protocol.Stamp) bool { return s.Time == 0 && s.Source == 0 && s.Inode == 0 && !s.Touched }

// supersedes tells whether an added stamp replaces the stamp with the same path in the file. A
// stamp of discarded layers does not.
func (m *stampMerge) supersedes(s protocol.Stamp) bool { return isZero(s) || m.counts(s) }

func (m *stampMerge) put(s protocol.Stamp) error {
	m.line = protocol.AppendStamp(m.line[:0], s)
	if m.room -= int64(len(m.line)); m.room < 0 {
		return errStampsFull
	}
	_, err := m.out.Write(m.line)
	return err
}
