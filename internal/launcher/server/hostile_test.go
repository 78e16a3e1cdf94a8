package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A hostileClient speaks to a server in bytes.
type hostileClient struct {
	t     testing.TB
	world *world
	conn  *net.UnixConn
	done  <-chan struct{}
}

func newHostileClient(t testing.TB, w *world, uid uint32) *hostileClient {
	t.Helper()
	conn, done := w.socket(t, uid)
	t.Cleanup(func() { conn.Close() })
	return &hostileClient{t, w, conn, done}
}

// frame is a body with its header.
func frame(files int, body string) string {
	n := len(body)
	return string([]byte{byte(files), byte(n >> 16), byte(n >> 8), byte(n)}) + body
}

func (h *hostileClient) send(bytes string, fds ...int) {
	h.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := h.conn.WriteMsgUnix([]byte(bytes), rights, nil); err != nil {
		h.t.Logf("send: %v", err)
	}
}

func (h *hostileClient) hello() { h.send(frame(0, fmt.Sprintf(`{"protocol":%d}`, protocol.Protocol))) }

// call opens a call and sends these bytes on it.
func (h *hostileClient) call(bytes string, fds ...int) *channel.Conn {
	h.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	if bytes != "" {
		// Before the other end is given away, so that it is there at once.
		_ = unix.Sendmsg(pair[0], []byte(bytes), unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT)
	}
	h.send(frame(1, ""), pair[1])
	unix.Close(pair[1])
	channel, err := channel.New(pair[0], 8)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		channel.Close()
		channel.Discard()
	})
	return channel
}

// ask is a request of an operation.
func ask(word, request string) string { return word + "\n" + request }

// about is a request about a sandbox.
func about(word, id, request string) string {
	return ask(word, `{"id":"`+id+`","request":`+request+`}`)
}

// anAnswer is an answer of any operation.
type anAnswer = protocol.Answer[json.RawMessage]

// answer waits for what a call is told.
func answer(t testing.TB, c *channel.Conn) (*anAnswer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	body, files, err := c.Receive(ctx, channel.MaxFrame)
	descriptor.Close(files...)
	if err != nil {
		return nil, err
	}
	var a anAnswer
	return &a, json.Unmarshal(body, &a)
}

// serves fails the test unless the server serves others, and holds nothing of
// who has gone.
func (w *world) serves(t testing.TB) {
	t.Helper()
	c := w.client(t, 0)
	defer c.Close()
	if _, err := c.List(t.Context()); err != nil {
		t.Errorf("others are not served: %v", err)
	}
}

