package integration

import (
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// A vpn is a tunnel from the device "tun0" of a host to the network "office", in UDP between the host and a server
// outside. It does not encrypt. The office has addresses of its own, and the address 9.8.7.6 and 2600:8::6 of an
// internet that only the office reaches.
type vpn struct {
	farNetwork
	w    *networkWorld
	mark int
}

const (
	vpnHost, vpnOffice    = "10.8.0.2", "10.8.0.1"
	vpnHost6, vpnOffice6  = "2600:8::2", "2600:8::1"
	vpnBeyond, vpnBeyond6 = "9.8.7.6", "2600:8::6"
	vpnMTU                = 1400
	// vpnMark is the mark of the packets that carry the tunnel, as wg-quick(8) has it.
	vpnMark = 51820
)

// startVPN makes the tunnel. No route leads into it but those to the addresses of both ends. mark is that of the
// tunnel's own packets, or 0.
func (w *networkWorld) startVPN(t *testing.T, mark int) *vpn {
	t.Helper()
	v := &vpn{farNetwork{"office", netnstest.New(t)}, w, mark}
	v.connect(t)
	setUp(t, w.host, "tun0", vpnHost+"/24", vpnHost6+"/64")
	setUp(t, v.namespace, "tun0", vpnOffice+"/24", vpnOffice6+"/64")
	netnstest.Shell(t, v.namespace, "ip link set lo up && ip address add "+vpnBeyond+"/32 dev lo && ip address add "+vpnBeyond6+"/128 dev lo")
	v.tell(t)
	v.count(t)
	return v
}

// connect makes both devices, and passes packets between them until the test ends.
func (v *vpn) connect(t *testing.T) {
	t.Helper()
	var near, far net.PacketConn
	listen := func(namespace *os.File, address string, mark int) (c net.PacketConn) {
		err := netns.Do(namespace, func() (err error) {
			config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
				var failed error
				err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
				if err == nil {
					err = failed
				}
				return err
			}}
			c, err = config.ListenPacket(t.Context(), "udp4", address)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	near, far = listen(v.w.host, "0.0.0.0:1194", v.mark), listen(v.w.outside, worldServer+":1194", 0)
	carry(newTun(t, v.w.host), near, worldServer)
	carry(newTun(t, v.namespace), far, worldHost)
}

// newTun makes the device tun0 in a namespace. The device goes with the test.
func newTun(t *testing.T, namespace *os.File) *os.File {
	t.Helper()
	var device *os.File
	err := netns.Do(namespace, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq("tun0")
		if err == nil {
			request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
		if err != nil {
			unix.Close(fd)
			return err
		}
		device = os.NewFile(uintptr(fd), "tun0")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { device.Close() })
	netnstest.Shell(t, namespace, "ip link set tun0 mtu 1400")
	return device
}

// carry passes packets between a device and the other end of the tunnel, until one of them is closed.
func carry(device *os.File, c net.PacketConn, peer string) {
	to := &net.UDPAddr{IP: net.ParseIP(peer), Port: 1194}
	go func() {
		packet := make([]byte, 2*vpnMTU)
		for {
			n, err := device.Read(packet)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(packet[:n], to)
		}
	}()
	go func() {
		packet := make([]byte, 2*vpnMTU)
		for {
			n, _, err := c.ReadFrom(packet)
			if err != nil {
				return
			}
			_, _ = device.Write(packet[:n])
		}
	}()
}

// Routes of VPNs, as the programs make them.
const (
	// halfRoutes are those of OpenVPN, with redirect-gateway def1 and ipv6.
	halfRoutes = "ip route add " + worldServer + " via " + worldServer + " dev wan && ip route add 0.0.0.0/1 via " + vpnOffice +
		" && ip route add 128.0.0.0/1 via " + vpnOffice + " && ip route add 2000::/3 dev tun0"
	// policyRoutes are those of wg-quick(8), with its settings and without the rules of its packet filter.
	policyRoutes = "sysctl -qw net.ipv4.conf.all.src_valid_mark=1; for family in -4 -6; do ip $family route add default dev tun0 table 51820 && " +
		"ip $family rule add not fwmark 51820 table 51820 && ip $family rule add table main suppress_prefixlength 0; done"
	endPolicy = "for family in -4 -6; do ip $family rule del not fwmark 51820 table 51820 && ip $family rule del table main suppress_prefixlength 0 && " +
		"ip $family route del default dev tun0 table 51820; done"
	endHalves = "ip route del 0.0.0.0/1 && ip route del 128.0.0.0/1 && ip route del 2000::/3"
)
