package part

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/networks"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// network connects sandboxes with the outside. The networks find their own rest: [networks.Networks.Prune].
type network struct{ networks.Networks }

func (p *Parts) networks() networks.Networks { return networks.Networks{Roots: p.Roots} }

func (network) find() ([]string, error) { return nil, nil }

func (n network) release(ctx context.Context, r *Remains) error {
	if err := n.Disconnect(ctx, r.ID); err != nil {
		return err
	}
	return n.RemoveLevelDrafts(r.ID)
}

// A networkNamespace returns a sandbox's network namespace. A goroutine makes the namespace while the
// launcher does other steps: the kernel takes about as long for it as for all the mounts.
type networkNamespace func() (*os.File, error)

// begin calls f in a goroutine. The returned function waits for the result.
func begin[T any](f func() (T, error)) (wait func() (T, error)) {
	wait = sync.OnceValues(f)
	go func() { _, _ = wait() }() // the caller gets the error
	return wait
}

// path returns a path of the namespace. Each process of root can use the path until close.
func (n networkNamespace) path() (string, error) {
	namespace, err := n()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd()), nil
}

// close closes the namespace's file. The namespace then lasts as long as the sandbox.
func (n networkNamespace) close() error {
	namespace, err := n()
	if err != nil {
		return nil //nolint:nilerr // it was never open
	}
	return namespace.Close()
}

// hostResolv is the resolv.conf(5) of the host.
const hostResolv = "/etc/resolv.conf"

// takeSearch gives a root the search domains of the host, if the sandbox has a network. A host without a readable file
// has none. ndots is for full alone: with proxied, names with a dot come first as they are, so a rule with * and
// --observe do not lead them to a search domain. The other options of the host are about its name servers, and
// the sandbox has another one.
func takeSearch(r *rootfs.Config, network spec.Network) {
	if network == spec.NetworkNone {
		return
	}
	host, err := nameserver.ReadConfig(hostResolv)
	if err != nil {
		return
	}
	r.Search = host.Search
	if network == spec.NetworkFull && host.Ndots >= 0 {
		r.ResolverOptions = []string{fmt.Sprintf("ndots:%d", host.Ndots)}
	}
}

// setSearch gives a blank, which has no network, the search domains of the request.
func (m *Making) setSearch(shown *rootfs.Shown) error {
	r := rootfs.Config{NameServer: spec.NameServer}
	takeSearch(&r, m.Request.Config.Network)
	if len(r.Search)+len(r.ResolverOptions) == 0 {
		return nil
	}
	return shown.SetResolver(r)
}

// beginNetwork begins to make the sandbox's network namespace, and to connect it.
func (m *Making) beginNetwork(ctx context.Context) error {
	// The group is made before Wake, because that would wait for the end of Wake. Gosched lets each
	// goroutine begin now, also if Go has only one thread.
	m.parts.Tending.Go(cgroups.Wake)
	runtime.Gosched()
	m.network = begin(netns.Create)
	m.atEnd(m.network.close)
	runtime.Gosched()
	m.connect(ctx)
	return nil
}

// adoptNetwork begins to connect the network namespace of a blank.
func (m *Making) adoptNetwork(ctx context.Context) {
	init := m.Record.Init
	m.network = begin(func() (*os.File, error) { return record.OpenNetwork(init) })
	m.atEnd(m.network.close)
	m.connect(ctx)
}

// connect begins to connect the sandbox with the outside, if the configuration asks for that. The
// work runs in a goroutine beside other steps, because the kernel takes some milliseconds for a
// link. It ends before the sandbox is up, and before its removal after an error.
func (m *Making) connect(ctx context.Context) {
	network, names, r := m.network, m.names, m.Record
	m.connected = begin(func() ([]netip.Addr, error) { return m.parts.networks().Attach(ctx, network, names, r) })
	m.atEnd(func() error {
		_, _ = m.connected() // publish has the error
		return nil
	})
}

// publish waits for the connection, notes the sandbox's addresses, and opens its published ports.
func (m *Making) publish(ctx context.Context) error {
	addresses, err := m.connected()
	if err != nil {
		return err
	}
	n := m.parts.networks()
	if err := n.Publish(ctx, m.network, m.names, m.Record); err != nil {
		return err
	}
	m.Record = networks.Connected(m.Record, addresses)
	return nil
}