func TestTrunksThatAreNone(t *testing.T) {
	null := testhost.OpenNull(t, 4)
	for name, attack := range map[string]func(h *hostileClient){
		"nothing":                       func(*hostileClient) {},
		"no hello":                      func(h *hostileClient) { h.send(frame(1, ""), null[0]) },
		"a hello that is none":          func(h *hostileClient) { h.send(frame(0, "{")) },
		"a hello of another version":    func(h *hostileClient) { h.send(frame(0, `{"protocol":99}`)) },
		"a long hello":                  func(h *hostileClient) { h.send(frame(0, strings.Repeat(" ", protocol.MaxHello+1))) },
		"HTTP":                          func(h *hostileClient) { h.send("GET / HTTP/1.1\r\n\r\n") },
		"calls without descriptors":     func(h *hostileClient) { h.hello(); h.send(frame(1, "")) },
		"a call with a body":            func(h *hostileClient) { h.hello(); h.send(frame(1, "x"), null[0]) },
		"a call with three descriptors": func(h *hostileClient) { h.hello(); h.send(frame(3, ""), null[:3]...) },
		"zeros":                         func(h *hostileClient) { h.hello(); h.send(strings.Repeat("\x00", 1<<16)) },
		"a call on no socket":           func(h *hostileClient) { h.hello(); h.send(frame(1, ""), null[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := openFiles()
			h := newHostileClient(t, w, 0)
			attack(h)
			h.conn.Close()
			<-h.done
			w.serves(t)
			testhost.Eventually(t, "the end of its descriptors", func() bool { return openFiles() <= before })
		})
	}
}

func TestRequestsThatAreNone(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector would close descriptors that the server forgets
	null := testhost.OpenNull(t, 40)
	w := newWorld(t)
	box(t, w.client(t, 0), "box")
	for name, test := range map[string]struct {
		bytes string
		fds   []int
		is    error // nil: *ConfigError; the call may be given up too
	}{
		"no JSON":                 {frame(0, ask("list", "{")), nil, nil},
		"another JSON":            {frame(0, ask("list", "[1]")), nil, nil},
		"deep JSON":               {frame(0, ask("list", strings.Repeat("[", 60000))), nil, nil},
		"no operation":            {frame(0, about("", "box", "{}")), nil, nil},
		"an unknown operation":    {frame(0, about("reboot", "box", "{}")), nil, nil},
		"an id that is a path":    {frame(0, about("info", "../../etc", "{}")), nil, fault.ErrNotFound},
		"an id that is no id":     {frame(0, about("start", "..", `{"command":{"args":["true"]}}`)), nil, fault.ErrNotFound},
		"an id with a zero":       {frame(0, about("stats", `box\u0000`, "{}")), nil, fault.ErrNotFound},
		"an empty id":             {frame(0, ask("pause", `{"request":{}}`)), nil, fault.ErrNotFound},
		"a long id":               {frame(0, about("resume", strings.Repeat("x", 1000), "{}")), nil, fault.ErrNotFound},
		"a name that is a path":   {frame(0, ask("create", `{"create":{"name":"a/b","config":{}}}`)), nil, nil},
		"an exec that is a path":  {frame(0, about("attach", "box", `"../../x"`)), nil, fault.ErrNotFound},
		"create of nothing":       {frame(0, ask("create", "{}")), nil, nil},
		"start of nothing":        {frame(0, about("start", "box", "{}")), nil, nil},
		"update of nothing":       {frame(0, ask("update", `{"id":"box"}`)), nil, nil},
		"remove of nothing":       {frame(0, ask("remove", `{"id":"box"}`)), nil, nil},
		"a word alone":            {frame(0, "list"), nil, nil},
		"a member too many":       {frame(0, ask("list", `{"all":true}`)), nil, nil},
		"a member of another":     {frame(0, about("update", "box", `{"pids":20,"network":{}}`)), nil, nil},
		"two requests":            {frame(0, ask("list", "{} {}")), nil, nil},
		"files of an unknown one": {frame(2, about("reboot", "box", "{}")), null[:2], nil},
		"files of no JSON":        {frame(2, ask("create", "{")), null[:2], nil},
		"files of a list":         {frame(2, ask("list", "[]")), null[:2], nil},
		"files of one not there":  {frame(2, about("start", "none", `{"command":{"args":["true"]},"stdio":3}`)), null[:2], fault.ErrNotFound},
		"files nobody announced":  {frame(2, about("start", "box", `{"command":{"args":["true"]}}`)), null[:2], nil},
		"announced files":         {frame(0, about("start", "box", `{"stdio":7,"command":{"args":["true"]}}`)), nil, nil},
		"a fourth file":           {frame(1, about("start", "box", `{"stdio":8,"command":{"args":["true"]}}`)), null[:1], nil},
		"negative files":          {frame(0, about("start", "box", `{"stdio":-1,"command":{"args":["true"]}}`)), nil, nil},
		"paths without files":     {frame(0, ask("create", `{"create":{"config":{}},"paths":["/etc"]}`)), nil, nil},
		"files without paths":     {frame(40, ask("create", `{"create":{"config":{}}}`)), null, nil},
		"a path twice":            {frame(2, ask("create", `{"create":{"config":{}},"paths":["/a","/a"]}`)), null[:2], nil},
		"more files than it says": {frame(1, ask("list", "{}")), null[:9], nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFiles()
			h := newHostileClient(t, w, 0)
			h.hello()
			c := h.call(test.bytes, test.fds...)
			a, err := answer(t, c)
			var config *fault.ConfigError
			switch {
			case err != nil:
				t.Errorf("no answer: %v", err)
			case name == "more files than it says":
				// It is none of the server's business.
			case a.Error == nil:
				t.Errorf("answered %+v", a)
			case test.is == nil && !errors.As(a.Error.Err(), &config), test.is != nil && !errors.Is(a.Error.Err(), test.is):
				t.Errorf("answered %v", a.Error.Err())
			}
			c.Close()
			h.conn.Close()
			<-h.done
			testhost.Eventually(t, "the end of its descriptors", func() bool { return openFiles() <= before })
		})
	}
	w.serves(t)
}

