package router

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// manyRules are rules with n elements or more, none of which touches another.
func manyRules(t *testing.T, address string, n int) []spec.AddressRule {
	t.Helper()
	var texts []string
	for i := range n {
		texts = append(texts, fmt.Sprintf("%s:%d", address, 1000+2*i))
	}
	return rules(t, texts...)
}

// Rules of many elements are all there, and all go. A list of netlink has at most 64 KiB.
func TestManyElements(t *testing.T) {
	w := newWorld(t)
	const n = 450
	many := manyRules(t, hostIPv4, n)
	m := Member{Link: "s-one", Number: 1, Allow: many}
	one := w.attach(t, m)
	w.attach(t, Member{Link: "s-two", Number: 2, Allow: many})
	inRouter := func() int { return w.count(t, grants("allowed", ipv4).Name) }
	onHost := func() int {
		return strings.Count(netnstest.Shell(t, w.host, "nft list set inet "+w.router.hostSide().table()+" "+guests(ipv4).Name), hostIPv4)
	}
	router, host := inRouter(), onHost()
	if router < 2*n || host < 2*n {
		t.Errorf("the router has %d elements, and the host %d, want %d of each", router, host, 2*n)
	}
	m.Allow = nil
	w.regrant(t, one, m)
	if r, h := inRouter(), onHost(); 2*r != router || 2*h != host {
		t.Errorf("the router has %d of %d elements, and the host %d of %d", r, router, h, host)
	}
}

// count is the number of elements of a set of the router's table.
func (w *world) count(t *testing.T, set string) (n int) {
	t.Helper()
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	return strings.Count(netnstest.Shell(t, namespace, "nft list set inet "+tableName+" "+set), hostIPv4)
}

// A sandbox has no neighbours but the gateways. An entry that waits for the answer of another one takes room in a
// table of the whole host.
func TestASandboxLooksForNoNeighbours(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	testhost.Eventually(t, "an address to ask from", func() bool {
		return netnstest.Shell(t, one, "ip -6 address show dev eth0 scope link -tentative") != ""
	})
	err := netns.Do(one, func() error {
		for i := range 50 {
			c, err := net.Dial("udp", fmt.Sprintf("[fe80::1:%x%%eth0]:9", i))
			if err != nil {
				return err
			}
			_, _ = c.Write([]byte("?"))
			c.Close()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if waiting := netnstest.Shell(t, one, "ip -6 neigh show nud incomplete dev eth0"); waiting != "" {
		t.Errorf("wait for an answer:\n%s", waiting)
	}
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
}
