package networks

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A rule of a launcher can fill in a limit that the sandbox's network cannot have. The rules of the network can change
// nevertheless, and the level can be raised.
func TestALimitOfAnotherNetworkDoesNotBlockAChange(t *testing.T) {
	n := Networks{record.Roots{State: t.TempDir(), Data: t.TempDir()}}
	now := spec.Config{Network: spec.NetworkProxied, Allow: []string{"a.example"}, Limits: spec.Limits{NetworkRate: 1 << 20}}
	for _, network := range []spec.Network{spec.NetworkProxied, spec.NetworkFull, spec.NetworkNone} {
		next := now
		next.Network, next.Allow, next.Sensitivity = network, nil, spec.SensitivityInternal
		if err := n.checkChange(t.Context(), "box", now, next); err != nil {
			t.Errorf("to %s: %v", network, err)
		}
	}
	now.Network = spec.NetworkFull
	next := now
	next.Network = spec.NetworkProxied
	if err := n.checkChange(t.Context(), "box", now, next); err == nil || !strings.Contains(err.Error(), "network_rate") {
		t.Errorf("to a network without the limit: %v", err)
	}
}

// A change that fails takes the network from the sandbox, also if the record cannot be written.
func TestTheNetworkIsTakenWithoutTheRecord(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	host, inside := netnstest.New(t), netnstest.New(t)
	n := Networks{record.Roots{State: t.TempDir(), Data: t.TempDir()}}
	box, names, r := newBox(t, n, inside, spec.Config{Network: spec.NetworkFull})
	err := netns.Do(host, func() error {
		_, err := n.Attach(t.Context(), func() (*os.File, error) { return inside, nil }, names, r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Do(host, func() error { return n.Disconnect(t.Context(), box.ID) }); err != nil {
			t.Error(err)
		}
	})
	routes := func() string { return netnstest.Shell(t, inside, "{ ip route; ip -6 route; } | grep eth0 || true") }
	if routes() == "" {
		t.Fatal("the sandbox has no network")
	}
	// The draft of a record cannot take the place of a directory.
	if err := os.MkdirAll(filepath.Join(n.Dir(box.ID), record.FileName+".new", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	stricter := protocol.NetworkRequest{Grant: &spec.NetworkGrant{Network: spec.NetworkNone}}
	err = netns.Do(host, func() error { _, err := n.Change(t.Context(), box, stricter); return err })
	if err == nil || !strings.Contains(err.Error(), "the sandbox has no network now") {
		t.Errorf("the record cannot be written: %v", err)
	}
	if left := routes(); left != "" {
		t.Errorf("the sandbox has the routes %s", left)
	}
}

// newBox is a sandbox of a launcher, with a process in a network namespace.
func newBox(t *testing.T, n Networks, inside *os.File, c spec.Config) (*record.Sandbox, record.Names, record.Record) {
	t.Helper()
	const id = "box"
	if err := os.MkdirAll(n.Dir(id), 0o700); err != nil {
		t.Fatal(err)
	}
	names := n.NewNames(id)
	if err := names.Write(n.Dir(id)); err != nil {
		t.Fatal(err)
	}
	r := record.Record{Version: record.FormatVersion, Init: initIn(t, inside), IDBase: idrange.FirstID, Config: c}
	if err := r.Write(n.Dir(id)); err != nil {
		t.Fatal(err)
	}
	return record.NewSandbox(n.Roots, id, nil, r), names, r
}

// The record still has the earlier network after a change that could not be written. No later command brings that
// network back.
func TestANetworkThatWasTakenStaysAway(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	inside := netnstest.New(t)
	n := Networks{record.Roots{State: t.TempDir(), Data: t.TempDir()}}
	box, names, r := newBox(t, n, inside, spec.Config{Network: spec.NetworkProxied, Allow: []string{"a.example"}})
	if _, err := n.Attach(t.Context(), func() (*os.File, error) { return inside, nil }, names, r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Disconnect(context.Background(), box.ID); err != nil {
			t.Error(err)
		}
		testhost.Eventually(t, "the processes of the network end", func() bool { return !statedir.Exists(filepath.Join(n.egress().Dir, "control")) })
	})
	// The draft of a record cannot take the place of a directory.
	draft := filepath.Join(n.Dir(box.ID), record.FileName+".new")
	if err := os.MkdirAll(filepath.Join(draft, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	stricter := protocol.NetworkRequest{Grant: &spec.NetworkGrant{Network: spec.NetworkNone}}
	if _, err := n.Change(t.Context(), box, stricter); err == nil || !strings.Contains(err.Error(), "the sandbox has no network now") {
		t.Errorf("the record cannot be written: %v", err)
	}
	hasNone := func(when string) {
		t.Helper()
		if isServed, err := n.egress().Has(t.Context(), egressKey(names)); isServed || err != nil {
			t.Errorf("%s: the sandbox is served: %v, %v", when, isServed, err)
		}
	}
	if err := n.Restore(t.Context(), box); err == nil {
		t.Error("the record still cannot be written, and there is no error")
	}
	hasNone("without room")
	if err := os.RemoveAll(draft); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Restore(t.Context(), box); err != nil {
			t.Error(err)
		}
		hasNone("with room")
	}
	r, err := record.Read(n.Dir(box.ID))
	if err != nil || r.Config.Network != spec.NetworkNone || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], errNotKept.Error()) {
		t.Errorf("the record: %+v, %v", r, err)
	}
	again := protocol.NetworkRequest{Grant: &spec.NetworkGrant{Network: spec.NetworkProxied, Allow: []string{"a.example"}}}
	if _, err := n.Change(t.Context(), box, again); err != nil {
		t.Error(err)
	}
	if err := n.Restore(t.Context(), box); err != nil {
		t.Error(err)
	}
	if isServed, err := n.egress().Has(t.Context(), egressKey(names)); !isServed || err != nil {
		t.Errorf("after a new decision: %v, %v", isServed, err)
	}
}

// A parent without room on the disk has a sandbox whose directory is missing.
func TestARemovalDismissesASandboxThatIsNotOnDisk(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	inside := netnstest.New(t)
	n := Networks{record.Roots{State: t.TempDir(), Data: t.TempDir()}}
	box, names, r := newBox(t, n, inside, spec.Config{Network: spec.NetworkProxied, Allow: []string{"a.example"}})
	if _, err := n.Attach(t.Context(), func() (*os.File, error) { return inside, nil }, names, r); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(n.egress().Dir, "boxes", egressKey(names))); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Change(t.Context(), box, protocol.NetworkRequest{Grant: &spec.NetworkGrant{Network: spec.NetworkNone}}); err != nil {
		t.Error(err)
	}
	if err := n.Disconnect(t.Context(), box.ID); err != nil {
		t.Error(err)
	}
	if _, err := n.egress().Counts(t.Context(), egressKey(names)); !errors.Is(err, egress.ErrUnknown) {
		t.Errorf("the proxied network still has the sandbox: %v", err)
		_ = n.egress().Dismiss(t.Context(), egressKey(names))
	}
	testhost.Eventually(t, "the processes of the network end", func() bool { return !statedir.Exists(filepath.Join(n.egress().Dir, "control")) })
}

// initIn is a process in a network namespace.
func initIn(t *testing.T, namespace *os.File) process.ID {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := netns.Do(namespace, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	id, err := process.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// No sandbox has the id of the processes that serve it.
func TestWorkersHaveAnIDOfTheirOwn(t *testing.T) {
	if worker.ID != idrange.FirstID-1 {
		t.Errorf("workers have the id %d, sandboxes those from %d on", worker.ID, idrange.FirstID)
	}
}

// The network full takes rules that are wrong for proxied. They must not stop a raise of the level.
func TestALevelIsRaisedWithAnyRules(t *testing.T) {
	c := spec.Config{Network: spec.NetworkFull, Deny: []string{"198.18.0.0/15", "fd53::1"}}
	next, err := c.Changed(nil, spec.SensitivityConfidential)
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(next); err != nil || next.Network != spec.NetworkProxied {
		t.Errorf("%+v: %v", next.Grant(), err)
	}
}
