package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Names that the file of hosts has. The far end has a server at each address and port.
const (
	nearName, sisterName, strangeName = "near.test", "sister.test", "strange.test"
	strangeServer                     = "9.9.9.11"
)

// A farWorld is a host with names, and a far end that records its requests.
type farWorld struct {
	*networkWorld
	far *farEnd
}

// A farEnd is the server outside.
type farEnd struct {
	mu      sync.Mutex
	arrived map[string]int
	ended   chan struct{}
}

func newFarWorld(t *testing.T) *farWorld {
	t.Helper()
	w := &farWorld{newNetworkWorld(t), &farEnd{arrived: map[string]int{}, ended: make(chan struct{})}}
	netnstest.Shell(t, w.outside, "ip address add "+strangeServer+"/24 dev lan")
	hosts := filepath.Join(t.TempDir(), "hosts")
	writeFile(t, hosts, fmt.Sprintf("127.0.0.1 localhost\n%s %s %s\n%s %s\n", worldServer, nearName, sisterName, strangeServer, strangeName))
	if err := unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc/hosts", 0); err != nil {
			t.Error(err)
		}
	})
	for _, address := range []string{worldServer + ":80", worldServer + ":8080", strangeServer + ":80"} {
		w.far.listen(t, w.outside, address)
	}
	t.Cleanup(func() { close(w.far.ended) })
	t.Cleanup(func() { w.awaitEgressEnd(t) })
	t.Cleanup(func() {
		if exists(filepath.Join(w.root, "@sandboxes", "box")) { // the test has failed
			w.on(t, "down", "box")
		}
	})
	return w
}

// listen serves an address of a network namespace until the test ends.
func (f *farEnd) listen(t *testing.T, namespace *os.File, address string) {
	t.Helper()
	l := netnstest.Listen(t, namespace, address)
	server, done := &http.Server{Handler: f}, make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until its end
	}()
	t.Cleanup(func() { server.Close(); <-done })
}

// ServeHTTP answers with the host of the request. The answers to /slow and /endless never end by themselves, and
// the one to /large has a mebibyte.
func (f *farEnd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.arrived[r.Host+" at "+r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()]++
	f.mu.Unlock()
	switch r.URL.Path {
	case "/large":
		_, _ = w.Write(make([]byte, 1<<20)) // the client may have gone
	case "/endless":
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	case "/slow":
		fmt.Fprintln(w, "the beginning")
		_ = http.NewResponseController(w).Flush() // as above
		select {
		case <-r.Context().Done():
		case <-f.ended:
		}
	default:
		fmt.Fprintln(w, r.Host)
	}
}

// seen lists the hosts of the requests, with the addresses at which they came.
func (f *farEnd) seen() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for host := range f.arrived {
		all = append(all, host)
	}
	slices.Sort(all)
	return all
}

// egressProcesses are the processes of a kind of the proxied network: "egress" is the parent, and "egress-worker-confined"
// its worker.
func (s *sandboxes) egressProcesses(t *testing.T, kind string) (found []process.ID) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		line, err := os.ReadFile(path)
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 2 || args[1] != kind {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		if id, err := process.Of(pid); err == nil {
			found = append(found, id)
		}
	}
	return found
}

// Kinds of processes.
const parentOfEgress, workerOfEgress = "egress", "egress-worker-confined"

// awaitEgressEnd waits until the processes of the proxied network have ended by themselves.
func (s *sandboxes) awaitEgressEnd(t *testing.T) {
	t.Helper()
	eventually(t, "the end of the proxied network", func() bool {
		return len(s.egressProcesses(t, parentOfEgress))+len(s.egressProcesses(t, workerOfEgress)) == 0
	})
}

// fetchBy is a command that prints the answer to a request.
func fetchBy(url string) []string {
	return []string{"--", "curl", "--noproxy", "*", "-sS", "--max-time", "20", url}
}

// gets holds that box gets the answer to a request.
func (w *farWorld) gets(t *testing.T, when, url, want string) {
	t.Helper()
	if got := w.on(t, append([]string{"exec", "box"}, fetchBy(url)...)...); got.code != 0 || got.stdout != want {
		t.Errorf("%s: %+v", when, got)
	}
}

// isRefused holds that box cannot make the request, and learns that at once.
func (w *farWorld) isRefused(t *testing.T, when, url string) {
	t.Helper()
	got := w.on(t, append([]string{"exec", "box"}, append(fetchBy(url), "--fail")...)...)
	if got.code == 0 || got.code == 28 || got.code == 125 {
		t.Errorf("%s: %+v", when, got)
	}
}
