package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

func TestTheSandboxsOwnServersKeepTheirPorts(t *testing.T) {
	needTPROXY(t)
	namespace := netnstest.New(t)
	serveText(t, netnstest.Listen(t, namespace, "0.0.0.0:443"), "own")
	serveText(t, netnstest.Listen(t, namespace, "127.0.0.1:5432"), "own")
	serveText(t, netnstest.Listen(t, namespace, "[::]:8000"), "own")
	serve(t, openBox(t, namespace, withTPROXY, webPorts))
	serveText(t, netnstest.Listen(t, namespace, "[::]:80"), "own")
	serveText(t, netnstest.Listen(t, namespace, "198.18.0.2:8001"), "own")
	serveText(t, netnstest.Listen(t, namespace, "[fd53::2]:8001"), "own")
	serveText(t, netnstest.Listen(t, namespace, "0.0.0.0:8080"), "own")
	for _, address := range []string{
		"127.0.0.1:443", "127.1.2.3:443", "198.18.0.2:443", "127.0.0.1:5432", "127.0.0.1:8000", "[::1]:8000", "[fd53::2]:8000",
		"127.0.0.1:80", "[::1]:80", "198.18.0.2:80", "198.18.0.2:8001", "[fd53::2]:8001", "127.0.0.1:8080",
	} {
		wantAnswer(t, namespace, address, "own")
	}
	for _, address := range []string{"1.2.3.4:443", "1.2.3.4:8000", "[2001:db8::1]:80", "1.2.3.4:8001"} {
		wantAnswer(t, namespace, address, address)
	}
	wantRefused(t, namespace, "1.2.3.4:5432")
	wantRefused(t, namespace, "1.2.3.4:8080")
}

// asNobody calls f in the namespace, on a thread without capabilities and with another user.
func asNobody(t *testing.T, namespace *os.File, f func()) {
	t.Helper()
	become := func(user uintptr) error { // the thread alone
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), user, ^uintptr(0)); errno != 0 {
			return errno
		}
		return nil
	}
	err := netns.Do(namespace, func() error {
		if err := become(65534); err != nil {
			return err
		}
		f()
		return become(0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// listenShared binds a socket, and listens, with all options that could share the address.
func listenShared(kind int, address netip.AddrPort) error {
	family := unix.AF_INET6
	if address.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for option, level := range map[int]int{unix.SO_REUSEADDR: unix.SOL_SOCKET, unix.SO_REUSEPORT: unix.SOL_SOCKET, unix.IPV6_FREEBIND: unix.SOL_IPV6} {
		if family == unix.AF_INET && level == unix.SOL_IPV6 {
			option, level = unix.IP_FREEBIND, unix.SOL_IP
		}
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, sockaddr(address)); err != nil || kind == unix.SOCK_DGRAM {
		return err
	}
	return unix.Listen(fd, 1)
}

func TestNothingInsideTakesTheListeners(t *testing.T) {
	needTPROXY(t)
	namespace, l := newBox(t, withTPROXY, webPorts)
	var addresses []netip.AddrPort
	for _, ip := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "::ffff:127.0.0.1", "198.18.0.2", "8.8.8.8"} {
		addresses = append(addresses, netip.AddrPortFrom(netip.MustParseAddr(ip), dnsPort))
	}
	for _, streams := range l.Streams {
		port, err := portOf(streams)
		if err != nil {
			t.Fatal(err)
		}
		a := netip.MustParseAddrPort(fmt.Sprint(listener(t, streams).Addr()))
		addresses = append(addresses, a, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	}
	try := func() {
		for _, a := range addresses {
			kinds := []int{unix.SOCK_STREAM}
			if a.Port() == dnsPort {
				kinds = append(kinds, unix.SOCK_DGRAM)
			}
			for _, kind := range kinds {
				if err := listenShared(kind, a); !errors.Is(err, unix.EADDRINUSE) {
					t.Errorf("taking %s, kind %d: %v", a, kind, err)
				}
			}
		}
	}
	asNobody(t, namespace, try)
	if err := netns.Do(namespace, func() error { try(); return nil }); err != nil { // the user that has opened them
		t.Fatal(err)
	}

	serve(t, l)
	// A socket may have a foreign address, and gets nothing by that.
	serveText(t, netnstest.Listen(t, namespace, "1.2.3.4:443"), "stolen")
	wantAnswer(t, namespace, "1.2.3.4:443", "1.2.3.4:443")
	serveText(t, netnstest.Listen(t, namespace, "1.2.3.4:5555"), "stolen")
	wantRefused(t, namespace, "1.2.3.4:5555")
	serveText(t, netnstest.Listen(t, namespace, "127.0.0.1:7777"), "reached")
	for _, to := range []string{"127.0.0.1:7777", "1.1.1.1:443"} {
		err := netns.Do(namespace, func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(1, 2, 3, 4), Port: 80}, Timeout: patience}
			c, err := d.Dial("tcp", to)
			if err == nil {
				c.Close()
			}
			return err
		})
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("from a foreign address to %s: %v", to, err)
		}
	}
	// The listeners are at no own address.
	for _, streams := range l.Streams {
		port, err := portOf(streams)
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range []string{"127.0.0.1", "::1", "198.18.0.2", "fd53::2", "198.18.0.1", "fd53::1"} {
			wantRefused(t, namespace, net.JoinHostPort(ip, fmt.Sprint(port)))
		}
	}
}

