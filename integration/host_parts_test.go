package integration

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// The parts of hosts that are not as simple as that of newNetworkWorld. Each network is a namespace of its own, whose
// servers tell its name and the address of the client: so a test sees where a packet went and where it came from.
// By the device "wan" a host reaches the network "outside".

// A farNetwork is one network of a host.
type farNetwork struct {
	name      string
	namespace *os.File
}

// newHost is a networkWorld whose outside tells its name.
func newHost(t *testing.T) *networkWorld {
	t.Helper()
	w := newNetworkWorld(t)
	farNetwork{"outside", w.outside}.tell(t)
	return w
}

// tell starts the server of the network, at port 80 of all its addresses.
func (n farNetwork) tell(t *testing.T) {
	t.Helper()
	l := netnstest.Listen(t, n.namespace, ":80")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			client, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintln(c, n.name, client)
			c.Close()
		}
	}()
}

// count starts a server at port 81, which tells the number of bytes that it gets before a line "end".
func (n farNetwork) count(t *testing.T) {
	t.Helper()
	l := netnstest.Listen(t, n.namespace, ":81")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadString('\n')
			fmt.Fprintln(c, len(line))
			c.Close()
		}
	}()
}

// card gives the host a device, and a network behind it. The addresses have the length of their network.
func (w *networkWorld) card(t *testing.T, name string, host, far []string) farNetwork {
	t.Helper()
	n := farNetwork{name, netnstest.New(t)}
	netnstest.Shell(t, w.host, "ip link add "+name+" type veth peer name far && ip link set far netns /proc/self/fd/4", n.namespace)
	setUp(t, w.host, name, host...)
	setUp(t, n.namespace, "far", far...)
	w.carries(t, name)
	n.tell(t)
	return n
}

// bridge gives the host a bridge with one member: a namespace such as a container's.
func (w *networkWorld) bridge(t *testing.T, name string, host, far []string) farNetwork {
	t.Helper()
	n := farNetwork{name, netnstest.New(t)}
	netnstest.Shell(t, w.host, "ip link add "+name+" type bridge && ip link add "+name+"-port type veth peer name far && ip link set far netns /proc/self/fd/4 && ip link set "+
		name+"-port addrgenmode none master "+name+" up", n.namespace)
	setUp(t, w.host, name, host...)
	setUp(t, n.namespace, "far", far...)
	w.carries(t, name)
	n.tell(t)
	return n
}

// setUp brings a device up, with addresses that it has at once.
func setUp(t *testing.T, namespace *os.File, device string, addresses ...string) {
	t.Helper()
	lines := []string{"ip link set " + device + " addrgenmode none up"}
	for _, a := range addresses {
		line := "ip address add " + a + " dev " + device
		if strings.Contains(a, ":") {
			line += " nodad"
		}
		lines = append(lines, line)
	}
	netnstest.Shell(t, namespace, strings.Join(lines, " && "))
}

// carries waits until the device of the host carries packets. The kernel reports a carrier some time later.
func (w *networkWorld) carries(t *testing.T, device string) {
	t.Helper()
	eventually(t, device+" carries packets", func() bool {
		return strings.Contains(netnstest.Shell(t, w.host, "ip -o link show "+device), "LOWER_UP") &&
			!strings.Contains(netnstest.Shell(t, w.host, "ip -o link show "+device), "state DOWN")
	})
}

// withoutFamily takes all addresses and routes of a family, "-4" or "-6", from the host.
func (w *networkWorld) withoutFamily(t *testing.T, family string) {
	t.Helper()
	netnstest.Shell(t, w.host, "ip "+family+" address flush dev wan scope global && ip "+family+" route flush dev wan")
}

// hostResolves makes a text the host's resolv.conf(5), for all programs of the test.
func hostResolves(t *testing.T, text string) {
	t.Helper()
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	writeFile(t, resolv, text)
	if err := unix.Mount(resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc/resolv.conf", 0); err != nil {
			t.Error(err)
		}
	})
}

// askAt is a command that prints the answer of the server at the address. It ends soon if nothing answers.
func askAt(address string) []string {
	return []string{"timeout", "10", "bash", "-c", "exec 3<>/dev/tcp/" + address + "/80; cat <&3"}
}

// tellsHost is the answer of the server at the address to a program of the host.
func (w *networkWorld) tellsHost(t *testing.T, address string) result {
	t.Helper()
	args := askAt(address)
	return run(t, netnstest.Command(exec.Command(args[0], args[1:]...), w.host))
}

// tells is the answer of the server at the address to a program in the sandbox.
func (w *networkWorld) tells(t *testing.T, box, address string) result {
	t.Helper()
	return w.on(t, append([]string{"exec", box}, askAt(address)...)...)
}

// reachesAsHost holds that the sandbox reaches the network at the address, and that the network sees it as the host.
func (w *networkWorld) reachesAsHost(t *testing.T, box, address, network string) {
	t.Helper()
	want := w.tellsHost(t, address)
	if !strings.HasPrefix(want.stdout, network+" ") {
		t.Errorf("the host at %s: %+v; want the network %s", address, want, network)
	}
	if got := w.tells(t, box, address); got.code != 0 || got.stdout != want.stdout {
		t.Errorf("%s at %s: %+v; want %q", box, address, got, want.stdout)
	}
}
