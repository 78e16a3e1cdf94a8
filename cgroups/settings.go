package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
)

// NoLimit is the value of a setting that limits nothing.
const NoLimit = math.MaxInt64

// Settings are the limits of a group as the kernel holds them. A field is
// [NoLimit] where nothing was set and [Unknown] where this host has no such
// limit.
type Settings struct {
	Memory        int64   // bytes
	MemoryAndSwap int64   // bytes, of both together
	CPUs          float64 // processors' worth of time
	Pids          int64   // tasks (threads)
	// IO are the rules for block devices in the kernel's words.
	IO []string
}

// pidsLimit has the files with a limit of tasks.
var pidsLimit = kind{v1: "pids", v2: "pids", v1File: "pids.max", v2File: "pids.max", config: "CONFIG_CGROUP_PIDS"}

// Settings reads the group's limits, not those of the groups above it.
func (g *Group) Settings() (Settings, error) {
	s, err := g.files().settings()
	return s, g.failed("read the limits of", err)
}

func (f files) settings() (s Settings, err error) {
	if s.Memory, err = f.number(kind{v1: "memory", v2: "memory", v1File: "memory.limit_in_bytes", v2File: "memory.max"}); err != nil {
		return s, err
	}
	swap, err := f.number(kind{v1: "memory", v2: "memory", v1File: "memory.memsw.limit_in_bytes", v2File: "memory.swap.max"})
	if err != nil {
		return s, err
	}
	s.MemoryAndSwap = swap
	if f.host.Mode == V2 && s.Memory != NoLimit && swap != NoLimit && swap != Unknown {
		s.MemoryAndSwap = s.Memory + swap // counted apart there
	}
	if s.Pids, err = f.number(pidsLimit); err != nil {
		return s, err
	}
	if s.CPUs, err = f.cpus(); err != nil {
		return s, err
	}
	for _, file := range []string{"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"} {
		rules, ok, err := f.setting(kind{v1: "blkio", v2: "io", v1File: file, v2File: "io.max"})
		if err != nil {
			return s, err
		}
		if ok && rules != "" {
			s.IO = append(s.IO, strings.Split(rules, "\n")...)
		}
		if f.host.Mode == V2 {
			break // one file has both
		}
	}
	return s, nil
}

// cpus divides the quota by the period, which v2 has in one file.
func (f files) cpus() (float64, error) {
	text, ok, err := f.setting(kind{v1: "cpu", v2: "cpu", v1File: "cpu.cfs_quota_us", v2File: "cpu.max"})
	if err != nil || !ok {
		return Unknown, err
	}
	quota, period, found := strings.Cut(text, " ")
	if !found {
		if period, _, err = f.setting(kind{v1: "cpu", v2: "cpu", v1File: "cpu.cfs_period_us"}); err != nil {
			return Unknown, err
		}
	}
	q, err := limitFrom(quota)
	if err != nil || q == NoLimit {
		return NoLimit, err
	}
	p, err := strconv.ParseInt(period, 10, 64)
	if err != nil || p <= 0 {
		return Unknown, fmt.Errorf("period %q: %w", period, err)
	}
	return float64(q) / float64(p), nil
}

func (f files) number(k kind) (int64, error) {
	text, ok, err := f.setting(k)
	if err != nil || !ok {
		return Unknown, err
	}
	return limitFrom(text)
}

// limitFrom reads a limit. Without one the files say "max", -1 or, rounded down
// to pages, the largest number there is.
func limitFrom(text string) (int64, error) {
	if text == "max" || text == "-1" {
		return NoLimit, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if n >= math.MaxInt64-1<<20 {
		return NoLimit, nil
	}
	return n, err
}

// setting reads a file of the group; ok is false where the host does not have it.
func (f files) setting(k kind) (text string, ok bool, err error) {
	t, _, ok := f.host.limitHierarchy(k)
	if !ok {
		return "", false, nil
	}
	dir, err := t.open(f.path)
	if err != nil {
		return "", false, err
	}
	defer dir.Close()
	file := k.v1File
	if f.host.Mode == V2 {
		file = k.v2File
	}
	text, err = readFile(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return strings.TrimSpace(text), err == nil, err
}

// PidsWithin returns a limit of tasks, or the present one of the group at path if that is
// lower.
func (h *Host) PidsWithin(path string, limit int64) (int64, error) {
	g, err := h.Open(path)
	if err != nil {
		return 0, err
	}
	present, err := g.files().number(pidsLimit)
	if errors.Is(err, fs.ErrNotExist) || err == nil && present == Unknown {
		return limit, nil
	}
	return min(limit, present), g.failed("read the limit of tasks of", err)
}
