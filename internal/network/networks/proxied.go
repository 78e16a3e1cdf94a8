package networks

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/netns/capture"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// egressDir is a directory of the state root. No container has a name with "@".
const egressDir = "@egress"

func (n Networks) egress() egress.Egress {
	return egress.Egress{Dir: filepath.Join(n.State, egressDir)}
}

// hasEgress is false if no sandbox of the state root was ever proxied.
func (n Networks) hasEgress() bool { return statedir.Exists(n.egress().Dir) }

// egressKey names the sandbox in the proxied network. No two sandboxes ever have the same key.
func egressKey(n record.Names) string { return linkName(n) }

// A proxiedShare is the share of a sandbox in the proxied network.
type proxiedShare struct {
	box   egress.Box
	ports []spec.PortRange
}

// newProxied describes the sandbox of a record for the proxied network.
func newProxied(names record.Names, r record.Record) (proxiedShare, error) {
	list, err := rules.New(r.Config.Allow, r.Config.Deny)
	if err != nil {
		return proxiedShare{}, err
	}
	if err := checkUpstream(r.Config, r.Upstream); err != nil {
		return proxiedShare{}, err
	}
	p := proxiedShare{box: egress.Box{
		Upstream: r.Upstream, Hint: hintOf(r),
		Key: egressKey(names), Allow: r.Config.Allow, Deny: r.Config.Deny, Observe: r.Config.Observe, Ask: r.Config.Ask,
		Requests: uint64(r.Config.Limits.NetworkRequests), Bytes: uint64(r.Config.Limits.NetworkQuota),
	}}
	if r.Config.Observe || r.Config.Ask {
		p.ports = []spec.PortRange{{First: 1, Last: math.MaxUint16}}
		return p, nil
	}
	proxy := netip.MustParseAddrPort(spec.ProxyServer).Port()
	p.ports = append(list.Ports(), spec.PortRange{First: proxy, Last: proxy})
	return p, nil
}

// Check refuses rules of the proxied network that cannot be read.
func Check(c spec.Config) error {
	if c.Network != spec.NetworkProxied {
		return nil
	}
	_, err := rules.New(c.Allow, c.Deny)
	return err
}

// proxied is the proxied network: it captures the connections of sandboxes in their namespaces.
type proxied struct{ egress egress.Egress }

func (n Networks) proxied() proxied { return proxied{n.egress()} }

// admit has the sandbox's namespace capture connections for the proxied network. After an error the namespace
// captures nothing.
func (d proxied) admit(ctx context.Context, namespace *os.File, p proxiedShare) error {
	l, err := capture.Open(namespace, p.ports)
	if err != nil {
		return err
	}
	err = d.egress.Admit(ctx, p.box, l)
	if err = errors.Join(err, l.Close()); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statedir.CleanupTime)
	defer cancel()
	_, left := d.leave(ctx, namespace, p.box.Key) // the network may have admitted it before the error
	return errors.Join(err, left)
}

// attachProxied admits a sandbox that is being made.
func (n Networks) attachProxied(ctx context.Context, namespace func() (*os.File, error), names record.Names, r record.Record) error {
	p, err := newProxied(names, r)
	if err != nil {
		return err
	}
	inside, err := namespace()
	if err != nil {
		return err
	}
	return attachError(r.Config.Network, n.proxied().admit(ctx, inside, p))
}

// regrant changes the rules of a sandbox in the proxied network, and returns the number of its sockets
// that have ended. A sandbox that is not served is admitted. Without TPROXY a change of the ports ends all
// connections.
func (d proxied) regrant(ctx context.Context, namespace *os.File, p proxiedShare) (cut int, err error) {
	before, err := capture.Connections(namespace)
	if err != nil {
		return 0, err
	}
	err = d.egress.Change(ctx, p.box)
	if errors.Is(err, egress.ErrUnknown) {
		return before, d.admitAgain(ctx, namespace, p)
	}
	if err == nil {
		err = capture.SetPorts(namespace, p.ports)
	}
	if errors.Is(err, capture.ErrReopen) {
		if err = d.egress.Suspend(ctx, p.box.Key); err == nil {
			return before, d.admit(ctx, namespace, p)
		}
	}
	if err != nil {
		return 0, err
	}
	after, err := capture.Connections(namespace)
	return max(before-after, 0), err
}

