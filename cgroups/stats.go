package cgroups

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Unknown is the value of a statistic or an event counter that this host does not have: the
// controller is not mounted, or the kernel is too old.
const Unknown = -1

// Stats is the use of resources by a group and the groups below it. A field can be Unknown.
type Stats struct {
	CPU        time.Duration // processor time, user and system
	Memory     int64         // bytes charged now, page cache included
	MemoryPeak int64         // bytes, the most ever; v2: Linux 5.19
	Pids       int64         // tasks (threads) now
	PidsPeak   int64         // the most tasks ever, Linux 6.1
	IORead     int64         // bytes from block devices
	IOWritten  int64         // bytes to block devices; on v1 without buffered writes
}

func unknownStats() Stats {
	return Stats{Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown}
}

// exists reports whether any hierarchy has the group.
func (f files) exists() bool {
	return slices.ContainsFunc(f.host.trees, func(t tree) bool { return exists(t.path(f.path)) })
}

// pidsPeak reads pids.peak, which the library does not read.
func (f files) pidsPeak() int64 {
	t, ok := f.host.controllerTree("pids")
	if !ok {
		return Unknown
	}
	dir, err := t.open(f.path)
	if err != nil {
		return Unknown
	}
	defer dir.Close()
	peak, _ := counter{}.read(dir, "pids.peak") // Unknown after an error
	return peak
}

// blkioFile has the bytes of a group and the groups below it, for each disk.
const blkioFile = "blkio.throttle.io_service_bytes_recursive"

// blkio reads the bytes of all disks, for the group and the groups below it. The library
// reads only those of the group.
func (f files) blkio() (read, written int64, err error) {
	table, ok, err := f.setting(kind{v1: "blkio", v1File: blkioFile}) // since Linux 4.18
	if err != nil || !ok {
		return Unknown, Unknown, err
	}
	return parseBlkio(table)
}

// parseBlkio sums lines like "254:0 Read 8388608". If there is no such line, the bytes are
// Unknown: the kernel counts the traffic of a disk only after a first throttle on that disk
// (block/blk-throttle.h:blk_should_throtl(), Linux 6.10).
func parseBlkio(table string) (read, written int64, err error) {
	read, written = Unknown, Unknown
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue // the line with the sum of all disks
		}
		n, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil {
			return Unknown, Unknown, fmt.Errorf("parse blkio line %q: %w", line, err)
		}
		switch f[1] {
		case "Read":
			read = max(read, 0) + clamp(n)
		case "Write":
			written = max(written, 0) + clamp(n)
		}
	}
	return read, written, nil
}

// clamp converts v, and returns the largest int64 for larger values.
func clamp(v uint64) int64 {
	return int64(min(v, math.MaxInt64))
}
