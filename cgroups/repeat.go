package cgroups

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Some language runtimes read the limits of a process's own group, and no limit of the groups
// above: libuv, Go, and the JVM until 23. So a leaf repeats the limits of its group. The
// repeated limits change nothing else, because memory and processor time of a leaf are part of
// those of the group, which meets its limit first.

// RepeatInLeaves replaces the repeated limits from by the limits to, in all leaves. A leaf with
// other limits, set by Limit, keeps these. On v1 the limit of processor time of a leaf must not
// be above that of its group. So a caller that lowers the group's limit must call RepeatInLeaves
// first, and a caller that raises the limit must call RepeatInLeaves afterwards.
func (g *Group) RepeatInLeaves(from, to LeafLimits) error {
	if from == to {
		return nil
	}
	names, err := g.Leaves()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		leaf, err := g.OpenLeaf(name)
		if err == nil {
			err = errors.Join(leaf.failed("limit", leaf.repeatAnew(from, to)), leaf.Close())
		}
		errs = append(errs, ignore(err, fs.ErrNotExist, unix.ENODEV))
	}
	return errors.Join(errs...)
}

func (l *Leaf) repeatAnew(from, to LeafLimits) error {
	present := l.parent.host.repeated(from)
	for i, s := range l.parent.host.repeated(to) {
		if i >= len(present) || present[i].file != s.file {
			return errors.New("the limits to repeat are of other kinds than the old ones")
		}
		p, ok := l.placeOf(s.controller)
		if !ok {
			continue
		}
		var room [64]byte
		value, err := l.read(p, "/"+s.file, room[:])
		if errors.Is(err, fs.ErrNotExist) || err == nil && string(bytes.TrimSpace(value)) != present[i].value {
			continue
		}
		if err == nil {
			// EBUSY: the leaf has more memory at this moment; the limit of the group holds.
			err = ignore(p.write(l.name+"/"+s.file, s.value), unix.EBUSY)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// repeat gives a new leaf the limits of its group, where the leaf has the controllers.
func (l *Leaf) repeat(limits LeafLimits) error {
	for _, s := range l.parent.host.repeated(limits) {
		// EINVAL: the group has a lower limit of processor time by now, which holds.
		if err := ignore(l.writeFile(s.controller, s.file, s.value), fs.ErrNotExist, unix.EINVAL); err != nil {
			return err
		}
	}
	return nil
}

// repeated are the files for limits, with the values that the kernel shows: memory in whole
// pages. Swap and the buffers of sockets are not repeated: no known runtime reads their limits.
func (h *Host) repeated(l LeafLimits) (all []setting) {
	page := int64(os.Getpagesize())
	memory := strconv.FormatInt(l.Memory/page*page, 10)
	quota := strconv.FormatInt(max(int64(math.Round(l.CPUs*cpuPeriod)), minQuota), 10)
	files := [2]setting{{controller: "memory", file: "memory.limit_in_bytes", value: memory}, {controller: "cpu", file: "cpu.cfs_quota_us", value: quota}}
	if h.Mode == V2 {
		files = [2]setting{{controller: "memory", file: "memory.max", value: memory}, {controller: "cpu", file: "cpu.max", value: quota + " " + strconv.Itoa(cpuPeriod)}}
	}
	if l.Memory > 0 {
		all = append(all, files[0])
	}
	if l.CPUs > 0 {
		all = append(all, files[1])
	}
	return all
}