// leave takes the proxied network from the sandbox, and returns the number of its sockets that have
// ended. The counts and names of the sandbox stay.
func (d proxied) leave(ctx context.Context, namespace *os.File, key string) (cut int, err error) {
	cut, err = capture.Remove(namespace)
	return cut, errors.Join(err, d.egress.Suspend(ctx, key))
}

// withhold keeps the sandbox out of the proxied network until the next admission that a command asks for.
func (n Networks) withhold(ctx context.Context, id string) error {
	names, err := n.namesOf(id)
	if err != nil {
		return err
	}
	return n.egress().Withhold(ctx, egressKey(names))
}

// errNotKept is the cause if the present network of a sandbox is stricter than that of its record.
var errNotKept = errors.New("an earlier change of its network could not be written to the record")

// prune dismisses sandboxes that are gone.
func (d proxied) prune(ctx context.Context, isLive func(key string) (bool, error)) error {
	keys, err := d.egress.Keys()
	for _, key := range keys {
		live, unknown := isLive(key)
		if unknown != nil {
			return errors.Join(err, unknown)
		}
		if !live {
			err = errors.Join(err, d.egress.Dismiss(ctx, key))
		}
	}
	return errors.Join(err, d.egress.Prune())
}

// IsServed says whether the sandbox of a record has its network. A sandbox in the proxied network has none
// if both processes of this network were killed.
func (n Networks) IsServed(ctx context.Context, id string, r record.Record) (bool, error) {
	if r.Config.Network != spec.NetworkProxied {
		return true, nil
	}
	names, isKnown, err := n.NamesOf(id)
	if err != nil || !isKnown {
		return false, err
	}
	return n.egress().Has(ctx, egressKey(names))
}

// Restore serves the sandbox again if both processes of the proxied network were killed. If a program inside has
// taken a port of the network meanwhile, the sandbox has no network, and a note says so. The same holds if the
// network was withheld after a change that failed. The caller must hold the sandbox.
func (n Networks) Restore(ctx context.Context, box *record.Sandbox) error {
	r, err := record.Read(box.Path())
	if err != nil || r.Rewiring { // EndChange has failed, and the record may have the network from before
		return err
	}
	if isServed, err := n.IsServed(ctx, box.ID, r); isServed || err != nil {
		return err
	}
	names, _, err := n.NamesOf(box.ID)
	if err != nil {
		return err
	}
	isWithheld, err := n.egress().IsWithheld(ctx, egressKey(names))
	if err != nil {
		return err
	}
	if isWithheld {
		return n.endWithout(ctx, box, r, errNotKept)
	}
	p, err := newProxied(names, r)
	if err != nil {
		return err
	}
	namespace, err := record.OpenNetwork(r.Init)
	if err != nil {
		return box.Why(ctx, &fault.SandboxError{ID: box.ID, Err: fault.ErrNotRunning})
	}
	defer namespace.Close()
	err = n.proxied().admitAgain(ctx, namespace, p)
	if errors.Is(err, unix.EADDRINUSE) { // an error here would let the sandbox stop all commands of its owner
		return n.endWithout(ctx, box, r, fmt.Errorf("serve the sandbox again: %w", err))
	}
	return err
}

// killTime is how long the sockets of a killed process may stay.
const killTime = 2 * time.Second

