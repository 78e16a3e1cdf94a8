package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/capture"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestOnlyAllowedNamesAreReached(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"good.example"}, Deny: []string{"bad.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"other.example", "bad.example"} {
		if err := s.fetch(name); !errors.Is(err, errNoName) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good, err := s.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.get(good, "bad.example", "/"); err == nil {
		t.Error("a request for another host is allowed")
	}
	slow, _, err := s.get(good, "good.example", "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()

	box.Allow = []string{"other.example"}
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := readNow(t, slow); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection goes on: %v", err)
	}
	if err := s.fetch("good.example"); !errors.Is(err, errNoName) {
		t.Errorf("the name that is not allowed any more: %v", err)
	}
	if err := s.fetch("other.example"); err != nil {
		t.Error(err)
	}
	if got, want := o.arrivals(), []string{"good.example " + goodAddress + ":80", "other.example " + otherAddress + ":80"}; !slices.Equal(got, want) {
		t.Errorf("outside: %q; want %q", got, want)
	}
	wantEvents(t, e, "box", "good.example allowed", "other.example denied", "bad.example denied", "good.example denied",
		"good.example allowed", "good.example denied", "other.example allowed")
	counts, err := e.Counts(t.Context(), "box")
	if err != nil || counts.Requests != 4 || counts.Refused != 4 || counts.Received == 0 {
		t.Errorf("%+v, %v", counts, err)
	}

	if err := e.Dismiss(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	for _, f := range append(append(s.sockets.Streams, s.sockets.DNSPackets...), s.sockets.DNSStreams...) {
		f.Close()
	}
	if _, err := s.dial("tcp", "93.184.216.34:80"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the sockets are still open: %v", err)
	}
	if has, err := e.Has(t.Context(), "box"); has || err != nil {
		t.Errorf("the sandbox is there: %v, %v", has, err)
	}
	if err := e.Change(t.Context(), box); !errors.Is(err, ErrUnknown) {
		t.Errorf("change: %v", err)
	}
}

// wantEvents waits for events, in any order: connections end later than their requests.
func wantEvents(t *testing.T, e Egress, key string, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	slices.Sort(want)
	var got []string
	for event, err := range e.Events(ctx, key, true) {
		if err != nil {
			t.Fatalf("%v; events until then: %q", err, got)
		}
		got = append(got, event.Name+" "+event.Decision)
		slices.Sort(got)
		if slices.Equal(got, want) {
			return
		}
		if len(got) >= len(want) {
			t.Fatalf("events: %q; want %q", got, want)
		}
	}
}

// The bounds of a sandbox hold for its whole life.
func TestRequestsAndBytesAreBounded(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"good.example"}, Requests: 3}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if i == 2 {
			replaceWorker(t, e)
		}
		if err := s.fetch("good.example"); (err == nil) != (i < 3) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	box.Requests = 0
	eventually(t, "the bytes are counted", func() bool {
		counts, err := e.Counts(t.Context(), "box")
		box.Bytes = counts.Sent + counts.Received
		return err == nil && counts.Received > 0
	})
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("good.example"); err == nil {
		t.Error("the bytes are used up")
	}
	box.Bytes += 1000
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
}

// A fast connection passes the bound by no more than one copy.
func TestTheBoundOfBytesHoldsForFastConnections(t *testing.T) {
	const bound, slack = 1 << 20, 256 << 10
	newOutside(t)
	e := newEgress(t)
	for key, target := range map[string]string{"captured": "/endless", "proxy": "http://good.example/endless"} {
		s, box := newSandbox(t), Box{Key: key, Allow: []string{"good.example"}, Bytes: bound}
		if err := e.Admit(t.Context(), box, s.sockets); err != nil {
			t.Fatal(err)
		}
		a, err := s.lookUp("good.example")
		if err != nil {
			t.Fatal(err)
		}
		to := spec.ProxyServer
		if key == "captured" {
			to = netip.AddrPortFrom(a, 80).String()
		}
		c, err := s.dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: good.example\r\n\r\n", target)
		n, err := io.Copy(io.Discard, c)
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || n > bound+slack {
			t.Errorf("%s: %d bytes arrived, and then: %v", key, n, err)
		}
		var used uint64
		eventually(t, "the bytes are counted", func() bool {
			counts, err := e.Counts(t.Context(), key)
			used = counts.Sent + counts.Received
			return err == nil && used >= bound
		})
		if used > bound+slack {
			t.Errorf("%s: %d bytes are counted", key, used)
		}
	}
}