func TestControlsThatAreNone(t *testing.T) {
	w := newWorld(t)
	box(t, w.client(t, 0), "box")
	hang := about("start", "box", `{"command":{"args":["hang"]}}`)
	for name, bytes := range map[string]string{
		"no JSON":     frame(0, "x"),
		"a long one":  frame(0, strings.Repeat(" ", maxControl+1)),
		"zeros":       strings.Repeat("\x00", 4096),
		"descriptors": frame(1, `{"tell":true}`),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostileClient(t, w, 0)
			h.hello()
			c := h.call(frame(0, hang) + bytes)
			if a, err := answer(t, c); err == nil && a.Error == nil {
				t.Errorf("answered %+v", a)
			}
		})
	}
	t.Run("signals of every number", func(t *testing.T) {
		h := newHostileClient(t, w, 0)
		h.hello()
		c := h.call(frame(0, hang) + frame(0, `{"signal":-5}`) + frame(0, `{"signal":100000}`) + frame(0, `{"signal":9}`))
		if a, err := answer(t, c); err != nil || !strings.Contains(string(a.Value), `"result":`) {
			t.Errorf("%+v, %v", a, err)
		}
	})
	t.Run("more than anybody needs", func(t *testing.T) {
		h := newHostileClient(t, w, 0)
		h.hello()
		c := h.call(frame(0, about("start", "box", `{"command":{"args":["stopped"]}}`)) +
			strings.Repeat(frame(0, `{"signal":15}`), 2*maxPending))
		if _, err := answer(t, c); err != nil {
			t.Logf("given up: %v", err)
		}
		testhost.Eventually(t, "the end of the call", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.calls == 0 })
	})
	w.serves(t)
}

// TestThousandsOfHalfOpenCalls has a peer open calls and say nothing: others are
// served, and it is told that it has too many.
func TestThousandsOfHalfOpenCalls(t *testing.T) {
	w := newWorld(t, Rule{User: "1001", Calls: 50})
	before := openFiles()
	h := newHostileClient(t, w, 1001)
	h.hello()
	refusals := 0
	for range 2000 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.send(frame(1, ""), pair[1])
		unix.Close(pair[1])
		if refusals < 100 {
			t.Cleanup(func() { unix.Close(pair[0]) })
		} else {
			unix.Close(pair[0])
		}
		refusals++
	}
	w.serves(t)
	last := h.call(frame(0, ask("list", "{}")))
	if a, err := answer(t, last); err != nil || a.Error == nil || !errors.Is(a.Error.Err(), fault.ErrRefused) {
		t.Errorf("one more: %+v, %v", a, err)
	}
	// The server holds one descriptor for each call at most, once those that it refused are over.
	testhost.Eventually(t, fmt.Sprintf("not many more descriptors than %d are open", before), func() bool { return openFiles() <= before+50+100+10 })
	h.conn.Close()
	<-h.done
	w.serves(t)
}

// TestADescriptorBomb sends more descriptors than the peer may have.
func TestADescriptorBomb(t *testing.T) {
	w := newWorld(t, Rule{User: "1001", Descriptors: 20})
	box(t, w.client(t, 1001), "box")
	h := newHostileClient(t, w, 1001)
	h.hello()
	// Its connections are two; a call is one, and the files that it keeps.
	h.call(frame(3, ask("events", "{}")), testhost.OpenNull(t, 3)...)
	testhost.Eventually(t, "the first call", func() bool { return w.of1001().descriptors == 6 })
	c := h.call(frame(14, about("start", "box", `{"command":{"args":["true"]}}`)), testhost.OpenNull(t, 14)...)
	if a, err := answer(t, c); err != nil || a.Error == nil || !errors.Is(a.Error.Err(), fault.ErrRefused) {
		t.Errorf("%+v, %v", a, err)
	}
	w.serves(t)
}

// TestDescriptorsOfHalfARequestCount sends descriptors with the beginnings of requests. A long
// request also waits for its place.
func TestDescriptorsOfHalfARequestCount(t *testing.T) {
	for name, length := range map[string]int{"short": 1000, "long": 2 * smallRequest} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Rule{User: "1001", Descriptors: 40})
			h := newHostileClient(t, w, 1001)
			h.hello()
			header := frame(8, strings.Repeat(" ", length))[:headerSize]
			before := openFiles()
			for range 8 {
				h.call(header, testhost.OpenNull(t, 8)...)
			}
			// Three calls at least have their descriptors, and all others are refused.
			testhost.Eventually(t, "the count of the descriptors", func() bool {
				return w.of1001().descriptors >= 3*9 && openFiles() <= before+8+8*8+40
			})
			w.serves(t)
		})
	}
}

// headerSize is the size of a frame's header.
const headerSize = 4

// TestLongRequestsWaitForEachOther has a peer send long requests and never end
// them; its short ones go on.
func TestLongRequestsWaitForEachOther(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"})
	h := newHostileClient(t, w, 1001)
	h.hello()
	for range 3 * maxLong {
		h.call("\x00\x40\x00\x00" + strings.Repeat(" ", 100_000))
	}
	if a, err := answer(t, h.call(frame(0, ask("list", "{}")))); err != nil || a.Error != nil {
		t.Errorf("%+v, %v", a, err)
	}
	w.serves(t)
}

