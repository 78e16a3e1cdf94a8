package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// listens has a launcher with flags listen on the world's host.
func (w *farWorld) listens(t *testing.T, flags ...string) *launcherProcess {
	t.Helper()
	socket := socketOfTest(t)
	if err := os.Chmod(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	p := &launcherProcess{start(t, netnstest.Command(w.command(append([]string{"launcher", "--socket", socket}, flags...)...), w.host)), socket}
	t.Cleanup(p.leave)
	eventually(t, "the launcher listens", func() bool { return strings.Contains(p.stderr(), "listening") })
	return p
}

// curls is a command for the answer to a request.
func curls(url string) sandbox.Command {
	return sandbox.Command{Args: []string{"curl", "--noproxy", "*", "-sS", "--fail", "--max-time", "20", url}}
}

// A user of a launcher gets the names and addresses that the rules for the user have. With the network full the
// user gets each name.
func TestRulesForUsersOfTheProxiedNetwork(t *testing.T) {
	const uid, wide = 4242, 4243
	need(t, world())
	w := newFarWorld(t)
	w.far.listen(t, w.host, worldHost+":80")
	rules := filepath.Join(t.TempDir(), "rules.json")
	writeFile(t, rules, fmt.Sprintf(`{"peers":[
		{"user":%d,"networks":["proxied"],"network_allow":["near.test","*.sister.test:8080","9.9.9.0/24:80","9.9.9.11"]},
		{"user":%d,"networks":["proxied","full"],"network_allow":["9.9.9.11"]}]}`, uid, wide))
	if err := os.Chmod(rules, 0o600); err != nil {
		t.Fatal(err)
	}
	l := w.listens(t, "--mode", "0666", "--rules", rules)
	as(t, uid, func(ctx context.Context) error {
		return w.holdsUser(ctx, t, l.socket, []sandbox.NetworkGrant{
			{Allow: []string{"near.test"}}, {Allow: []string{"near.test:80", "a.sister.test:8080", "*.b.sister.test:8080"}}, {Allow: []string{"9.9.9.0/24:80", "9.9.9.11:80"}},
			{Network: sandbox.NetworkProxied, Deny: []string{"any.test"}}, {Allow: []string{"GET near.test/path"}},
		}, []sandbox.NetworkGrant{
			{Allow: []string{"sister.test:8080"}}, {Allow: []string{"*.near.test"}}, {Allow: []string{"near.test:8080"}}, {Allow: []string{"a.sister.test"}},
			{Allow: []string{"9.9.9.1:80"}}, {Allow: []string{"9.9.8.0/23:80"}}, {Allow: []string{"near.test", "@pypi"}}, {Network: sandbox.NetworkProxied, Observe: true},
			{Network: sandbox.NetworkFull},
		})
	})
	as(t, wide, func(ctx context.Context) error {
		return w.holdsUser(ctx, t, l.socket, []sandbox.NetworkGrant{
			{Allow: []string{"near.test", "strange.test:22", "@pypi", "9.9.9.11"}}, {Network: sandbox.NetworkProxied, Observe: true},
		}, []sandbox.NetworkGrant{{Allow: []string{"9.9.9.9:80"}}, {Allow: []string{"9.9.9.0/24:80"}}, {Allow: []string{"10.0.0.1"}}})
	})
	as(t, uid, func(ctx context.Context) error { return w.cannotReachTheHost(ctx, t, l.socket) })
}

// holdsUser makes a sandbox with the first grant, and changes its network to each of the granted and the refused ones.
func (w *farWorld) holdsUser(ctx context.Context, t *testing.T, socket string, granted, refused []sandbox.NetworkGrant) (err error) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	box, err := m.Create(ctx, sandbox.Config{Storage: sandbox.StorageMemory, Allow: granted[0].Allow})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if r, err := box.Exec(ctx, curls("http://"+nearName)); err != nil || string(r.Stdout) != nearName+"\n" {
		t.Errorf("%q: %+v, %v", granted[0].Allow, r, err)
	}
	for _, g := range granted {
		g.Network = sandbox.NetworkProxied
		if _, err := box.SetNetwork(ctx, g); err != nil {
			t.Errorf("%+v: %v", g, err)
		}
	}
	if _, err := box.SetNetwork(ctx, sandbox.NetworkGrant{Network: sandbox.NetworkNone}); err != nil {
		t.Error(err)
	}
	for _, g := range refused {
		config := sandbox.Config{Storage: sandbox.StorageMemory, Network: g.Network, Allow: g.Allow, Observe: g.Observe}
		if other, err := m.Create(ctx, config); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("%+v: %v", g, err)
			if err == nil {
				_ = other.Close() // the test has failed
			}
		}
		if g.Network == "" {
			g.Network = sandbox.NetworkProxied
		}
		if _, err := box.SetNetwork(ctx, g); !errors.Is(err, fault.ErrRefused) || g.Allow != nil && !strings.Contains(err.Error(), "root can add it there") {
			t.Errorf("a change to %+v: %v", g, err)
		}
	}
	if r, err := box.Exec(ctx, curls("http://"+nearName)); err != nil || r.OK() {
		t.Errorf("after refused changes the network is not none: %+v, %v", r, err)
	}
	return nil
}