// admitAgain admits a sandbox whose earlier worker can still be on its way out.
func (d proxied) admitAgain(ctx context.Context, namespace *os.File, p proxiedShare) error {
	for end := time.Now().Add(killTime); ; {
		err := d.admit(ctx, namespace, p)
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			return err
		}
		if err := statedir.Sleep(ctx, killTime/100); err != nil {
			return err
		}
	}
}

// Decider opens the channel of the one that decides for a sandbox whose configuration has Ask: see
// [egress.Egress.Decider].
func (n Networks) Decider(ctx context.Context, id string) (*os.File, error) {
	r, err := record.Read(n.Dir(id))
	if err != nil {
		return nil, err
	}
	names, err := n.namesOf(id)
	if err != nil {
		return nil, err
	}
	if !r.Config.Ask {
		return nil, &fault.ConfigError{Reason: "ask: the sandbox asks for no decisions; set it with the network"}
	}
	d, err := n.egress().Decider(ctx, egressKey(names))
	if err != nil {
		return nil, err
	}
	return d.Hand()
}

// Events are the kept events of the sandbox in the proxied network: see [egress.Egress.Events]. There are none for a
// sandbox that was never there.
func (n Networks) Events(ctx context.Context, id string, follow bool) iter.Seq2[spec.NetworkEvent, error] {
	names, isKnown, err := n.NamesOf(id) // now: another user's sandbox can get the id later
	return func(yield func(spec.NetworkEvent, error) bool) {
		if err != nil {
			yield(spec.NetworkEvent{}, err)
		}
		if err != nil || !isKnown {
			return
		}
		for event, err := range n.egress().Events(ctx, egressKey(names), follow) {
			if errors.Is(err, egress.ErrUnknown) || !yield(event, err) {
				return
			}
		}
	}
}

// TellsFailures says whether Refusals of a sandbox have connections that failed, too: the reason can be a way out.
func (n Networks) TellsFailures(r record.Record) bool { return r.Upstream != nil || hintOf(r) != "" }

// Refusals are the reasons of the last refusals since a time, each once, and with isFailedToo those of allowed
// connections that have not reached their server. They only help a reader: an error ends the list.
func (n Networks) Refusals(ctx context.Context, id string, since time.Time, isFailedToo bool, most int) (reasons []string) {
	for event, err := range n.Events(ctx, id, false) {
		if err != nil {
			break
		}
		isTold := event.Decision == spec.NetworkDenied || isFailedToo && event.Decision == spec.NetworkFailed
		if !isTold || event.Time.Before(since) {
			continue
		}
		if i := slices.Index(reasons, event.Reason); i >= 0 {
			reasons = slices.Delete(reasons, i, i+1)
		}
		if reasons = append(reasons, event.Reason); len(reasons) > most {
			reasons = reasons[1:]
		}
	}
	return reasons
}

// errCounted refuses a second count of a quota.
func errCounted(other spec.Network) error {
	return fault.Refusal(&spec.FieldError{Field: "network", Problem: fmt.Sprintf(
		"the quota of this sandbox counts the network %q, and it cannot count two networks; make another sandbox", other)})
}

// checkQuota refuses the other one of two networks that count a quota of their own.
func (n Networks) checkQuota(ctx context.Context, id string, now, next spec.Config) error {
	if next.Limits.NetworkQuota == 0 || next.Network == spec.NetworkNone || next.Network == now.Network {
		return nil
	}
	names, isKnown, err := n.NamesOf(id)
	if err != nil || !isKnown {
		return err
	}
	if next.Network == spec.NetworkProxied {
		if now.Network == spec.NetworkFull || n.router().HasNote(linkName(names)) {
			return errCounted(spec.NetworkFull)
		}
		return nil
	}
	_, err = n.egress().Counts(ctx, egressKey(names))
	if now.Network == spec.NetworkProxied || err == nil || n.egress().Keeps(egressKey(names)) {
		return errCounted(spec.NetworkProxied)
	}
	if errors.Is(err, egress.ErrUnknown) {
		return nil
	}
	return err
}
