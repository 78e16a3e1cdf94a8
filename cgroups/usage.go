package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Usage is the use of resources by a leaf, and the effects of limits on the leaf, since the
// leaf was made. A field can be Unknown.
type Usage struct {
	CPU        time.Duration // processor time, user and system
	MemoryPeak int64         // bytes, page cache included; v2: Linux 5.19
	IORead     int64         // bytes from block devices; on v1 only from devices that the kernel counts
	IOWritten  int64         // bytes to block devices; on v1 without buffered writes
	// OOMKills counts the processes that the kernel killed because memory ran out, under the
	// limit of the leaf or any other limit.
	OOMKills int64
	// PidsLimitHits counts the refused forks. It includes refusals by a limit of a group
	// above, except on v2 since Linux 6.11. It excludes refusals by [Leaf.Kill].
	PidsLimitHits int64
	// ForksStopped counts the forks that [Leaf.Kill] refused on v1, so that no process
	// escapes the kill. A command may notice a refusal and end by itself before the kill.
	ForksStopped int64
}

// figure is a number about a leaf: its file, and the parser of this file.
type figure struct {
	controller string
	file       string
	parse      func([]byte) (int64, error)
}

// The figures of Usage, in the order of its fields, without the fields of I/O.
var (
	figuresV1 = [4]figure{
		{"cpuacct", timeFile, parseNumber},
		{"memory", peakFile, parseNumber},
		{"memory", "/memory.oom_control", parseKey("oom_kill")},
		{"pids", "/pids.events", parseKey("max")},
	}
	figuresV2 = [4]figure{
		{"cpu", "/cpu.stat", parseMicroseconds}, // kept without any controller
		{"memory", "/memory.peak", parseNumber},
		{"memory", "/memory.events", parseKey("oom_kill")},
		{"pids", "/pids.events", parseKey("max")},
	}
)

// Usage reads the use of the leaf. It may be called until Delete, also after Close. If the
// leaf is gone, the error is fs.ErrNotExist.
func (l *Leaf) Usage() (Usage, error) {
	u, err := l.usage()
	return u, l.failed("read usage of", err)
}

// rooms are buffers for the files. A buffer on the stack would make the runtime grow, and so
// copy, the stack of each exec's goroutine.
var rooms = sync.Pool{New: func() any { return new([4096]byte) }}

func (l *Leaf) usage() (Usage, error) {
	figures := &figuresV1
	if l.parent.host.Mode == V2 {
		figures = &figuresV2
	}
	pooled := rooms.Get().(*[4096]byte)
	defer rooms.Put(pooled)
	room := pooled[:]
	var n [4]int64
	for i, f := range figures {
		var err error
		if n[i], err = l.figure(f, room); err != nil {
			return Usage{}, err
		}
	}
	u := Usage{CPU: time.Duration(n[0]), MemoryPeak: n[1], OOMKills: n[2], PidsLimitHits: n[3]}
	l.mu.Lock()
	if l.forkless {
		u.PidsLimitHits, u.ForksStopped = l.hits, u.PidsLimitHits-l.hits
	}
	l.mu.Unlock()
	var err error
	if u.IORead, u.IOWritten, err = l.diskTraffic(room); err != nil {
		return Usage{}, err
	}
	if u == (Usage{Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, 0}) {
		return Usage{}, fs.ErrNotExist
	}
	return u, nil
}

// figure is Unknown where the host has no such file.
func (l *Leaf) figure(f figure, room []byte) (int64, error) {
	p, ok := l.placeOf(f.controller)
	if !ok {
		return Unknown, nil
	}
	data, err := l.read(p, f.file, room)
	if err != nil {
		return Unknown, unlessGone(err)
	}
	n, err := f.parse(bytes.TrimSpace(data))
	if err != nil {
		return Unknown, &fs.PathError{Op: "parse", Path: filepath.Join(p.dir.Name(), l.name+f.file), Err: err}
	}
	return n, nil
}

func parseNumber(data []byte) (int64, error) {
	n, err := strconv.ParseUint(string(data), 10, 64)
	return clamp(n), err
}

// parseKey reads the number of one line of a file of keys and values. The number of a missing
// key is Unknown: memory.oom_control has the count since Linux 4.13.
func parseKey(key string) func([]byte) (int64, error) {
	prefix := []byte(key + " ")
	return func(data []byte) (int64, error) {
		for line := range bytes.Lines(data) {
			if value, ok := bytes.CutPrefix(line, prefix); ok {
				return parseNumber(bytes.TrimSpace(value))
			}
		}
		return Unknown, nil
	}
}

// parseMicroseconds reads cpu.stat as nanoseconds.
func parseMicroseconds(data []byte) (int64, error) {
	n, err := parseKey("usage_usec")(data)
	if err != nil || n == Unknown {
		return Unknown, err
	}
	return n * int64(time.Microsecond), nil
}

// diskTraffic reads the bytes of all devices.
func (l *Leaf) diskTraffic(room []byte) (read, written int64, err error) {
	file, parse := "/"+blkioFile, parseBlkio
	if l.parent.host.Mode == V2 {
		file, parse = "/io.stat", parseIOStat
	}
	p, ok := l.placeOf("blkio")
	if !ok || !l.home.io {
		return Unknown, Unknown, nil
	}
	data, err := l.read(p, file, room)
	if err == nil && len(data) == len(room) {
		err = errors.New("longer than there is room for")
	}
	if err != nil {
		return Unknown, Unknown, unlessGone(err)
	}
	if read, written, err = parse(string(data)); err != nil {
		return Unknown, Unknown, err
	}
	return max(read, 0), max(written, 0), nil // a disk without traffic has no line
}

// parseIOStat sums lines like "254:0 rbytes=8388608 wbytes=0 rios=8 …"
// (cgroup-v2.rst, "IO Interface Files"). Without lines there was no traffic.
func parseIOStat(table string) (read, written int64, err error) {
	for field := range strings.FieldsSeq(table) {
		key, value, _ := strings.Cut(field, "=")
		if key != "rbytes" && key != "wbytes" {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return Unknown, Unknown, fmt.Errorf("parse io.stat %q: %w", field, err)
		}
		if key == "rbytes" {
			read += clamp(n)
		} else {
			written += clamp(n)
		}
	}
	return read, written, nil
}
