package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// fate finds out why a sandbox went away under a command.
func (v *Session) fate() fate {
	if !v.Present() {
		return fateRemoved
	}
	if initOOMKills(v.Group) > 0 {
		if v.shortOutside(0) {
			return fateOOMOutside
		}
		return fateOOM
	}
	return fateUnknown
}

// isRemoved says that a removal of the sandbox has begun. It can have ended already.
func (v *Session) isRemoved() bool { return statedir.RemovalBegun(v.Path()) || !v.Present() }

// initOOMKills counts the processes that the kernel killed for memory in the sandbox, without
// those of its execs. It is 0 if the count is unknown.
func initOOMKills(group *cgroups.Group) int64 {
	events, err := group.Events()
	if err != nil {
		return 0
	}
	names, err := group.Leaves()
	if err != nil {
		return 0
	}
	kills := events.OOMKills
	for _, name := range names {
		leaf, err := group.OpenLeaf(name)
		if err != nil {
			return 0 // the leaf is being removed, with its count
		}
		usage, err := leaf.Usage()
		_ = leaf.Close() // closes a descriptor only
		if err != nil {
			return 0
		}
		kills -= max(usage.OOMKills, 0)
	}
	return kills
}

// shortOutside says that the sandbox's memory was never at its limit, nor that of a command. So
// a kill for memory has its cause outside. It says false if the counts are unknown. The limit can
// have been lower earlier.
func (v *Session) shortOutside(earlier spec.Size) bool {
	met, err := v.Group.MetMemoryLimit(int64(earlier))
	return err == nil && !met
}

// A fullFileSystem is a file system of the sandbox without room, with the words for the reason and
// for the limit.
type fullFileSystem struct {
	// place is the mount point in the sandbox; empty for the store.
	place             string
	reason, violation string
}

// fullSharedMemory returns the shared memory if it is full.
func fullSharedMemory(r record.Record) []fullFileSystem {
	size, is := sharedMemoryFull(r.Init)
	if !is {
		return nil
	}
	text := fmt.Sprintf("%s (%s) is full (raise it with --shm-size)", sharedMemory, size)
	return []fullFileSystem{{sharedMemory, text, text}}
}

// fullStores returns the part of fullDisks whose changed files are in a Result: all except the
// shared memory.
func (l *Sessions) fullStores(r record.Record) (all []fullFileSystem) {
	if r.Limits.Disk == spec.Enforced {
		all = append(all, fullQuotas(r)...)
	}
	file, err := record.OpenStore(r.Init)
	if err != nil {
		return all // the sandbox has just ended
	}
	defer file.Close()
	used, total, err := store.Usage(file)
	if err != nil {
		return all
	}
	limits := r.Config.Limits
	files := r.Backend(l.Roots)
	if total.Bytes-used.Bytes < files.Margin() {
		limit := fmt.Sprintf("disk limit of %s", limits.Disk)
		all = append(all, fullFileSystem{"", "the " + limit + " was reached (raise it with --disk)", limit + " reached (raise it with --disk)"})
	}
	if used.Files >= total.Files {
		limit := fmt.Sprintf("limit of %d files", limits.Files)
		all = append(all, fullFileSystem{"", "the " + limit + " was reached (raise it with --files)", limit + " reached (raise it with --files)"})
	}
	if files.Durable() && l.hostFull() {
		all = append(all, fullFileSystem{
			"", "the host's disk is full: make room below " + l.Data + " for the sandbox's files",
			"the host's disk, below " + l.Data + ", is full",
		})
	}
	return all
}

// fullQuotas returns the directories of the host that have used up their quota. The caller has
// checked that all writable directories of the sandbox have a quota, on ext4 or XFS.
func fullQuotas(r record.Record) (all []fullFileSystem) {
	for _, target := range record.WritableBinds(r.Config) {
		dir, err := record.OpenShown(r.Init, target, record.ToRead)
		if err != nil {
			continue // the sandbox has just ended
		}
		used, total, err := store.Usage(dir)
		dir.Close()
		if err != nil || total.Bytes-used.Bytes >= nearlyFull && used.Files < total.Files {
			continue
		}
		name := fmt.Sprintf("quota of %s and %d files that %s has on the host", spec.Size(total.Bytes), total.Files, target)
		all = append(all, fullFileSystem{target, "the " + name + " was reached: delete files there, or ask the owner of the host to raise the quota", name + " reached"})
	}
	return all
}

// writtenTo returns the places of a sandbox in which files were created or modified. A place is
// the path of a writable bind, or "" for the store.
func writtenTo(files *spec.Files, binds []string) map[string]bool {
	places := map[string]bool{}
	if files == nil {
		return places
	}
	for _, path := range slices.Concat(files.Created, files.Modified) {
		place := ""
		for _, target := range binds {
			if (path == target || strings.HasPrefix(path, target+"/")) && len(target) > len(place) {
				place = target
			}
		}
		places[place] = true
	}
	return places
}

// hostFull says that the disk of the data directory has no room for images to grow.
func (l *Sessions) hostFull() bool {
	var st unix.Statfs_t
	_, err := descriptor.Retry(func() (int, error) { return 0, unix.Statfs(l.Data, &st) })
	return err == nil && int64(st.Bavail)*st.Bsize < nearlyFull
}

// nearlyFull is a number of bytes. File systems keep some of their last bytes back, so a file
// system with fewer free bytes counts as full.
const nearlyFull = 64 << 10

const sharedMemory = "/dev/shm"

// sharedMemoryFull says whether the sandbox's shared memory has no free block or no free inode,
// and returns its size.
func sharedMemoryFull(init process.ID) (size spec.Size, full bool) {
	dir, err := record.OpenShown(init, sharedMemory, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return 0, false // the sandbox has just ended
	}
	defer dir.Close()
	var st unix.Statfs_t
	_, err = descriptor.Retry(func() (int, error) { return 0, unix.Fstatfs(int(dir.Fd()), &st) })
	if err != nil || st.Type != unix.TMPFS_MAGIC {
		return 0, false
	}
	return spec.Size(st.Blocks * uint64(st.Bsize)), st.Bavail == 0 || st.Ffree == 0
}

// checkTime bounds how long the end of a command waits for other checks of the same sandbox.
const checkTime = 10 * time.Second

// TellDamage adds to a command's result that the host's disk has lost writes to the sandbox's
// files, of this command or an earlier one. It syncs only if the host is short of room.
func (p *Process) TellDamage(r *spec.Result) {
	box := p.Live.Current()
	l := p.Live.all
	if !box.Backend(l.Roots).Durable() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	switch err := integrity.Verify(ctx, l.Roots, box, integrity.ShortOfRoom(l.Data)); {
	case errors.Is(err, fault.ErrDamaged):
		r.Damaged = true
		r.Violations = append(r.Violations, limitHit("the sandbox %v", err))
		r.Reason += "; the sandbox " + err.Error()
	case err != nil && !errors.Is(err, store.ErrAbandoned) && !errors.Is(err, fs.ErrNotExist): // else it is being removed
		r.Notes = append(r.Notes, fmt.Sprintf("lost writes to the sandbox's files cannot be ruled out: %v", err))
	}
}
