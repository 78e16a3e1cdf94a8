package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Totals are limits of a group over all groups below it. Zero leaves one as it is.
type Totals struct {
	Memory int64   // bytes, without swap; on v1 as much again of buffers of sockets
	CPUs   float64 // processors' worth of time
}

// LimitTotals sets limits of a group, all of them or none. The group has to be there.
// errors.ErrUnsupported says that the host has no such limit. On v1 the kernel
// refuses a total of processor time below that of one of the groups below.
func (g *Group) LimitTotals(t Totals) error {
	return g.failed("limit", g.files().setAll(t.settings(g.host.Mode)))
}

// setAll writes all settings, or on an error none.
func (f files) setAll(all []setting) (err error) {
	var done []setting
	defer func() {
		for i := len(done) - 1; err != nil && i >= 0; i-- {
			err = errors.Join(err, done[i].write())
		}
	}()
	for _, s := range all {
		before, err := f.set(s)
		if s.optional && errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			return err
		}
		done = append(done, before)
	}
	return nil
}

// A setting is a value for one of a group's files.
type setting struct {
	controller, file, value string
	optional                bool
	dir                     string // once it is known
}

func (s setting) write() error { return os.WriteFile(s.dir+"/"+s.file, []byte(s.value), 0) }

func (t Totals) settings(mode Mode) []setting {
	var all []setting
	bytes, period := strconv.FormatInt(t.Memory, 10), strconv.Itoa(cpuPeriod)
	quota := strconv.FormatInt(max(int64(t.CPUs*cpuPeriod), minQuota), 10)
	switch {
	case t.CPUs <= 0:
	case mode == V2:
		all = append(all, setting{controller: "cpu", file: "cpu.max", value: quota + " " + period})
	default:
		all = append(all, setting{controller: "cpu", file: "cpu.cfs_period_us", value: period},
			setting{controller: "cpu", file: "cpu.cfs_quota_us", value: quota})
	}
	switch {
	case t.Memory <= 0:
	case mode == V2:
		all = append(all, setting{controller: "memory", file: "memory.max", value: bytes})
	default:
		all = append(all, setting{controller: "memory", file: "memory.limit_in_bytes", value: bytes},
			setting{controller: "memory", file: socketFile, value: bytes, optional: true})
	}
	return all
}

// set writes a setting, and returns the one that was there.
func (f files) set(s setting) (before setting, err error) {
	t, ok := f.host.controllerTree(s.controller)
	if !ok {
		return s, fmt.Errorf("%s: %w: %s", s.controller, errors.ErrUnsupported, f.host.absence(s.controller))
	}
	s.dir = t.path(f.path)
	text, err := os.ReadFile(s.dir + "/" + s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%s: %w", s.file, errors.ErrUnsupported)
	}
	if err != nil {
		return s, err
	}
	before = s
	before.value = strings.TrimSpace(string(text))
	return before, s.write()
}
