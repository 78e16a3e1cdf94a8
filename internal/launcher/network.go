package launcher

import (
	"fmt"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A network returns a sandbox's network namespace. A goroutine makes the namespace while the
// launcher does other steps: the kernel takes about as long for it as for all the mounts.
type network func() (*os.File, error)

// begin calls f in a goroutine. The returned function waits for the result.
func begin[T any](f func() (T, error)) (wait func() (T, error)) {
	wait = sync.OnceValues(f)
	go func() { _, _ = wait() }() // the caller gets the error
	return wait
}

// path returns a path of the namespace. Each process of root can use the path until close.
func (n network) path() (string, error) {
	namespace, err := n()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd()), nil
}

// close closes the namespace's file. The namespace then lasts as long as the sandbox.
func (n network) close() {
	if namespace, err := n(); err == nil {
		namespace.Close()
	}
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
func (m *creation) setSearch(shown *rootfs.Shown) error {
	r := rootfs.Config{NameServer: spec.NameServer}
	takeSearch(&r, m.request.Config.Network)
	if len(r.Search)+len(r.ResolverOptions) == 0 {
		return nil
	}
	return shown.SetResolver(r)
}