// cannotReachTheHost holds that a range opens no address of the host.
func (w *farWorld) cannotReachTheHost(ctx context.Context, t *testing.T, socket string) (err error) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	box, err := m.Create(ctx, sandbox.Config{Storage: sandbox.StorageMemory, Allow: []string{"9.9.9.0/24:80"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	for url, want := range map[string]bool{"http://" + strangeServer: true, "http://" + worldHost: false} {
		if r, err := box.Exec(ctx, curls(url)); err != nil || r.OK() != want {
			t.Errorf("%s: %+v, %v", url, r, err)
		}
	}
	return nil
}

// claimBlank makes a sandbox that claims a blank. It tries again if others have changed files of the host meanwhile, which
// makes blanks stale.
func claimBlank(t *testing.T, m *sandbox.Manager, c sandbox.Config) *sandbox.Sandbox {
	t.Helper()
	for {
		if err := readyBlank(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		before, err := m.PoolStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		box, err := m.Create(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		after, err := m.PoolStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case after.Hits == before.Hits+1:
			return box
		case after.Stale == before.Stale:
			t.Fatalf("no claim: %+v, before %+v", after, before)
		}
		if err := box.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A claimed blank has the rules of its request, and the next one has nothing of them.
func TestClaimsInTheProxiedNetwork(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	l := w.listens(t, "--pool", "min=1,max=2")
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: l.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	var addresses []string
	for i, c := range []struct {
		allow  []string
		reach  []string
		refuse []string
	}{
		{[]string{nearName}, []string{nearName}, []string{sisterName, strangeName, worldServer}},
		{nil, nil, []string{nearName, sisterName, worldServer}},
		{[]string{sisterName}, []string{sisterName}, []string{nearName, strangeName}},
	} {
		box := claimBlank(t, m, sandbox.Config{Storage: sandbox.StorageMemory, Allow: c.allow})
		for _, host := range append(c.reach, c.refuse...) {
			r, err := box.Exec(t.Context(), curls("http://"+host))
			if want := len(c.reach) > 0 && host == c.reach[0]; err != nil || r.OK() != want || r.ExitCode == 28 {
				t.Errorf("claim %d: %s: %+v, %v", i, host, r, err)
			}
		}
		if stats, err := box.Stats(t.Context()); err != nil || stats.NetworkRequests != int64(len(c.reach)) {
			t.Errorf("claim %d: %+v, %v", i, stats, err)
		}
		if r, err := box.Run(t.Context(), "getent ahostsv4 "+append(c.reach, nearName)[0]+" | head -1"); err != nil || r.OK() {
			addresses = append(addresses, string(r.Stdout))
		}
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(addresses) != 3 || addresses[1] != "" || addresses[0] == "" {
		t.Errorf("addresses of names: %q", addresses)
	}
}
