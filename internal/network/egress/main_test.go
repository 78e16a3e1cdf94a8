package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/gateway"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/capture"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The tests run in a world of their own: a network that leads to one outside, and an /etc with names for
// it.
const (
	worldVariable = "EGRESS_TEST_WORLD"
	// starterVariable makes this program a starter of the processes: see starterMain.
	starterVariable = "EGRESS_TEST_STARTER"
	goodAddress     = "93.184.216.34"
	otherAddress    = "93.184.216.35"
	hosts           = goodAddress + " good.example also.example\n" + otherAddress + " other.example bad.example\n"
)

func TestMain(m *testing.M) {
	TakeOver()
	gateway.TakeOver()
	if dir := os.Getenv(starterVariable); dir != "" {
		os.Exit(starterMain(dir))
	}
	if os.Geteuid() == 0 && os.Getenv(worldVariable) == "" {
		os.Exit(enterWorld())
	}
	os.Exit(testhost.RunServing(m))
}

// enterWorld runs the tests again, in other namespaces.
func enterWorld() int {
	dir, err := os.MkdirTemp("", "world")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the worker reads there
	}
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"hosts": hosts, "resolv.conf": "nameserver 127.0.0.1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			panic(err)
		}
	}
	const setUp = `ip link set lo up && mount --bind "$0" /etc && exec "$@"`
	args := append([]string{"--mount", "--net", "sh", "-c", setUp, dir}, os.Args...)
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), worldVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		if _, isExit := errors.AsType[*exec.ExitError](err); !isExit {
			panic(err)
		}
	}
	return cmd.ProcessState.ExitCode()
}

// starterMain admits a box with the sockets that it has inherited, and ends.
func starterMain(dir string) int {
	var s capture.Listeners
	for i, to := range []*[]*os.File{&s.Streams, &s.DNSPackets, &s.DNSStreams} {
		*to = []*os.File{os.NewFile(uintptr(3+i), "socket")}
	}
	if err := (Egress{Dir: dir}).Admit(context.Background(), Box{Key: "box", Allow: []string{"good.example"}}, &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// patience is how long a test waits for what has to come.
const patience = 10 * time.Second

// An outerNetwork is the network outside of the host. It has a server at each address.
type outerNetwork struct {
	mu sync.Mutex
	// arrived are the hosts of the requests, with the address.
	arrived map[string]int
	// open are the connections that the other side has not ended.
	open atomic.Int32
}

func newOutside(t *testing.T) *outerNetwork {
	t.Helper()
	testhost.NeedRoot(t, "network namespaces are made")
	namespace := netnstest.New(t)
	netnstest.Shell(t, namespace, "ip link set lo up; ip address add "+goodAddress+"/32 dev lo; ip address add "+otherAddress+"/32 dev lo")
	shell(t, "ip link add inn type veth peer name out")
	t.Cleanup(func() { shell(t, "ip link delete inn 2>/dev/null || true") })
	move := exec.Command("ip", "link", "set", "out", "netns", "/proc/self/fd/3")
	move.ExtraFiles = []*os.File{namespace}
	if text, err := move.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	netnstest.Shell(t, namespace, "ip address add 10.77.0.2/24 dev out && ip link set out up")
	shell(t, "ip address add 10.77.0.1/24 dev inn && ip link set inn up && ip route replace default via 10.77.0.2")
	o := &outerNetwork{arrived: map[string]int{}}
	for _, address := range []string{goodAddress, otherAddress} {
		l := netnstest.Listen(t, namespace, address+":80")
		server := &http.Server{Handler: o, ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				o.open.Add(1)
			case http.StateClosed:
				o.open.Add(-1)
			}
		}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = server.Serve(l)
		}()
		t.Cleanup(func() { server.Close(); <-done })
	}
	return o
}

// ServeHTTP answers with the host. A request for /slow never ends by itself, and the answer for /endless neither.
func (o *outerNetwork) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.arrived[r.Host+" "+r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()]++
	o.mu.Unlock()
	fmt.Fprintf(w, "%s\n", r.Host)
	if r.URL.Path == "/slow" {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	for err := error(nil); r.URL.Path == "/endless" && err == nil; {
		_, err = w.Write(make([]byte, 1<<20))
	}
}

func (o *outerNetwork) arrivals() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []string
	for host := range o.arrived {
		all = append(all, host)
	}
	slices.Sort(all)
	return all
}

func shell(t *testing.T, line string) {
	t.Helper()
	if text, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, text)
	}
}

// A sandbox is a network namespace that captures.
type sandbox struct {
	namespace *os.File
	sockets   *capture.Listeners
}

