// Package filtercache compiles seccomp profiles and keeps the compiled filters on disk.
package filtercache

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// A Cache keeps compiled seccomp filters in <data>/seccomp, a file each. The name of a
// file is a hash of everything that decides the filter. libseccomp takes 10 to 30 ms to
// make a filter; to find one takes 0.1 ms.
//
// A file is the output of [encodeFilter], and then a checksum of its name and that output.
// A file that is not whole, has another name, or can be changed by users other than root
// and this user is not used, and made anew. Any number of processes may use the cache at
// once: files come by rename, and never change.
type Cache struct{ Data string }

const (
	// filterFormat is part of each name. It goes up with each change of the files' form.
	filterFormat = 1
	// maxFilterFile is the size of the longest filter's.
	maxFilterFile = 8 + unix.BPF_MAXINSNS*unix.SizeofSockFilter + sha256.Size
	// cachedFilters is the number of files that stay. A host uses few profiles, but each change
	// of a profile makes a new file.
	cachedFilters = 64
)

// Open returns the filter of a profile as a file for the agent to read: sealed
// in memory, so that nobody changes it any more, and at its beginning. It is the
// caller's, for one sandbox. The note, if it is not empty, says why that takes
// longer than it should.
//
// On a host where the filter can't be had, there is no file and no error but
// a note: libcontainer has to load the profile then, from the specification.
func (c Cache) Open(ctx context.Context, profile *specs.LinuxSeccomp) (filter *os.File, note string, err error) {
	name, err := filterName(profile)
	if err != nil {
		return nil, "", err
	}
	dir, err := statedir.OpenData(c.Data, "seccomp")
	if err != nil {
		note = cacheNote(err)
	} else {
		defer dir.Close()
		if program, err := loadFilter(dir, name); err == nil {
			filter, err = sealed("seccomp-filter", program)
			return filter, "", err
		} // in any case the file is replaced
	}
	compiled, err := container.CompileSeccomp(ctx, profile)
	if errors.Is(err, container.ErrNoTrace) {
		return nil, fmt.Sprintf("the seccomp filter is compiled for each sandbox, which takes time: %v", err), nil
	}
	if err != nil {
		return nil, "", err
	}
	program := encodeFilter(compiled)
	if dir != nil {
		if err := storeFilter(dir, name, program); err != nil {
			note = cacheNote(err)
		}
	}
	filter, err = sealed("seccomp-filter", program)
	return filter, note, err
}

func cacheNote(err error) string {
	return fmt.Sprintf("the compiled seccomp filter is not kept, and each sandbox waits for its own: %v", err)
}

// filterName hashes everything that decides the filter.
func filterName(profile *specs.LinuxSeccomp) (string, error) {
	inputs, err := container.SeccompInputs(profile)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d\n%s", filterFormat, inputs))
	return hex.EncodeToString(sum[:]), nil
}

// encodeFilter is the form that the agent reads: flags and number of
// instructions, 32 bits each in the machine's byte order, then the array of
// struct sock_filter.
func encodeFilter(f container.Filter) []byte {
	text := binary.NativeEndian.AppendUint32(nil, f.Flags)
	text = binary.NativeEndian.AppendUint32(text, uint32(len(f.Program)/unix.SizeofSockFilter))
	return append(text, f.Program...)
}

func filterSum(name string, program []byte) []byte {
	sum := sha256.Sum256(append([]byte(name), program...))
	return sum[:]
}

var errBadFilter = errors.New("not the filter of that name")

// loadFilter reads a file of the cache.
func loadFilter(dir *os.File, name string) ([]byte, error) {
	// O_NONBLOCK: a FIFO is refused, not waited for.
	f, err := os.OpenFile(filepath.Join(dir.Name(), name), unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := statedir.CheckOwn(f); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFilterFile))
	if err != nil {
		return nil, err
	}
	if len(text) < sha256.Size {
		return nil, errBadFilter
	}
	program, sum := text[:len(text)-sha256.Size], text[len(text)-sha256.Size:]
	if !bytes.Equal(sum, filterSum(name, program)) {
		return nil, errBadFilter
	}
	return program, nil
}

// storeFilter puts a file into the cache, and replaces a file of that name. The file is
// not synced to disk: after a power cut its checksum is wrong.
func storeFilter(dir *os.File, name string, program []byte) error {
	f := draft.File{Path: filepath.Join(dir.Name(), name), Draft: filepath.Join(dir.Name(), ".new-"+rand.Text()), Mode: 0o400}
	if err := f.WriteBytes(slices.Concat(program, filterSum(name, program))); err != nil {
		return err
	}
	return dropOldest(dir, cachedFilters)
}

// dropOldest removes the files that are too many, by when they were written.
// Among them are, in time, those that a killed process was writing.
func dropOldest(dir *os.File, keep int) error {
	entries, err := dir.ReadDir(-1)
	if err != nil || len(entries) <= keep {
		return err
	}
	var files []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // else another has removed it
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) }) // newest first
	var errs []error
	for _, f := range files[min(keep, len(files)):] {
		errs = append(errs, erase.IgnoreMissing(os.Remove(filepath.Join(dir.Name(), f.Name()))))
	}
	return errors.Join(errs...)
}

// sealed returns a file in memory that holds content for ever.
func sealed(name string, content []byte) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteAt(content, 0) // leaves the offset where it is
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fill a file in memory: %w", err), f.Close())
	}
	return f, nil
}
