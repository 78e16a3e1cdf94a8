package egress

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

const (
	// firstPause is the pause after a worker that has ended before it served. It doubles each time.
	firstPause = 10 * time.Millisecond
	maxPause   = time.Second
	// servedPause is the pause after a worker that has served for less than servedTime: sandboxes then
	// have a new one within 100 ms.
	servedPause = 20 * time.Millisecond
	servedTime  = time.Second
	// endTime is how long a killed worker may take to end.
	endTime = 10 * time.Second
)

// superviseForever starts one worker after the other.
func (p *parent) superviseForever() {
	runtime.LockOSThread() // the kernel ends a worker with the thread that has started it
	for pause := firstPause; ; {
		start := time.Now()
		served := p.runWorker()
		switch {
		case !served:
			time.Sleep(pause)
			pause = min(2*pause, maxPause)
			continue
		case time.Since(start) < servedTime:
			time.Sleep(servedPause)
		}
		pause = firstPause
	}
}

// runWorker starts a worker, and returns when it has ended. It says whether the worker has served.
func (p *parent) runWorker() (served bool) {
	channel, other, err := channel.Pair(0)
	if err != nil {
		return false
	}
	defer channel.Close()
	theirs := os.NewFile(uintptr(other), "worker")
	var id process.ID
	err = worker.Start(link.WorkerKind, []string{strconv.Itoa(os.Getpid())}, []*os.File{theirs}, func(started process.ID) error {
		id = started
		return nil
	})
	theirs.Close()
	if err != nil {
		return false
	}
	ended := make(chan bool)
	go func() { ended <- p.read(channel) }()
	p.restore(channel)
	served = <-ended
	p.forget()
	_ = id.End(endTime) // it has ended, unless it is hostile
	return served
}

// read takes the reports of a worker until the end. It says whether the worker has acknowledged an order.
func (p *parent) read(channel *channel.Conn) (served bool) {
	defer channel.HangUp() // after a wrong report
	for {
		body, files, err := channel.Receive(context.Background(), link.MaxReport)
		descriptor.Close(files...)
		if err != nil {
			return served
		}
		r, err := link.ParseReport(body)
		if err != nil {
			return served
		}
		p.handleReport(channel, r)
		served = served || r.Kind == link.KindAck
	}
}

// closeOthers closes the descriptors that this process has inherited, but for one and its standard
// streams. Those of the Go runtime stay.
func closeOthers(keep *os.File) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 || fd == int(keep.Fd()) {
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(target, "anon_inode:[event") {
			descriptor.CloseFD(fd)
		}
	}
	return nil
}
