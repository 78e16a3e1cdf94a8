package router

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const mebibyte = 1 << 20

// Each direction takes as long as the rate says. A sandbox without a rate is faster.
func TestARateBoundsEachDirection(t *testing.T) {
	w := newWorld(t)
	sent := exchangeBulk(t, w.internet, internetIPv4+":80", mebibyte)
	slow := w.attach(t, Member{Link: "s-slow", Number: 1, Rate: mebibyte})
	fast := w.attach(t, Member{Link: "s-fast", Number: 2})
	for _, s := range []struct {
		sandbox *os.File
		least   time.Duration
	}{{slow, 600 * time.Millisecond}, {fast, 0}} {
		for name, transfer := range map[string]func(){
			"download": func() { download(t, s.sandbox) },
			"upload":   func() { upload(t, s.sandbox, mebibyte); <-sent },
		} {
			began := time.Now()
			transfer()
			if took := time.Since(began); took < s.least || took > 20*time.Second {
				t.Errorf("%s of 1 MiB: %v; want at least %v", name, took, s.least)
			}
		}
	}
}

// The rates are the bounds of limits.network_rate.
func TestTheFastestAndTheSlowestRatePassPackets(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	for i, rate := range []uint64{64 << 10, 128 << 30} {
		sandbox := w.attach(t, Member{Link: fmt.Sprintf("s-%d", i), Number: uint32(i), Rate: rate})
		wantAnswer(t, sandbox, internetIPv4+":80", hostIPv4)
	}
}

// Beyond the quota nothing arrives at either end, and programs learn so at once. Rules stay as they
// are, and other sandboxes go on.
func TestAQuotaCutsBothDirections(t *testing.T) {
	w := newWorld(t)
	sent := exchangeBulk(t, w.internet, internetIPv4+":80", 64*mebibyte)
	serve(t, w.internet, internetIPv4+":81")
	serve(t, w.internet, "[::]:82")
	nameServer(t, w.internet)
	other := w.attach(t, Member{Link: "s-other", Number: 1})
	before := w.rules(t)
	const quota = mebibyte
	receiver := w.attach(t, Member{Link: "s-receiver", Number: 2, Quota: quota})
	sender := w.attach(t, Member{Link: "s-sender", Number: 3, Quota: quota})
	if after := w.rules(t); after != before {
		t.Errorf("%d rules became %d", before, after)
	}
	if n := download(t, receiver); n > quota || n < quota/2 {
		t.Errorf("%d bytes came in", n)
	}
	upload(t, sender, 64*mebibyte)
	select {
	case n := <-sent:
		if n > quota || n < quota/2 {
			t.Errorf("%d bytes came out", n)
		}
	case <-time.After(patience):
		t.Error("the server still waits")
	}
	for _, sandbox := range []*os.File{receiver, sender} {
		wantRefusal(t, sandbox, internetIPv4+":81")
		wantRefusal(t, sandbox, "["+internetIPv6+"]:82")
		if got, err := lookup(sandbox, "udp", "some.example"); err == nil {
			t.Errorf("a query got %v", got)
		}
	}
	wantAnswer(t, other, internetIPv4+":81", hostIPv4)
}

// A program that waits for a packet gets an error in its place.
func TestAWaitingReaderLearnsThatTheQuotaIsUsedUp(t *testing.T) {
	w := newWorld(t)
	l := netnstest.Listen(t, w.internet, "0.0.0.0:80")
	sandbox := w.attach(t, Member{Link: "s-one", Number: 1, Quota: 5000})
	within := dial(t, sandbox, "tcp", internetIPv4+":80")
	outside := accept(t, l)
	time.Sleep(100 * time.Millisecond) // no acknowledgement is on its way
	if _, err := outside.Write(make([]byte, 6000)); err != nil {
		t.Fatal(err)
	}
	if err := within.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, within); n > 5000 || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// A used quota stays used when the sandbox is connected again, also to a new router. It goes with
// the sandbox.
func TestAUsedQuotaStaysUsed(t *testing.T) {
	w := newWorld(t)
	exchangeBulk(t, w.internet, internetIPv4+":80", 64*mebibyte)
	m := Member{Link: "s-one", Number: 1, Quota: mebibyte}
	sandbox := w.attach(t, m)
	w.attach(t, Member{Link: "s-two", Number: 2}) // the router and the silent link stay
	n := download(t, sandbox)
	before := w.traffic(t, m.Link)
	if before.Charged != mebibyte || before.Received < n || before.Received > 32*mebibyte || before.Sent == 0 {
		t.Errorf("%d bytes came in, %+v", n, before)
	}
	for range 2 {
		w.detach(t, sandbox, m.Link)
		got := w.traffic(t, m.Link)
		if got.Charged != before.Charged || got.Received < before.Received {
			t.Errorf("without a link: %+v; before %+v", got, before)
		}
		w.detach(t, sandbox, m.Link) // as after a killed process
		if again := w.traffic(t, m.Link); again != got {
			t.Errorf("%+v became %+v", got, again)
		}
		w.connect(t, sandbox, m)
		wantRefusal(t, sandbox, internetIPv4+":80")
		got = w.traffic(t, m.Link)
		if got.Charged != before.Charged || got.Sent <= before.Sent || got.Received > before.Received+mebibyte/2 {
			t.Errorf("connected again: %+v; before %+v", got, before)
		}
	}
	w.detach(t, nil, m.Link)
	if w.router.HasNote(m.Link) {
		t.Error("the note of a sandbox that is gone stays")
	}
}