// replaceWorker kills the worker, and waits for the next.
func replaceWorker(t *testing.T, e Egress) {
	t.Helper()
	old := workers(t, e)
	if len(old) != 1 {
		t.Fatalf("%d workers", len(old))
	}
	kill(t, old[0])
	eventually(t, "another worker", func() bool {
		now := workers(t, e)
		return len(now) == 1 && now[0] != old[0]
	})
}

func TestObserveAllowsEachNameThatNoRuleDenies(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Deny: []string{"bad.example"}, Observe: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
	if err := s.fetch("bad.example"); !errors.Is(err, errNoName) {
		t.Errorf("the denied name: %v", err)
	}
	if a, err := s.lookUp("10.0.0.1"); !errors.Is(err, errNoName) {
		t.Errorf("a name that is an address: %v, %v", a, err)
	}
}

func TestTheProcessesEndWithoutSandboxes(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	for range 2 {
		if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, s.sockets); err != nil {
			t.Fatal(err)
		}
		if err := s.fetch("good.example"); err != nil {
			t.Fatal(err)
		}
		all := append(parents(t, e), workers(t, e)...)
		time.Sleep(e.idle + 300*time.Millisecond)
		if err := s.fetch("good.example"); err != nil {
			t.Errorf("the sandbox is not served any more: %v", err)
		}
		if err := e.Dismiss(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		for _, id := range all {
			eventually(t, "the end of the processes", func() bool { return !id.Lives() })
		}
	}
}

// A sandbox that asks for many names tells a few of them.
func TestAFloodOfEventsIsBounded(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box"}, s.sockets); err != nil {
		t.Fatal(err)
	}
	const count = 1000
	start := time.Now()
	for i := range count {
		if _, err := s.lookUp(fmt.Sprintf("n%d.example", i)); !errors.Is(err, errNoName) {
			t.Fatal(err)
		}
	}
	most := 200 + 50*int(time.Since(start)/time.Second+1) // those at once, and those of each second
	var counts Counts
	eventually(t, "all are counted", func() (is bool) {
		var err error
		counts, err = e.Counts(t.Context(), "box")
		return err == nil && counts.Refused == count
	})
	told := 0
	for _, err := range e.Events(t.Context(), "box", false) {
		if told++; err != nil {
			t.Fatal(err)
		}
	}
	if told < 200 || told > most || told+int(counts.Dropped) != count {
		t.Errorf("%d events are told, at most %d may be, and %d are dropped", told, most, counts.Dropped)
	}
}

// A file of the resolver is replaced: the addresses are those of the new file.
func TestTheResolverReadsNewFiles(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Fatal(err)
	}
	replaceHosts := func(text string) {
		if err := errors.Join(os.WriteFile("/etc/hosts.new", []byte(text), 0o644), os.Rename("/etc/hosts.new", "/etc/hosts")); err != nil {
			t.Fatal(err)
		}
	}
	replaceHosts(otherAddress + " good.example\n")
	defer replaceHosts(hosts)
	eventually(t, "the new address", func() bool {
		_ = s.fetch("good.example")
		return slices.Contains(o.arrivals(), "good.example "+otherAddress+":80")
	})
}

