package agent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// durationVariable lengthens the fuzzing of the agent's code, which otherwise is
// a matter of a second. `make fuzz` sets it.
const durationVariable = "FUZZTIME"

// fuzz tries for some time, and until something of what is tried came to something
// and something to nothing: a machine that stalls gets to little in a second. It
// fails where of many tries all, or none, come to something.
func fuzz(t *testing.T, try func(*rand.Rand) bool) {
	t.Helper()
	duration := time.Second
	if s := os.Getenv(durationVariable); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	const many = 10_000
	n, taken := 0, 0
	shows := func() bool { return taken > 0 && taken < n }
	for end := time.Now().Add(duration); time.Now().Before(end) || !shows() && n < many; n++ {
		if try(r) {
			taken++
		}
	}
	t.Logf("seed %d: %d tries, %d taken", seed, n, taken)
	if !shows() {
		t.Errorf("of %d tries %d were taken: they show nothing", n, taken)
	}
}

// harness is a part of the agent's code under AddressSanitizer and UBSan, one of
// cmd/sandbox-agent/fuzz.
type harness struct {
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
	err *bytes.Buffer
}

func newHarness(t *testing.T, name string, files ...*os.File) *harness {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if out, err := exec.Command(cc, "-print-file-name=libasan.so").Output(); err != nil || !filepath.IsAbs(strings.TrimSpace(string(out))) {
		t.Skipf("needs a C compiler with libasan: %s: %q, %v", cc, out, err)
	}
	dir := t.TempDir()
	build := exec.Command("make", "-s", "-f", "cmd/sandbox-agent/agent.mk", "agent-asan", "AGENT_ASAN="+dir, "CC="+cc)
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make agent-asan: %v\n%s", err, out)
	}
	h := &harness{cmd: exec.Command(filepath.Join(dir, name)), err: new(bytes.Buffer)}
	h.cmd.Stderr, h.cmd.ExtraFiles = h.err, files
	in, err := h.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.in, h.out = in, bufio.NewReader(out)
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.in.Close()
		if err := h.cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("%s: %v\n%s", name, err, h.err)
		}
	})
	return h
}

// feed gives it one record and returns the answer.
func (h *harness) feed(t *testing.T, size int, record []byte) byte {
	t.Helper()
	if _, err := h.in.Write(append(binary.NativeEndian.AppendUint32(nil, uint32(size)), record...)); err != nil {
		h.cmd.Wait()
		t.Fatalf("%v after %x\n%s", err, record, h.err)
	}
	answer, err := h.out.ReadByte()
	if err != nil {
		h.cmd.Wait()
		t.Fatalf("%v after %x\n%s", err, record, h.err)
	}
	return answer
}

// parse gives bytes to one of parse_fuzz's parsers.
func (h *harness) parse(t *testing.T, parser byte, b []byte) byte {
	t.Helper()
	return h.feed(t, len(b), append([]byte{parser}, b...))
}

// anyRequest is one that a host sends, or nearly, with so many descriptors.
func anyRequest(r *rand.Rand) (message []byte, files int) {
	q := request{kind: requestKind(1 + r.IntN(6))}
	switch q.kind {
	case requestExec:
		files = 2
		q.payload = r.IntN(100)
		if r.IntN(3) == 0 {
			q.with |= withOutput
			q.limit, files = r.Int64(), files+2
		} else if r.IntN(2) == 0 {
			q.stdio, files = 7, files+3
		}
		if r.IntN(3) == 0 {
			q.tasks = r.IntN(maxTasks + 1)
			files += q.tasks
		} else if r.IntN(2) == 0 {
			q.with, files = q.with|withCgroup, files+1
		}
		if r.IntN(10) == 0 {
			q.with, files = q.with|withNetwork, files+1
		}
		if r.IntN(4) == 0 {
			q.with, files = q.with|withRoot, files+1
		}
		if r.IntN(10) == 0 {
			q.with, files = q.with|withProgram, files+1
		}
	case requestAttach, requestList:
		files = 1
	}
	q.id[0] = byte(r.IntN(6)) // the same ones again
	q.signal, q.group = 9, r.IntN(2) == 0
	message = q.encode()
	switch r.IntN(6) {
	case 0:
		message[r.IntN(len(message))] ^= 1 << r.IntN(8)
	case 1:
		at := r.IntN(8) * 4
		binary.NativeEndian.PutUint32(message[at:], []uint32{0, 1, 7, 12, 13, 1 << 31, 1<<32 - 1}[r.IntN(7)])
	case 2:
		files = max(0, files+r.IntN(5)-2)
	}
	return message, files
}

// TestRequestParserSurvivesAnything feeds requests to it, and filter files to
// theirs.
func TestRequestParserSurvivesAnything(t *testing.T) {
	h := newHarness(t, "parse_fuzz")
	code := filterCode()
	filter := storedFilter(0, uint32(len(code)), code)
	if h.parse(t, 'f', filter) == 0 {
		t.Error("a good filter was refused")
	}
	fuzz(t, func(r *rand.Rand) bool {
		if r.IntN(10) == 0 {
			return h.parse(t, 'f', mutate(r, filter)) != 0
		}
		message, files := anyRequest(r)
		if r.IntN(20) == 0 {
			message = mutate(r, message)
		}
		return h.parse(t, 'r', append([]byte{byte(files), byte(r.IntN(8))&^2 | 1}, message...)) != 0
	})
}

// TestServingSurvivesAnything has several hosts send requests, go and come back
// while execs end, and looks that nothing is left.
func TestServingSurvivesAnything(t *testing.T) {
	h := newHarness(t, "serve_fuzz")
	const message, signal, ops = 0, 1, 7
	fuzz(t, func(r *rand.Rand) bool {
		var script []byte
		for range r.IntN(100) {
			op := byte(r.IntN(ops))
			if r.IntN(3) == 0 {
				op = message
			}
			script = append(script, op, byte(r.Uint32()))
			if op != message && op != signal {
				continue
			}
			m, files := anyRequest(r)
			if op == signal && r.IntN(4) > 0 {
				m, files = request{kind: requestSignal, signal: unix.SIGTERM, group: r.IntN(2) == 0}.encode(), 0
			}
			size := requestSize
			if r.IntN(20) == 0 {
				size = r.IntN(requestSize)
			}
			script = append(script, byte(size), byte(files))
			script = append(script, m...)
		}
		return h.feed(t, len(script), script) > 0
	})
}

// FuzzParseList has the fuzzer of Go answer a request for the list.
func FuzzParseList(f *testing.F) {
	for n := range 3 {
		b := make([]byte, eventSize+n*idSize)
		b[0], b[8] = byte(eventList), byte(n)
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(append(b, make([]byte, idSize)...))
	}
	long := make([]byte, eventSize+(maxDetached+1)*idSize)
	long[0], long[8], long[9] = byte(eventList), 1, 1
	f.Add(long)
	f.Fuzz(func(t *testing.T, b []byte) {
		if list, err := parseList(b); err == nil && (len(b) != eventSize+len(list)*idSize || len(list) > maxDetached) {
			t.Errorf("took %x as %v", b, list)
		}
	})
}
