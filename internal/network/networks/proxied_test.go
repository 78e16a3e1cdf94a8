package networks

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// listenedRules are those of a namespace that has a listener for port 80, as without TPROXY.
const listenedRules = `delete table inet sandbox-runtime-capture
add table inet sandbox-runtime-capture
add set inet sandbox-runtime-capture listened { type inet_service; elements = { 80 }; }`

// A field that the box lacks would be a rule without effect.
func TestABoxHasTheWholeGrant(t *testing.T) {
	c := spec.Config{
		Network: spec.NetworkProxied, Allow: []string{"a.example"}, Deny: []string{"b.example"}, Observe: true, Ask: true,
		Limits: spec.Limits{NetworkRequests: 7, NetworkQuota: 8},
	}
	names := record.Names{Cgroup: "/box"}
	got, err := newProxied(names, record.Record{Config: c})
	want := egress.Box{Key: egressKey(names), Allow: c.Allow, Deny: c.Deny, Observe: true, Ask: true, Requests: 7, Bytes: 8}
	if err != nil || !reflect.DeepEqual(got.box, want) {
		t.Errorf("%+v, %v; want %+v", got.box, err, want)
	}
}

// A worker that was taken over can report any counts.
func TestCountsStayNumbers(t *testing.T) {
	most := ^uint64(0)
	got := withCounts(spec.Traffic{Received: 1, Sent: 2, Charged: 3}, egress.Counts{Received: most, Sent: most, Requests: most, Refused: most})
	if got.Received <= 0 || got.Sent <= 0 || got.Charged <= got.Sent || got.Requests <= 0 || got.Refused <= 0 {
		t.Errorf("%+v", got)
	}
	got = withCounts(spec.Traffic{Received: 1, Sent: 2, Charged: 3}, egress.Counts{Received: 10, Sent: 20, Requests: 4, Refused: 5})
	if want := (spec.Traffic{Received: 11, Sent: 22, Charged: 33, Requests: 4, Refused: 5}); got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
}

func TestNewPortsNeedNewListenersWithoutTPROXY(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	n := Networks{record.Roots{State: t.TempDir(), Data: t.TempDir()}}
	inside := netnstest.New(t)
	p := proxiedShare{egress.Box{Key: "box", Allow: []string{"192.0.2.1:80"}}, []spec.PortRange{{First: 80, Last: 80}}}
	if err := n.proxied().admit(t.Context(), inside, p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.egress().Dismiss(context.Background(), "box"); err != nil {
			t.Error(err)
		}
		testhost.Eventually(t, "the processes of the network end", func() bool { return !statedir.Exists(filepath.Join(n.egress().Dir, "control")) })
	})
	netnstest.Shell(t, inside, "echo '"+listenedRules+"' | nft -f -")
	if _, err := n.proxied().regrant(t.Context(), inside, p); err != nil {
		t.Fatal(err)
	}
	if table := netnstest.Shell(t, inside, "nft list ruleset"); !strings.Contains(table, "listened") {
		t.Errorf("the same ports: %s", table)
	}
	p.ports = []spec.PortRange{{First: 81, Last: 81}}
	if _, err := n.proxied().regrant(t.Context(), inside, p); err != nil {
		t.Fatal(err)
	}
	if table := netnstest.Shell(t, inside, "nft list ruleset"); !strings.Contains(table, "81") {
		t.Errorf("new ports: %s", table)
	}
	if has, err := n.egress().Has(t.Context(), "box"); !has || err != nil {
		t.Errorf("the sandbox is served: %v, %v", has, err)
	}
	for port, isAnswered := range map[string]bool{"80": false, "81": true} {
		var c net.Conn
		err := netns.Do(inside, func() (err error) {
			c, err = net.DialTimeout("tcp", "192.0.2.1:"+port, 10*time.Second)
			return err
		})
		if (err == nil) != isAnswered {
			t.Errorf("port %s: %v", port, err)
		}
		if c != nil {
			c.Close()
		}
	}
}
