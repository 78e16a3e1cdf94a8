package router

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// A sandbox that goes leaves no tracked connection, and those of others stay. Older kernels have
// only the list.
func TestTheConnectionsOfOneSourceAreForgotten(t *testing.T) {
	for name, forget := range map[string]func(netip.Addr) error{
		"by the kernel": func(a netip.Addr) error { return forgetAll(nil, a) },
		"by a list":     func(a netip.Addr) error { return forgetConnections(nil, a, noneStays) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			serve(t, w.internet, "0.0.0.0:80")
			serve(t, w.internet, "[::]:81")
			one, two := w.attach(t, Member{Link: "s-one", Number: 1}), w.attach(t, Member{Link: "s-two", Number: 2})
			for _, sandbox := range []*os.File{one, two} {
				wantAnswer(t, sandbox, internetIPv4+":80", hostIPv4)
				wantAnswer(t, sandbox, "["+internetIPv6+"]:81", hostIPv6)
			}
			for i, source := range []string{ipv4Of(t, one), ipv6Of(t, one)} {
				other := []string{ipv4Of(t, two), ipv6Of(t, two)}[i]
				before := tracked(t, w, other)
				if tracked(t, w, source) == 0 || before == 0 {
					t.Fatal("the host tracks no connection")
				}
				if err := w.doOnHost(func() error { return forget(netip.MustParseAddr(source)) }); err != nil {
					t.Fatal(err)
				}
				if got := tracked(t, w, source); got != 0 {
					t.Errorf("%d connections of %s are left", got, source)
				}
				if got := tracked(t, w, other); got != before {
					t.Errorf("%s has %d of %d connections", other, got, before)
				}
			}
		})
	}
}

// tracked is the number of connections from the source that the host tracks.
func tracked(t *testing.T, w *world, source string) (count int) {
	t.Helper()
	err := netns.Do(w.host, func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range flows {
				if f.Forward.SrcIP.String() == source {
					count++
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}
