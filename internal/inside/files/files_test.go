package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// hostileServer is a server that the test plays.
type hostileServer struct {
	client  *Client
	in, out *os.File // its ends
	ended   chan struct{}
}

// newHostileServer has greeted.
func newHostileServer(t *testing.T, o Options) *hostileServer {
	t.Helper()
	h := newSilent(t, o)
	h.send(t, (&answer{handle: Version}).encode())
	return h
}

func newSilent(t *testing.T, o Options) *hostileServer {
	t.Helper()
	in, clientIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	clientOut, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h := &hostileServer{in: in, out: out, ended: make(chan struct{})}
	if o.Idle == 0 {
		o.Idle = time.Hour
	}
	h.client = NewClient(clientIn, clientOut, h, o)
	t.Cleanup(func() {
		h.client.Close()
		in.Close()
		out.Close()
	})
	return h
}

func (h *hostileServer) Wait(ctx context.Context) error {
	select {
	case <-h.ended:
		return errors.New("killed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *hostileServer) Close() error { return nil }

func (h *hostileServer) send(t *testing.T, b []byte) {
	t.Helper()
	if _, err := h.out.Write(b); err != nil {
		t.Error(err)
	}
}

// nextRequest is the next request that is no ping.
func (h *hostileServer) nextRequest(t *testing.T) request {
	t.Helper()
	for {
		b, err := readFrame(h.in, nil)
		if err != nil {
			t.Errorf("no request: %v", err)
			return request{}
		}
		r, err := parseRequest(b)
		if err != nil {
			t.Error(err)
		}
		if r.op != opPing {
			return r
		}
	}
}

// TestHostileAnswersAreErrors has a server answer what none would: an error comes
// of it, soon, and the server is given up.
func TestHostileAnswersAreErrors(t *testing.T) {
	long := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	with := func(i Info) func(uint32) []byte {
		return func(id uint32) []byte { return (&answer{id: id, infos: []Info{i}}).encode() }
	}
	event := func(path string) func(uint32) []byte {
		return func(id uint32) []byte { return (&answer{id: id, events: []Event{{Created, path, false}}}).encode() }
	}
	for name, say := range map[string]func(id uint32) []byte{
		"another call":     func(id uint32) []byte { return (&answer{id: id + 7}).encode() },
		"a huge frame":     func(uint32) []byte { return long(1 << 30) },
		"too short":        func(uint32) []byte { return append(long(3), 1, 2, 3) },
		"too long":         func(id uint32) []byte { b := append((&answer{id: id}).encode(), 0); b[0]++; return b },
		"too many entries": func(id uint32) []byte { return (&answer{id: id, infos: make([]Info, listBatch+1)}).encode() },
		"too many events":  func(id uint32) []byte { return (&answer{id: id, events: make([]Event, maxBatch+1)}).encode() },
		"too much data":    func(id uint32) []byte { return (&answer{id: id, data: make([]byte, chunk+1)}).encode() },
		"a parent's name":  with(Info{Name: ".."}),
		"a path as a name": with(Info{Name: "a/b"}),
		"a NUL in a name":  with(Info{Name: "a\x00b"}),
		"a long name":      with(Info{Name: strings.Repeat("x", 256)}),
		"a negative size":  with(Info{Size: -1}),
		"a NUL in a link":  with(Info{Link: "\x00"}),
		"a path upwards":   event("a/../../b"),
		"an absolute path": event("/etc"),
		"an unknown event": func(id uint32) []byte { return (&answer{id: id, events: []Event{{Kind: 9}}}).encode() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostileServer(t, Options{})
			go func() {
				h.send(t, say(h.nextRequest(t).id))
				close(h.ended)
			}()
			if info, err := h.client.Stat(t.Context(), "/f"); err == nil || h.client.Err() == nil || errors.Is(h.client.Err(), ErrSilent) {
				t.Errorf("got %+v, %v, and the client's %v", info, err, h.client.Err())
			}
		})
	}
}

// TestOddAnswersAreErrors are of the protocol's form, and no use.
func TestOddAnswersAreErrors(t *testing.T) {
	h := newHostileServer(t, Options{})
	for _, a := range []answer{{}, {infos: make([]Info, 2)}, {code: 1 << 31}} {
		go func() {
			a.id = h.nextRequest(t).id
			h.send(t, a.encode())
		}()
		if info, err := h.client.Stat(t.Context(), "/f"); err == nil {
			t.Errorf("of %+v came %+v", a, info)
		}
	}
}

func TestAnotherVersionIsRefused(t *testing.T) {
	h := newSilent(t, Options{})
	h.send(t, (&answer{handle: Version + 1}).encode())
	if _, err := h.client.Stat(t.Context(), "/f"); err == nil || !strings.Contains(err.Error(), "has version 3, this program 2") {
		t.Errorf("got %v", err)
	}
}

// TestLateHandlesAreClosed: what was opened for somebody who has gone is let go
// of.
func TestLateHandlesAreClosed(t *testing.T) {
	h := newHostileServer(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := h.client.Open(ctx, "/f", 0, -1)
		failed <- err
	}()
	r := h.nextRequest(t)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	h.send(t, (&answer{id: r.id, handle: 42}).encode())
	if r := h.nextRequest(t); r.op != opClose || r.handle != 42 {
		t.Errorf("got %+v", r)
	}
}

// TestSilenceIsExplained: who waits learns why, and the next one before asking.
func TestSilenceIsExplained(t *testing.T) {
	paused := errors.New("paused")
	h := newHostileServer(t, Options{Silent: func(context.Context) error { return paused }})
	for range 2 {
		if _, err := h.client.Stat(t.Context(), "/f"); !errors.Is(err, paused) {
			t.Errorf("got %v", err)
		}
	}
	if h.client.Err() != nil {
		t.Errorf("it was given up: %v", h.client.Err())
	}
}

// cancelled starts n calls, and cancels them after the server has got them. It returns their ids.
func (h *hostileServer) cancelled(t *testing.T, n int) (ids []uint32) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range n {
		callers.Go(func() {
			if _, err := h.client.Stat(ctx, "/f"); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
	for range n {
		ids = append(ids, h.nextRequest(t).id)
	}
	cancel()
	callers.Wait()
	return ids
}

// TestManyMayGoAtOnce: a server that is slow with the answers stays, and gets no more calls than there is room for.
func TestManyMayGoAtOnce(t *testing.T) {
	h := newHostileServer(t, Options{})
	owed := h.cancelled(t, maxCalls)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.client.Stat(ctx, "/late"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without room: %v", err)
	}
	for _, id := range owed {
		h.send(t, (&answer{id: id}).encode())
	}
	got := make(chan error, 1)
	go func() {
		_, err := h.client.Stat(t.Context(), "/next")
		got <- err
	}()
	r := h.nextRequest(t)
	if r.name != "/next" {
		t.Errorf("the server got %+v", r)
	}
	h.send(t, (&answer{id: r.id, code: uint32(syscall.ENOENT)}).encode())
	if err := <-got; !errors.Is(err, syscall.ENOENT) {
		t.Errorf("got %v", err)
	}
}

// TestOweNoMoreThanSome: a server that gives no answers is given up, also if no caller waits.
func TestOweNoMoreThanSome(t *testing.T) {
	t.Parallel() // it takes giveUpAfter
	h := newHostileServer(t, Options{})
	h.cancelled(t, maxLate+1)
	select {
	case <-h.client.done:
	case <-time.After(giveUpAfter + testhost.Patience):
	}
	if err := h.client.Err(); !errors.Is(err, ErrSilent) {
		t.Errorf("got %v", err)
	}
}

// TestCallsWithoutAPlaceLearnOfAPause: more calls than there is room for end with the reason of the silence.
func TestCallsWithoutAPlaceLearnOfAPause(t *testing.T) {
	paused := errors.New("paused")
	h := newHostileServer(t, Options{Silent: func(context.Context) error { return paused }})
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	var callers sync.WaitGroup
	for range maxCalls + 8 {
		callers.Go(func() {
			if _, err := h.client.Stat(ctx, "/f"); !errors.Is(err, paused) {
				t.Errorf("got %v", err)
			}
		})
	}
	callers.Wait()
	if _, err := h.client.Stat(ctx, "/next"); !errors.Is(err, paused) {
		t.Errorf("then: %v", err)
	}
}

// TestAPausedServerMayOweAnswers: the server of a paused sandbox is not given up, neither during the pause nor right
// after it.
func TestAPausedServerMayOweAnswers(t *testing.T) {
	t.Parallel() // it takes giveUpAfter
	var isPaused atomic.Bool
	h := newHostileServer(t, Options{Silent: func(context.Context) error {
		if isPaused.Load() {
			return errors.New("paused")
		}
		return nil
	}})
	owed := h.cancelled(t, maxLate+2)
	isPaused.Store(true)
	time.Sleep(giveUpAfter + 5*askAfter)
	if err := h.client.Err(); err != nil {
		t.Fatalf("during the pause: %v", err)
	}
	isPaused.Store(false)
	h.send(t, (&answer{id: owed[0]}).encode())
	time.Sleep(5 * askAfter)
	if err := h.client.Err(); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// TestFullPipeHoldsNobody: the server reads nothing, and then finds whole frames.
func TestFullPipeHoldsNobody(t *testing.T) {
	h := newHostileServer(t, Options{})
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := h.client.Write(ctx, "/f", bytes.NewReader(make([]byte, 200<<10)), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	go func() { _, _ = h.client.Stat(t.Context(), "/g") }()
	if r := h.nextRequest(t); r.op != opPut || len(r.data) != 200<<10 {
		t.Errorf("got %d with %d bytes", r.op, len(r.data))
	}
	if r := h.nextRequest(t); r.op != opStat || r.name != "/g" {
		t.Errorf("got %d of %s", r.op, r.name)
	}
}

func TestIdleServersAreEnded(t *testing.T) {
	h := newHostileServer(t, Options{Idle: 500 * time.Millisecond})
	if b, err := io.ReadAll(h.in); err != nil || len(b) > 0 {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
}

// TestRootsAreNotLeft: a tree of this process's is left by nothing.
func TestRootsAreNotLeft(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/tree", 0o755), os.WriteFile(dir+"/secret", []byte("secret"), 0o644),
		os.Mkdir(dir+"/tree/s", 0o755), os.WriteFile(dir+"/tree/s/f", nil, 0o644), os.Symlink("../secret", dir+"/tree/link"), os.Symlink(dir, dir+"/tree/up")); err != nil {
		t.Fatal(err)
	}
	c := serve(t, dir+"/tree", "/workspace")
	for _, name := range []string{"/workspace/link", "/workspace/../secret", "/workspace/up/secret", "/workspace/../../etc/passwd"} {
		if _, err := c.Open(t.Context(), name, 0, -1); !errors.Is(err, ErrEscapes) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Write(t.Context(), name, strings.NewReader("x"), 0); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	for _, name := range []string{"/etc/passwd", "/workspaces/f", dir + "/secret"} {
		if _, err := c.Open(t.Context(), name, 0, -1); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := os.ReadFile(dir + "/secret"); err != nil || string(b) != "secret" {
		t.Errorf("got %q, %v", b, err)
	}
}

// serve has a client of a service.
func serve(t testing.TB, dir, prefix string) *Client {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewService(root, prefix, stdin, stdout)
	if err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	stdout.Close()
	c := NewClient(in, out, s, Options{Idle: time.Hour})
	t.Cleanup(c.Close)
	return c
}

func FuzzParseAnswer(f *testing.F) {
	for _, a := range []answer{
		{handle: 1}, {id: 7, code: 2}, {id: 1, last: true, data: []byte("data")},
		{infos: []Info{{Name: "a", Size: 5, Mode: 0o644, ModTime: time.Unix(5, 6), Link: "x"}, {}}},
		{events: []Event{{Created, "a/b", true}, {Kind: Lost}}},
	} {
		f.Add(a.encode()[4:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAnswer(b)
		if err != nil {
			return
		}
		for _, i := range a.infos {
			if i.Name != "" && !isName(i.Name) || i.Size < 0 || i.Mode&^modes != 0 || strings.ContainsRune(i.Link, 0) {
				t.Errorf("took %+v", i)
			}
		}
		again, err := parseAnswer(a.encode()[4:])
		if err != nil || !reflect.DeepEqual(again, a) {
			t.Errorf("took %+v as %+v, %v", a, again, err)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	f.Add((&request{id: 1, op: opOpen, name: "/f", size: 5, offset: 6}).encode()[4:])
	f.Add((&request{op: opRename, name: "/f", to: "/g", data: []byte("x")}).encode()[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRequest(b)
		if err == nil && !bytes.Equal(r.encode()[4:], b) {
			t.Errorf("took %x as %+v", b, r)
		}
	})
}

// noTmpfileTree is a tree on a file system without files that have no name.
type noTmpfileTree struct{ *os.Root }

func (t noTmpfileTree) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	if flag&unix.O_TMPFILE == unix.O_TMPFILE {
		return nil, unix.EOPNOTSUPP
	}
	return t.Root.OpenFile(name, flag, perm)
}

// TestDraftsBecomeFilesOrNothing: a draft replaces the file of its name, and leaves nothing where it is given up.
func TestDraftsBecomeFilesOrNothing(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.Mkdir("sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for kind, tree := range map[string]Tree{"root": root, "without O_TMPFILE": noTmpfileTree{root}, "all": All()} {
		at := "sub/file"
		if kind == "all" {
			at = dir + "/sub/file"
		}
		s := &server{tree: tree}
		for _, content := range []string{"", "first", "second"} {
			if _, err := s.putFile(at, &request{data: []byte(content), mode: 0o640}); err != nil {
				t.Errorf("%s: put %q: %v", kind, content, err)
			}
			if got, err := root.ReadFile("sub/file"); err != nil || string(got) != content {
				t.Errorf("%s: the file has %q, %v", kind, got, err)
			}
		}
		w, err := s.create(at, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.write([]byte("given up"), 0); err != nil {
			t.Error(err)
		}
		w.close()
		entries, err := os.ReadDir(dir + "/sub")
		if err != nil || len(entries) != 1 {
			t.Errorf("%s: left %v, %v", kind, entries, err)
		}
		if info, err := root.Stat("sub/file"); err != nil || info.Mode() != 0o640 {
			t.Errorf("%s: mode %v, %v", kind, info.Mode(), err)
		}
		if err := root.Remove("sub/file"); err != nil {
			t.Error(err)
		}
	}
}

// TestWrittenZerosAreHoles: zeros take no room, and the file has its size.
func TestWrittenZerosAreHoles(t *testing.T) {
	dir := t.TempDir()
	c := serve(t, dir, "/")
	want := make([]byte, 5*chunk+100)
	copy(want[chunk+8192:], "middle")
	if err := c.Write(t.Context(), "/file", bytes.NewReader(want), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "/file"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has %d bytes, %v; want %d", len(got), err, len(want))
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/file", &st); err != nil || st.Blocks*512 > 16<<10 {
		t.Errorf("the file takes %d bytes, %v", st.Blocks*512, err)
	}
}