func TestNothingInsideChangesTheNetwork(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace, l := newBox(t, m, webPorts)
		serve(t, l)
		before := namespaceState(t, namespace)
		const nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups"
		var script strings.Builder
		for _, line := range []string{
			"ip route del local default table local", "ip -6 route del local default table local", "ip route add 1.2.3.4 dev lo",
			"ip address add 1.2.3.4 dev lo", "ip address del 198.18.0.2/32 dev lo", "ip link set lo down", "ip link add d type dummy",
			"ip rule add pref 0 unreachable", "nft flush ruleset", "nft add table inet mine", "nft delete table inet sandbox-runtime-capture",
			"echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind",
		} {
			fmt.Fprintf(&script, "(%s) 2>&1 && echo DONE %s; ", line, strings.ReplaceAll(line, ">", "to"))
		}
		for _, as := range []string{nobody, nobody + " unshare -Ur"} {
			got := netnstest.Shell(t, namespace, as+" sh -c '"+script.String()+" true'")
			if strings.Contains(got, "DONE") || strings.Contains(got, "not found") || strings.Count(got, "ermi") < 12 {
				t.Errorf("%s: %s", as, got)
			}
		}
		asNobody(t, namespace, func() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); !errors.Is(err, unix.EPERM) {
				t.Errorf("the mark: %v", err)
			}
			if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); !errors.Is(err, unix.EPERM) {
				t.Errorf("a transparent socket: %v", err)
			}
		})
		if after := namespaceState(t, namespace); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		wantAnswer(t, namespace, "1.2.3.4:443", "1.2.3.4:443")
	})
}

// namespaceState is all that the package changes in a namespace.
func namespaceState(t *testing.T, namespace *os.File) string {
	t.Helper()
	return netnstest.Shell(t, namespace, "ip address; ip rule; ip -6 rule; ip route show table all; nft list ruleset")
}

// userVariable makes this program one that captures in namespaces of an ordinary user.
const userVariable = "CAPTURE_TEST_USER"

func TestAnOrdinaryUserCanCaptureInAUserNamespace(t *testing.T) {
	withEach(t, func(t *testing.T, _ method) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), userVariable+"="+path.Base(t.Name()))
		ids := func(id int) []syscall.SysProcIDMap {
			return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, UidMappings: ids(65534), GidMappings: ids(65534), Credential: &syscall.Credential{NoSetGroups: true}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

func userMain() {
	if err := captureAsUser(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func captureAsUser() error {
	namespace, err := netns.Create()
	if err != nil {
		return err
	}
	m := withTPROXY
	if os.Getenv(userVariable) == "listeners" {
		m = withoutTPROXY
	}
	l, err := open(namespace, webPorts, m)
	if err != nil {
		return err
	}
	first, second := l.Streams[0], l.Streams[1]
	if len(l.Streams) > 2 { // the listeners of the last port
		first, second = l.Streams[len(l.Streams)-2], l.Streams[len(l.Streams)-1]
	}
	for address, file := range map[string]*os.File{
		"1.2.3.4:65535": first, "[2001:db8::1]:65535": second, "8.8.8.8:53": l.DNSStreams[0], "[::1]:53": l.DNSStreams[1],
	} {
		listening, err := net.FileListener(file)
		if err != nil {
			return err
		}
		client, err := dial(namespace, "tcp", address)
		if err != nil {
			return err
		}
		if err := listening.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		c, err := listening.Accept()
		if err != nil || c.LocalAddr().String() != address {
			return fmt.Errorf("%s: %v, %w", address, c, err)
		}
		_, _, _ = client.Close(), c.Close(), listening.Close()
	}
	if err := SetPorts(namespace, nil); errors.Is(err, ErrReopen) && len(l.Streams) > 2 {
		_, err = Remove(namespace)
		return errors.Join(err, l.Close())
	} else if err != nil {
		return err
	}
	if _, err := dial(namespace, "tcp", "1.2.3.4:443"); !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("without ports: %w", err)
	}
	_, err = Remove(namespace)
	return err
}