func newSandbox(t *testing.T) sandbox {
	t.Helper()
	namespace := netnstest.New(t)
	l, err := capture.Open(namespace, []spec.PortRange{{First: 80, Last: 80}, {First: 3128, Last: 3128}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return sandbox{namespace, l}
}

func (s sandbox) dial(network, address string) (c net.Conn, err error) {
	err = netns.Do(s.namespace, func() (err error) {
		c, err = net.DialTimeout(network, address, patience)
		return err
	})
	return c, err
}

var errNoName = errors.New("the name does not exist")

// lookUp asks for the IPv4 address of a name.
func (s sandbox) lookUp(name string) (netip.Addr, error) {
	query, err := (&dnsmessage.Message{
		Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{
			Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
		}},
	}).Pack()
	if err != nil {
		return netip.Addr{}, err
	}
	c, err := s.dial("udp", "8.8.8.8:53")
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(query); err != nil {
		return netip.Addr{}, err
	}
	text := make([]byte, 1500)
	n, err := c.Read(text)
	if err != nil {
		return netip.Addr{}, err
	}
	var m dnsmessage.Message
	if err := m.Unpack(text[:n]); err != nil {
		return netip.Addr{}, err
	}
	if len(m.Answers) == 0 {
		return netip.Addr{}, errNoName
	}
	a, ok := m.Answers[0].Body.(*dnsmessage.AResource)
	if !ok {
		return netip.Addr{}, errors.New("the answer has no address")
	}
	return netip.AddrFrom4(a.A), nil
}

// get makes a request, and returns the connection with the first line of the body.
func (s sandbox) get(a netip.Addr, host, path string) (net.Conn, string, error) {
	c, err := s.dial("tcp", netip.AddrPortFrom(a, 80).String())
	if err != nil {
		return nil, "", err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host)
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		c.Close()
		return nil, "", err
	}
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if answer.StatusCode != http.StatusOK {
		c.Close()
		return nil, line, fmt.Errorf("status %d: %s", answer.StatusCode, line)
	}
	return c, line, err
}

// readNow is the error of a read that does not wait. A deadline would pass on a slow machine before the
// first look.
func readNow(t *testing.T, c net.Conn) (result error) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn() //nolint:forcetypeassert // of TCP
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		var n int
		if n, _, result = unix.Recvfrom(int(fd), make([]byte, 9), unix.MSG_DONTWAIT); n == 0 && result == nil {
			result = io.EOF
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// fetch looks a name up and makes a request.
func (s sandbox) fetch(name string) error {
	a, err := s.lookUp(name)
	if err != nil {
		return err
	}
	c, line, err := s.get(a, name, "/")
	if err != nil {
		return err
	}
	c.Close()
	if line != name+"\n" {
		return fmt.Errorf("the answer is %q", line)
	}
	return nil
}

func newEgress(t *testing.T) Egress {
	t.Helper()
	e := Egress{Dir: filepath.Join(t.TempDir(), "@egress"), idle: time.Second}
	t.Cleanup(func() { endAll(t, e) })
	return e
}

// endAll ends the processes of an Egress.
func endAll(t *testing.T, e Egress) {
	t.Helper()
	for _, id := range append(parents(t, e), workers(t, e)...) {
		if err := id.End(patience); err != nil {
			t.Error(err)
		}
	}
}

// parents are the parents of an Egress: one at most.
func parents(t *testing.T, e Egress) []process.ID {
	return find(t, func(args []string, _ int) bool { return len(args) > 2 && args[1] == parentKind && args[2] == e.Dir })
}

// workers are the workers of its parent.
func workers(t *testing.T, e Egress) []process.ID {
	above := parents(t, e)
	return find(t, func(args []string, parent int) bool {
		return len(args) > 2 && strings.HasPrefix(args[1], "egress-worker") &&
			slices.ContainsFunc(above, func(id process.ID) bool { return id.Pid == parent })
	})
}

func find(t *testing.T, matches func(args []string, parent int) bool) (found []process.ID) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		stat, err := process.StatOf(pid)
		if err != nil {
			continue
		}
		parent, _ := strconv.Atoi(stat[1])
		if id, err := process.Of(pid); err == nil && matches(strings.Split(string(text), "\x00"), parent) {
			found = append(found, id)
		}
	}
	return found
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func kill(t *testing.T, id process.ID) {
	t.Helper()
	if err := unix.Kill(id.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// clientHello is the begin of a TLS connection that asks for a name.
func clientHello(t *testing.T, name string) string {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		_ = tls.Client(client, &tls.Config{ServerName: name}).Handshake() // no server answers
	}()
	_ = server.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 16<<10)
	n, err := server.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}