// A value of three bytes can take a hundred of the launcher's memory, once it is decoded.
func TestRequestsAreBounded(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"})
	box(t, w.client(t, 1001), "box")
	for name, body := range map[string]string{
		"values": about("applied", "box", `{"stamps":[{}`+strings.Repeat(",{}", protocol.MaxValues)+`]}`),
		"bytes":  ask("list", "{}") + strings.Repeat(" ", protocol.MaxRequest),
	} {
		h := newHostileClient(t, w, 1001)
		h.hello()
		c := h.call("")
		ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
		defer cancel()
		sent := make(chan error, 1)
		go func() { sent <- c.Send(ctx, []byte(body)) }()
		a, err := answer(t, c)
		var config *fault.ConfigError
		if err != nil || a.Error == nil || !errors.As(a.Error.Err(), &config) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		c.Close()
		<-sent
		h.conn.Close()
		<-h.done
	}
	w.serves(t)
}

// Not even an error brings back all that was sent.
func TestErrorsAreBounded(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"})
	h := newHostileClient(t, w, 1001)
	h.hello()
	long := strings.Repeat("x", 50_000)
	for _, body := range []string{
		about(long, "box", "{}"), ask("list", `{"`+long+`":1}`), ask("create", `{"create":{"config":{"workspace":"/`+long+`"}}}`),
		ask("create", `{"create":{"name":"`+long+`","config":{}}}`),
		ask("create", `{"create":{"config":{"network":"`+long+`"}}}`),
	} {
		a, err := answer(t, h.call(frame(0, body)))
		if err != nil || a.Error == nil {
			t.Errorf("%.20s: %+v, %v", body, a, err)
			continue
		}
		if text := a.Error.Err().Error(); len(text) > 17<<10 {
			t.Errorf("%.20s: an error of %d bytes", body, len(text))
		}
	}
}

// FuzzServer sends any bytes on a trunk, and on a call of it, with descriptors
// beside them.
func FuzzServer(f *testing.F) {
	hello := []byte(frame(0, fmt.Sprintf(`{"protocol":%d}`, protocol.Protocol)))
	for _, request := range []string{
		ask("create", `{"create":{"name":"b","config":{"workspace":"/w","binds":[{"source":"/x","target":"/y","writable":true}]}},"paths":["/w","/x"]}`),
		about("start", "box", `{"stdio":3,"command":{"args":["echo","x"],"env":{"A":"b"},"terminal":{"rows":1,"columns":2}}}`),
		about("start", "box", `{"command":{"raw":{"args":["aGFuZw=="]},"detached":true}}`),
		about("start", "box", `{"stdio":3,"command":{"env":{"A":"b"}}}`),
		about("attach", "box", `"e1"`), ask("events", "{}"), ask("list", "{}"), about("remove", "box", `"0001-01-01T00:00:00Z"`),
		about("update", "box", `{"memory":"1g","cpus":2}`),
		about("workspace", "box", `{"workspace":"/tmp","paths":["/tmp"]}`),
	} {
		f.Add(hello, []byte(frame(2, request)+frame(0, `{"tell":true,"signal":9,"wait":true,"keep":true}`)), uint8(2), true)
	}
	f.Add([]byte("\x00\x00\x00\x05hello"), []byte("\x01\xff\xff\xff"), uint8(250), false)
	f.Fuzz(func(t *testing.T, trunk, call []byte, files uint8, root bool) {
		before := openFiles()
		w := newWorld(t, Rule{User: "1001", Workspaces: []string{"/"}})
		if _, err := w.core.Create(t.Context(), protocol.Create{Name: "box"}, Sources{UID: 1001}); err != nil {
			t.Fatal(err)
		}
		uid := uint32(1001)
		if root {
			uid = 0
		}
		h := newHostileClient(t, w, uid)
		if len(trunk) > 0 {
			h.send(string(trunk))
		}
		if len(call) > 0 {
			h.call(string(call), testhost.OpenNull(t, int(files)%8)...)
		}
		// What is opened has ended once the connection has.
		if err := h.conn.CloseWrite(); err != nil {
			t.Logf("close: %v", err)
		}
		h.conn.Close()
		<-h.done
		w.serves(t)
		if strings.Contains(w.log.String(), "has panicked") {
			t.Error(w.log)
		}
		testhost.Eventually(t, "the end of its descriptors", func() bool { return openFiles() <= before+int(files)%8+1 })
	})
}
