package cgroups

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// LeafLimits are one command's own limits. Zero: only the limits of the group above. A
// higher limit than those is no error, and has no effect.
type LeafLimits struct {
	Memory int64   // bytes, swap included where the host counts it
	CPUs   float64 // processors' worth of time
	Pids   int64   // tasks (threads) at once
}

// Limit sets limits, once, before anything joins the leaf. errors.ErrUnsupported
// says that this host cannot hold one of them.
func (l *Leaf) Limit(limits LeafLimits) error {
	l.mu.Lock()
	l.limited = true
	l.mu.Unlock()
	return l.failed("limit", l.limit(limits))
}

func (l *Leaf) limit(limits LeafLimits) error {
	reasons := l.parent.host.Limits
	if limits.Pids > 0 {
		if err := l.writeFile("pids", "pids.max", strconv.FormatInt(limits.Pids, 10)); err != nil {
			return lacking("pids", reasons.Pids, err)
		}
	}
	if limits.Memory > 0 {
		if err := l.limitMemory(strconv.FormatInt(limits.Memory, 10)); err != nil {
			return lacking("memory", reasons.Memory, err)
		}
	}
	if limits.CPUs > 0 {
		if err := l.limitCPU(limits.CPUs); err != nil {
			return lacking("cpu", reasons.CPU, err)
		}
	}
	return nil
}

// lacking turns a file that is not there into errors.ErrUnsupported.
func lacking(controller string, limit Limit, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	reason := cmp.Or(limit.Reason, "its cgroup has no such controller")
	return fmt.Errorf("%s of one command: %w: %s (%w)", controller, errors.ErrUnsupported, reason, err)
}

// writeFile writes one of the leaf's files; fs.ErrNotExist if there is none.
func (l *Leaf) writeFile(controller, file, value string) error {
	p, ok := l.placeOf(controller)
	if !ok {
		return fs.ErrNotExist
	}
	return p.write(l.name+"/"+file, value)
}

func (l *Leaf) limitMemory(bytes string) error {
	memory, swap, swapBytes := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes
	if l.parent.host.Mode == V2 {
		memory, swap, swapBytes = "memory.max", "memory.swap.max", "0" // counted apart there
	}
	if err := l.writeFile("memory", memory, bytes); err != nil {
		return err
	}
	if l.parent.host.Mode != V2 {
		if err := ignore(l.writeFile("memory", socketFile, bytes), fs.ErrNotExist); err != nil {
			return err
		}
	}
	// A host that does not count swap has no such file.
	return ignore(l.writeFile("memory", swap, swapBytes), fs.ErrNotExist)
}

// cpuPeriod is the kernel's own default, in µs (scheduler/sched-bwc.rst), and
// minQuota the least that it accepts.
const (
	cpuPeriod = 100_000
	minQuota  = 1000
)

func (l *Leaf) limitCPU(cpus float64) error {
	quota := strconv.FormatInt(max(int64(cpus*cpuPeriod), minQuota), 10)
	period := strconv.Itoa(cpuPeriod)
	if l.parent.host.Mode == V2 {
		return l.writeFile("cpu", "cpu.max", quota+" "+period)
	}
	if err := l.addCPU(); err != nil {
		return err
	}
	if err := l.writeFile("cpu", "cpu.cfs_period_us", period); err != nil {
		return err
	}
	// EINVAL: it is above the group's own share, which holds.
	return ignore(l.writeFile("cpu", "cpu.cfs_quota_us", quota), unix.EINVAL)
}

// addCPU makes the leaf in the hierarchy of the cpu controller, if that is one
// of its own.
func (l *Leaf) addCPU() error {
	if _, ok := l.placeOf("cpu"); ok {
		return nil
	}
	if l.home.cpu.dir == nil {
		return fs.ErrNotExist
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addPlace(l.home.cpu)
}