// A sandbox with many silent connections takes nothing from another.
func TestManyConnectionsTakeNothingFromAnotherSandbox(t *testing.T) {
	newOutside(t)
	e, greedy, s := newEgress(t), newSandbox(t), newSandbox(t)
	for key, box := range map[string]sandbox{"greedy": greedy, "box": s} {
		if err := e.Admit(t.Context(), Box{Key: key, Allow: []string{"good.example"}}, box.sockets); err != nil {
			t.Fatal(err)
		}
	}
	a, err := greedy.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	const count = link.MaxConnections + 10
	var open []net.Conn
	resets := 0
	for range count {
		c, err := greedy.dial("tcp", netip.AddrPortFrom(a, 80).String())
		if errors.Is(err, unix.ECONNRESET) && len(open) >= link.MaxConnections { // the reset can come before the end of connect(2)
			resets++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	eventually(t, "the last connections are reset", func() bool {
		for _, c := range open {
			_ = c.SetDeadline(time.Now().Add(time.Microsecond))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, unix.ECONNRESET) { // told once
				resets++
			}
		}
		return resets >= count-link.MaxConnections
	})
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
}

// A sandbox is admitted at any moment, also while the processes end.
func TestSandboxesComeWhileTheProcessesEnd(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	e, s := newEgress(t), newSandbox(t)
	e.idle = time.Millisecond
	for i := range 40 {
		if err := e.Admit(t.Context(), Box{Key: "box"}, s.sockets); err != nil {
			t.Fatal(err)
		}
		if has, err := e.Has(t.Context(), "box"); !has || err != nil {
			t.Fatalf("round %d: %v, %v", i, has, err)
		}
		if err := e.Dismiss(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i%8) * time.Millisecond / 2)
	}
}

func TestTwoRootsAreServedBesideEachOther(t *testing.T) {
	newOutside(t)
	first, second := newEgress(t), newEgress(t)
	a, b := newSandbox(t), newSandbox(t)
	if err := first.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, a.sockets); err != nil {
		t.Fatal(err)
	}
	if err := second.Admit(t.Context(), Box{Key: "box", Allow: []string{"other.example"}}, b.sockets); err != nil {
		t.Fatal(err)
	}
	for _, id := range parents(t, first) {
		kill(t, id)
	}
	if err := b.fetch("other.example"); err != nil {
		t.Error(err)
	}
	if err := b.fetch("good.example"); !errors.Is(err, errNoName) {
		t.Errorf("the name of the other root: %v", err)
	}
}

// Names get addresses, and connections are served, while nothing can be written.
func TestAFullDiskStopsNothing(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := os.Mkdir(e.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", e.Dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		endAll(t, e)
		if err := unix.Unmount(e.Dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := e.Admit(t.Context(), Box{Key: "first"}, newSandbox(t).sockets); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(e.Dir, "filler")
	shell(t, "head -c 100000 /dev/zero >"+filler+" 2>/dev/null || true")
	box := Box{Key: "box", Allow: []string{"good.example", "other.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	first, err := s.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
	replaceWorker(t, e)
	if again, err := s.lookUp("good.example"); err != nil || again != first {
		t.Errorf("%v, %v; the address was %v", again, err, first)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.fetch("other.example"), s.fetch("other.example")); err != nil {
		t.Error(err)
	}
	eventually(t, "both names are on disk", func() bool {
		text, _ := os.ReadFile(filepath.Join(e.boxDir("box"), namesName))
		return string(text) == "good.example\nother.example\n"
	})
}

func TestWrongBoxesAreRefused(t *testing.T) {
	e := Egress{Dir: filepath.Join(t.TempDir(), "x")}
	for _, b := range []Box{{}, {Key: "a/b"}, {Key: ".."}, {Key: "a", Allow: []string{"*"}}, {Key: "a", Deny: []string{"x y z"}}} {
		if err := e.Admit(t.Context(), b, &capture.Listeners{}); err == nil {
			t.Errorf("%+v is admitted", b)
		}
		if err := e.Change(t.Context(), b); err == nil || errors.Is(err, ErrUnknown) {
			t.Errorf("%+v: %v", b, err)
		}
	}
	if err := e.Admit(t.Context(), Box{Key: "a"}, &capture.Listeners{}); err == nil {
		t.Error("a sandbox without sockets is admitted")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, role := range []link.Role{link.Streams, link.DNSPackets, link.DNSStreams, "x"} {
		if err := (request{Op: opAdmit, Key: "a", Box: &Box{Key: "a"}, Roles: []link.Role{role}}).check([]*os.File{null}); err == nil {
			t.Errorf("a file is taken for one of %s", role)
		}
	}
	if _, err := os.Stat(e.Dir); !os.IsNotExist(err) {
		t.Errorf("something was made: %v", err)
	}
}
