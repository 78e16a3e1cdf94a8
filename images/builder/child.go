package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// kind is the kind of the worker (internal/process/worker).
const kind = "image-builder"

// Kinds of work.
const (
	inflateWork = "inflate"
	indexWork   = "index"
)

// TakeOver does not return in a child of this package. Each program that uses the package calls TakeOver
// before it does anything else.
func TakeOver() { takeOver(kind, work) }

func takeOver(kind string, work func(j job, files []*os.File) (index.Summary, error)) {
	restrict := func(args []string, execute func() error) error {
		j, err := parse(args)
		if err != nil {
			return err
		}
		if err := errors.Join(limitResources(j.Bounds, j.Files), worker.RestrictFiles()); err != nil {
			return fail(err)
		}
		return fail(execute())
	}
	worker.TakeOverConfined(kind, restrict, func(args []string) error {
		runtime.LockOSThread() // for EndWithParent
		j, err := parse(args)
		if err != nil {
			return err
		}
		if err := errors.Join(worker.EndWithParent(j.Parent), confine(j.Bounds)); err != nil {
			return fail(err)
		}
		files := make([]*os.File, j.Files)
		for i := range files {
			files[i] = worker.File(1 + i)
		}
		summary, err := work(j, files)
		if err != nil {
			return fail(err)
		}
		return json.NewEncoder(worker.File(0)).Encode(result{Summary: summary})
	})
}

func parse(args []string) (j job, err error) {
	if len(args) != 1 {
		return j, errors.New("the arguments are not a builder's")
	}
	return j, json.Unmarshal([]byte(args[0]), &j)
}

// fail reports an error to the parent.
func fail(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	return json.NewEncoder(worker.File(0)).Encode(result{Error: text[:min(len(text), maxLine)]})
}

func work(j job, files []*os.File) (s index.Summary, err error) {
	ctx := context.Background() // the parent kills this process
	switch {
	case j.Work == inflateWork && len(files) == 2:
		_, err = inflate.Copy(ctx, files[1], files[0], j.Max)
		return s, err
	case j.Work == indexWork && len(files) >= 1:
		last := len(files) - 1
		return index.Build(ctx, files[:last], files[last], j.Limits)
	}
	return s, fmt.Errorf("unknown work %q with %d files", j.Work, len(files))
}

// limitResources bounds the resources of the next program.
func limitResources(b bounds, files int) error {
	present, err := worker.PrivateMemory()
	if err != nil {
		return err
	}
	seconds := uint64((b.CPU + time.Second - 1) / time.Second)
	for _, l := range []struct {
		resource int
		soft     uint64
		hard     uint64
	}{
		{unix.RLIMIT_CORE, 0, 0},
		{unix.RLIMIT_DATA, present + uint64(b.Memory), present + uint64(b.Memory)}, // the next program begins with about as much as this one
		{unix.RLIMIT_STACK, threadStack, threadStack},
		{unix.RLIMIT_FSIZE, uint64(b.Output), uint64(b.Output)},
		{unix.RLIMIT_NOFILE, uint64(files) + spareFiles, uint64(files) + spareFiles},
		{unix.RLIMIT_CPU, seconds, seconds + 1}, // at the first one the Go runtime tells the reason
	} {
		var present unix.Rlimit // the host's limit can be lower
		if err := unix.Getrlimit(l.resource, &present); err != nil {
			return os.NewSyscallError("getrlimit", err)
		}
		limit := unix.Rlimit{Cur: min(l.soft, present.Max), Max: min(l.hard, present.Max)}
		if err := unix.Setrlimit(l.resource, &limit); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}

const (
	// threadStack is the size of the stacks that the C library makes. They count as private memory.
	threadStack = 1 << 20
	// spareFiles are the descriptors of the process beyond the handed ones: standard streams, the
	// result, and those of the Go runtime.
	spareFiles = 32
)

// confine takes the remaining rights from the process for ever.
func confine(b bounds) error {
	signal.Ignore(unix.SIGXFSZ) // a write fails, and its error tells the reason
	debug.SetMemoryLimit(b.Memory / 2)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return worker.FilterCalls([]uint32{
		unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE,
		unix.SYS_COPY_FILE_RANGE, unix.SYS_SPLICE, unix.SYS_SENDFILE,
	}, []worker.Condition{
		// Go asks for the mode of each file.
		{Call: unix.SYS_FCNTL, Argument: 1, Mask: ^uint32(0), Values: []uint32{unix.F_GETFL}},
	})
}