// A disconnect that is killed before it notes the traffic loses no used quota, also if that sandbox was the last one.
func TestAQuotaOutlivesAKilledDisconnect(t *testing.T) {
	w := newWorld(t)
	m := Member{Link: "s-one", Number: 1, Quota: mebibyte}
	sandbox := w.attach(t, m)
	if got, err := exchange(sandbox, "tcp", internetIPv4+":80"); err == nil {
		t.Fatalf("%q", got)
	}
	before := w.traffic(t, m.Link)
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	netnstest.Shell(t, namespace, "nft flush set inet "+tableName+" members4 && nft flush set inet "+tableName+" members6")
	namespace.Close()
	isLive := func(string) (bool, error) { return true, nil }
	if err := w.doOnHost(func() error { return w.router.Prune(t.Context(), isLive) }); err != nil {
		t.Fatal(err)
	}
	w.detach(t, sandbox, m.Link)
	if got := w.traffic(t, m.Link); before.Charged == 0 || got.Charged < before.Charged {
		t.Errorf("%+v became %+v", before, got)
	}
}

func TestPruneRemovesQuotasAndNotes(t *testing.T) {
	w := newWorld(t)
	gone, noted, stays := Member{Link: "s-gone", Number: 1, Quota: 1}, Member{Link: "s-noted", Number: 2, Quota: 1}, Member{Link: "s-stays", Number: 3, Quota: 1}
	w.attach(t, gone)
	w.attach(t, stays)
	w.detach(t, w.attach(t, noted), noted.Link)
	isLive := func(link string) (bool, error) { return link == stays.Link, nil }
	if err := w.doOnHost(func() error { return w.router.Prune(t.Context(), isLive) }); err != nil {
		t.Fatal(err)
	}
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	set := netnstest.Shell(t, namespace, "nft list set inet "+tableName+" "+quotas().Name)
	if strings.Contains(set, gone.Link) || !strings.Contains(set, stays.Link) {
		t.Errorf("quotas: %s", set)
	}
	if files := netnstest.Shell(t, w.host, "ls "+w.router.Dir); strings.Contains(files, noted.Link) {
		t.Errorf("files: %s", files)
	}
}

// exchangeBulk sends so many bytes to each client that says "d". It counts those of each other
// client.
func exchangeBulk(t *testing.T, namespace *os.File, address string, bytes int64) <-chan int64 {
	t.Helper()
	counts := make(chan int64, 10)
	l := netnstest.Listen(t, namespace, address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				word := make([]byte, 1)
				if _, err := io.ReadFull(c, word); err != nil {
					return
				}
				if word[0] == 'd' {
					_, _ = io.Copy(c, io.LimitReader(zeros{}, bytes))
					return
				}
				n, _ := io.Copy(io.Discard, impatientConn{c})
				counts <- n
			}()
		}
	}()
	return counts
}

// An impatientConn gives up a read after a second without a byte: a client that was reset does not tell
// the server.
type impatientConn struct{ net.Conn }

func (a impatientConn) Read(b []byte) (int, error) {
	if err := a.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	return a.Conn.Read(b)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// download returns the number of bytes that came until the end of the connection.
func download(t *testing.T, sandbox *os.File) int64 {
	t.Helper()
	c := bulkClient(t, sandbox, "d")
	n, err := io.Copy(io.Discard, c)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("after %d bytes the client still waits", n)
	}
	return n
}

func upload(t *testing.T, sandbox *os.File, bytes int64) {
	t.Helper()
	c := bulkClient(t, sandbox, "u")
	if _, err := io.Copy(c, io.LimitReader(zeros{}, bytes)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the client still waits")
	}
	c.Close()
}

func bulkClient(t *testing.T, sandbox *os.File, word string) net.Conn {
	t.Helper()
	c := dial(t, sandbox, "tcp", internetIPv4+":80")
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(word)); err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) traffic(t *testing.T, link string) (traffic spec.Traffic) {
	t.Helper()
	err := w.doOnHost(func() (err error) {
		traffic, err = w.router.Traffic(t.Context(), link)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return traffic
}

// rules is the number of all that the router's table has, beside elements. nft(8) 1.0.6 can crash on the
// rule that turns a packet into a reset.
func (w *world) rules(t *testing.T) int {
	t.Helper()
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	f, err := openFirewall(namespace, tableName)
	if err != nil {
		t.Fatal(err)
	}
	chains, err := f.conn.ListChains()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := f.rulesOf(chains)
	if err != nil {
		t.Fatal(err)
	}
	sets, err := f.conn.GetSets(f.table)
	if err != nil {
		t.Fatal(err)
	}
	count := len(chains) + len(sets)
	for _, list := range rules {
		count += len(list)
	}
	return count
}
