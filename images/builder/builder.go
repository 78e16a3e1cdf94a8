package builder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// A bounds limits a child.
type bounds struct {
	Memory int64 // private memory in bytes, beyond that of an idle child
	CPU    time.Duration
	Output int64 // the size of a file that the child writes, in bytes
}

const (
	// baseMemory is the memory that each child can get. The Go runtime and its threads need a part.
	baseMemory = 256 << 20
	// fileMemory is the additional memory for each file of an index.
	fileMemory = 2 << 10
	// fileOutput is the space of a file in an index, without its names and attributes.
	fileOutput = 4 << 10
	baseCPU    = time.Minute
	// slowest is the slowest speed of a child that does not loop, in bytes per second.
	slowest = 4 << 20
	// wallFactor is how much longer than its CPU time the child of an index may take. All its files are
	// on disk.
	wallFactor = 20
)

// Inflate writes the tar of a layer to out. The layer is compressed, or a tar already; see
// inflate.Copy. The files in and out are pipes or regular files, and the child uses their offsets. A tar
// larger than the limit is an error. The end of ctx ends the child: the caller must bound a wait for a pipe.
func Inflate(ctx context.Context, in, out *os.File, limit int64) error {
	b := bounds{Memory: baseMemory, CPU: baseCPU + timeFor(limit), Output: limit}
	_, err := build(ctx, kind, job{Work: inflateWork, Max: limit, Bounds: b}, []*os.File{in, out})
	if err != nil {
		return fmt.Errorf("inflate a layer: %w", err)
	}
	return nil
}

// Index writes to out the index of an image with these layers: tars, the lowest first; see index.Build.
// The file out is regular and empty.
func Index(ctx context.Context, layers []*os.File, out *os.File, l index.Limits) (index.Summary, error) {
	var size int64
	for _, f := range layers {
		info, err := f.Stat()
		if err != nil {
			return index.Summary{}, err
		}
		size += info.Size()
	}
	b := indexBounds(withDefaults(l), size)
	ctx, cancel := context.WithTimeoutCause(ctx, wallFactor*b.CPU, fmt.Errorf("the child did not end within %v", wallFactor*b.CPU))
	defer cancel()
	r, err := build(ctx, kind, job{Work: indexWork, Limits: l, Bounds: b}, append(layers[:len(layers):len(layers)], out))
	if err != nil {
		return index.Summary{}, fmt.Errorf("make the index of an image: %w", err)
	}
	return r.Summary, nil
}

// tarBlock is the least size of an entry in a tar. The directories that a long name implies have no entry; baseMemory
// has room for more of them than images in use have.
const tarBlock = 512

// indexBounds are the bounds of the child for layers of a size.
func indexBounds(l index.Limits, size int64) bounds {
	files, text := min(int64(l.Files), size/tarBlock), min(l.Text, size)
	return bounds{
		Memory: baseMemory + files*fileMemory + text,
		CPU:    baseCPU + timeFor(size),
		Output: baseMemory + files*fileOutput + 2*text + l.Copied,
	}
}

// withDefaults has the default in place of each limit that is zero, as index.Build.
func withDefaults(l index.Limits) index.Limits {
	d := index.DefaultLimits()
	l.Files, l.Text, l.Copied = cmp.Or(l.Files, d.Files), cmp.Or(l.Text, d.Text), cmp.Or(l.Copied, d.Copied)
	return l
}

// timeFor is the CPU time for some bytes.
func timeFor(bytes int64) time.Duration { return time.Duration(bytes/slowest) * time.Second }

// A job is the argument of a child.
type job struct {
	Work   string
	Parent int   // its process number
	Files  int   // the number of files that follow the one for the result
	Max    int64 `json:",omitempty"`
	Limits index.Limits
	Bounds bounds
}

// A result is the message of a child at its end.
type result struct {
	Summary index.Summary
	Error   string
}

// maxResult bounds the message of a child, so that the message fits into a pipe without a reader.
const maxResult = 4 << 10

// build runs a child, and returns its result.
func build(ctx context.Context, kind string, j job, files []*os.File) (result, error) {
	j.Parent, j.Files = os.Getpid(), len(files)
	arguments, err := json.Marshal(j)
	if err != nil {
		return result{}, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return result{}, err
	}
	defer r.Close()
	exit, err := worker.Run(ctx, kind, []string{string(arguments)}, append([]*os.File{w}, files...))
	w.Close()
	if err != nil {
		return result{}, err
	}
	if exit.Status != 0 {
		return result{}, explain(exit, j.Bounds)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxResult+1))
	if err != nil {
		return result{}, err
	}
	var got result
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil || len(text) > maxResult {
		return result{}, errors.New("the child gave no valid result")
	}
	if got.Error != "" {
		return result{}, errors.New(line(got.Error))
	}
	return got, nil
}

// explain tells why a child has ended without a result.
func explain(exit worker.Exit, b bounds) error {
	text := exit.Errors
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
	}
	switch s := exit.Status; {
	case has("out of memory", "cannot allocate memory", "pthread_create failed"):
		return fmt.Errorf("the content needs more than %d MiB of memory", b.Memory>>20)
	case s.Signaled() && (s.Signal() == syscall.SIGXCPU || s.Signal() == syscall.SIGKILL), has("SIGXCPU"):
		return fmt.Errorf("the content needs more than %v of CPU time, or the host has no memory left", b.CPU)
	case s.Signaled():
		return fmt.Errorf("the child was ended by signal %d", s.Signal())
	}
	first, _, _ := strings.Cut(text, "\n")
	return fmt.Errorf("the child ended with status %d: %s", exit.Status.ExitStatus(), line(first))
}

// maxLine bounds a reason, in bytes.
const maxLine = 500

// line makes one line of a text that can be hostile.
func line(text string) string {
	text = text[:min(len(text), maxLine)]
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, strings.TrimSpace(strings.ReplaceAll(text, "\n", "; ")))
}
