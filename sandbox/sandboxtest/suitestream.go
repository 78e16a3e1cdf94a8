package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// streamClaims are about the streams of a command.
var streamClaims = []claim{
	{"output goes to its stream", "", checkOutput},
	{"output is kept up to its limit", "", checkOutputLimit},
	{"input of each size arrives", "", checkInput},
	{"a command without input has an empty one", "", checkNoInput},
	{"streams pass on data as it comes", "", checkStreaming},
	{"one writer gets both streams in order", "", checkOneWriter},
	{"a writer that has enough ends the command", "", checkEnough},
	{"the error of a writer is returned", "", checkWriterError},
	{"a timeout holds against a writer that does not return", "", checkStuckWriter},
}

func checkOutput(w *world) {
	sb := w.box()
	for _, pause := range []string{"", "sleep 0.05;"} { // read at the end, and by goroutines
		if r := w.run(sb, "echo out; "+pause+" echo err >&2"); string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" {
			w.Errorf("%q: %+v", pause, r)
		}
	}
	c, out := shell("echo out; echo err >&2"), &buffer{}
	c.Stdout = out
	if r := w.exec(sb, c); r.Stdout != nil || out.String() != "out\n" || string(r.Stderr) != "err\n" {
		w.Errorf("%+v, %q", r, out.String())
	}
}

// More than a pipe holds goes through, and more than the limit is taken and
// dropped: the command neither stops nor fails.
func checkOutputLimit(w *world) {
	sb := w.box()
	for _, test := range []struct {
		written, limit, kept int64
	}{
		{0, 0, 0}, {10, 10, 10}, {11, 10, 10}, {1 << 20, 0, 1 << 20}, {1 << 28, 0, sandbox.OutputLimit}, {1 << 20, 100, 100},
	} {
		c := shell(fmt.Sprintf("head -c %d /dev/zero && echo all >&2", test.written))
		c.OutputLimit = test.limit
		r := w.exec(sb, c)
		if !r.OK() || int64(len(r.Stdout)) != test.kept || r.StdoutTruncated != (test.kept < test.written) || r.StdoutOmitted != test.written-test.kept || string(r.Stderr) != "all\n" {
			w.Errorf("%+v: %d bytes, truncated %v, %d omitted, %q, %s", test, len(r.Stdout), r.StdoutTruncated, r.StdoutOmitted, r.Stderr, r.Reason)
		}
	}
}

func checkInput(w *world) {
	sb := w.box()
	for _, size := range []int{0, 1, 4096, 4097, 1 << 20} {
		c := shell("wc -c")
		c.Stdin = strings.NewReader(strings.Repeat("x", size))
		if r := w.exec(sb, c); strings.TrimSpace(string(r.Stdout)) != fmt.Sprint(size) {
			w.Errorf("%d bytes: %+v", size, r)
		}
	}
}

func checkNoInput(w *world) {
	c := shell("cat; echo end")
	c.Timeout = w.patience
	if r := w.exec(w.box(), c); string(r.Stdout) != "end\n" {
		w.Errorf("%+v", r)
	}
}

func checkStreaming(w *world) {
	c := shell("cat")
	input, typed, err := os.Pipe()
	w.must(err)
	defer input.Close()
	defer typed.Close()
	c.Stdin = input
	p, out := w.start(w.box(), c)
	all := ""
	for _, word := range []string{"one", "two"} {
		_, err := typed.WriteString(word)
		w.must(err)
		all += word
		w.await(out, all)
	}
	typed.Close()
	if r, err := w.end(p); err != nil || !r.OK() {
		w.Errorf("%+v, %v", r, err)
	}
}

func checkOneWriter(w *world) {
	c, out := shell("for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"), &buffer{}
	c.Stdout, c.Stderr = out, out
	w.exec(w.box(), c)
	if got := strings.Join(strings.Fields(out.String()), " "); got != "o1 e1 o2 e2 o3 e3 o4 e4 o5 e5" {
		w.Errorf("%s", got)
	}
}

// A writerFunc is a writer of the caller.
type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func checkEnough(w *world) {
	c := shell("exec yes")
	c.Timeout = w.patience
	c.Stdout = writerFunc(func([]byte) (int, error) { return 0, &os.PathError{Op: "write", Path: "|1", Err: unix.EPIPE} })
	if r, err := w.box().Exec(w.Context(), c); err != nil || r.Signal != "SIGPIPE" {
		w.Errorf("%+v, %v", r, err)
	}
}

func checkWriterError(w *world) {
	c, full := shell("echo x; exit 4"), errors.New("disk full")
	c.Stdout = writerFunc(func([]byte) (int, error) { return 0, full })
	if r, err := w.box().Exec(w.Context(), c); !errors.Is(err, full) || r.ExitCode != 4 {
		w.Errorf("%+v, %v", r, err)
	}
}

func checkStuckWriter(w *world) {
	sb := w.box()
	out, release := io.Pipe()
	defer w.close(out)
	w.longEnough(func(timeout time.Duration) bool {
		c := shell("echo said >&2; exec yes")
		c.Timeout, c.Stdout = timeout, release
		r := w.exec(sb, c)
		if r.Status != sandbox.StatusTimedOut {
			w.Fatalf("%+v", r)
		}
		return string(r.Stderr) == "said\n" && slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "did not take") })
	})
}

// longEnough tries longer and longer timeouts until the command has got as far as it should: on a slow machine the first
// ones are too short.
func (w *world) longEnough(far func(timeout time.Duration) bool) {
	w.Helper()
	for timeout := time.Second; timeout < w.patience; timeout *= 4 {
		if far(timeout) {
			return
		}
	}
	w.Error("no timeout is long enough")
}
