package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Events counts the effects of limits on a group and on those below it, since the group
// was made. A field can be Unknown. The counts are gone with the group: read them before
// Delete, and on v1 those of a leaf before the leaf's.
type Events struct {
	// OOMKills counts the processes that the kernel killed for want of memory,
	// the group's or the host's. Reclaim that found memory is no event.
	OOMKills int64
	// PidsLimitHits counts the forks that were refused. A refusal by the limit
	// of a group above counts too, except on v2 since Linux 6.11.
	PidsLimitHits int64
}

// Events reads the group's event counters.
func (g *Group) Events() (Events, error) {
	oom := counter{controller: "memory", file: "memory.oom_control", key: "oom_kill"}
	pids := counter{controller: "pids", file: "pids.events", key: "max"}
	if g.host.Mode == V2 {
		oom.file, oom.local = "memory.events", "memory.events.local"
		pids.local = "pids.events.local"
	}
	var e Events
	var err error
	f := g.files()
	if e.OOMKills, err = f.count(oom); err == nil {
		e.PidsLimitHits, err = f.count(pids)
	}
	if err == nil && e.OOMKills == Unknown && e.PidsLimitHits == Unknown && !f.exists() {
		err = fs.ErrNotExist
	}
	return e, g.failed("read events of", err)
}

// MetMemoryLimit says whether the group, or one below it, has ever had no memory left under its
// own limit. If the kernel killed a process for memory and the answer is no, then a group above
// or the host had none left. On v1 the answer is also yes after reclaim has made room. There, an
// earlier limit of the group counts, too, if it is not 0.
func (g *Group) MetMemoryLimit(earlier int64) (bool, error) {
	if g.host.Mode != V2 {
		met, err := g.files().metLimitV1(earlier)
		return met, g.failed("read events of", err)
	}
	n, err := g.files().count(counter{controller: "memory", file: "memory.events", local: "memory.events.local", key: "oom"})
	if err == nil && n == Unknown {
		err = fs.ErrNotExist
	}
	return n > 0, g.failed("read events of", err)
}

// metLimitV1 compares peaks with limits. memory.failcnt would count the same, but is 0 on Linux
// 6.18 at least. Where swap is counted, that limit is met first.
func (f files) metLimitV1(earlier int64) (met bool, err error) {
	t, ok := f.host.v1("memory")
	if !ok {
		return false, nil
	}
	err = t.eachGroup(f.path, func(dir *os.File) error {
		for _, kind := range []string{"memory.", "memory.memsw."} {
			peak, err := counter{}.read(dir, kind+"max_usage_in_bytes")
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			limit, limitErr := counter{}.read(dir, kind+"limit_in_bytes")
			if err := errors.Join(err, limitErr); err != nil {
				return err
			}
			if earlier > 0 && dir.Name() == t.path(f.path) {
				limit = min(limit, earlier)
			}
			met = met || AtLimit(peak, limit)
		}
		return nil
	})
	return met, err
}

// AtLimit says whether a peak of memory is as near to a limit as the kernel lets memory come.
func AtLimit(peak, limit int64) bool { return peak >= limit-largestCharge }

// largestCharge is the most memory that the kernel charges at once rather than kill nobody
// (PAGE_ALLOC_COSTLY_ORDER), with pages of 64 KiB at most twice over.
const largestCharge = 128 << 10

// A counter is one key of an event file. The scope of the count differs: on v1 the group
// alone. On v2 the groups below too, unless the host mounts cgroup2 with
// memory_localevents or pids_localevents (cgroup-v2.rst, "Mounting"), or, for pids, is
// older than Linux 6.11; then, too, the group alone.
type counter struct {
	controller string
	file       string
	local      string // the group alone in any case; "" or not there: file is
	key        string // "" if the file has one number only
}

// count is sum in the hierarchy of the counter's controller, and Unknown where
// the group or the counter is not there.
func (f files) count(c counter) (int64, error) {
	t, ok := f.host.controllerTree(c.controller)
	if !ok {
		return Unknown, nil
	}
	n, err := c.sum(t, f.path)
	return n, ignore(err, fs.ErrNotExist)
}

// sum counts over the group at path and those below it, so that all the
// meanings of the file come out as one: the sum of the groups' own counts, or
// the group's inclusive count where that is higher (it remembers groups that
// are gone).
func (c counter) sum(t tree, path string) (int64, error) {
	total, inclusive := int64(Unknown), int64(Unknown)
	err := t.eachGroup(path, func(dir *os.File) error {
		if inclusive == Unknown {
			n, err := c.read(dir, c.file)
			if err != nil {
				return err
			}
			inclusive = n
		}
		n, err := c.readLocal(dir)
		if err != nil || n == Unknown {
			return err
		}
		total = max(total, 0) + n
		return nil
	})
	if err != nil {
		return Unknown, err
	}
	return max(total, inclusive), nil
}

func (c counter) readLocal(dir *os.File) (int64, error) {
	if c.local != "" {
		n, err := c.read(dir, c.local)
		if !errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
	}
	return c.read(dir, c.file)
}

// read returns Unknown if the file has no such key: memory.oom_control counts
// kills since Linux 4.13.
func (c counter) read(dir *os.File, file string) (int64, error) {
	table, err := readFile(dir, file)
	if err != nil {
		return Unknown, err
	}
	parse := parseKey(c.key)
	if c.key == "" {
		table, parse = strings.TrimSpace(table), parseNumber
	}
	n, err := parse([]byte(table))
	if err != nil {
		return Unknown, fmt.Errorf("parse %s/%s: %w", dir.Name(), file, err)
	}
	return n, nil
}
