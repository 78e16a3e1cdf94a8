package networks

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/egress"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// listenedRules are those of a namespace that has a listener for port 80, as without TPROXY.
const listenedRules = `delete table inet sandbox-runtime-capture
add table inet sandbox-runtime-capture
add set inet sandbox-runtime-capture listened { type inet_service; elements = { 80 }; }`

func TestNewPortsNeedNewListenersWithoutTPROXY(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	n := Networks{record.Roots{State: t.TempDir(), Data: t.TempDir()}}
	inside := netnstest.New(t)
	p := proxied{egress.Box{Key: "box", Allow: []string{"192.0.2.1:80"}}, []spec.PortRange{{First: 80, Last: 80}}}
	if err := n.admit(t.Context(), inside, p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.egress().Dismiss(context.Background(), "box"); err != nil {
			t.Error(err)
		}
		testhost.Eventually(t, "the processes of the network end", func() bool { return !statedir.Exists(filepath.Join(n.egress().Dir, "control")) })
	})
	netnstest.Shell(t, inside, "echo '"+listenedRules+"' | nft -f -")
	if _, err := n.regrantProxied(t.Context(), inside, p); err != nil {
		t.Fatal(err)
	}
	if table := netnstest.Shell(t, inside, "nft list ruleset"); !strings.Contains(table, "listened") {
		t.Errorf("the same ports: %s", table)
	}
	p.ports = []spec.PortRange{{First: 81, Last: 81}}
	if _, err := n.regrantProxied(t.Context(), inside, p); err != nil {
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
