package capture

import (
	"os"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/sockets"
)

// An editor changes a network namespace through sockets that it has opened there. Their users need no
// thread in the namespace. On such a thread the packages of netlink are slow: each message has a
// goroutine of its own, and a change between goroutines is one between threads then.
type editor struct {
	namespace *os.File
	routes    *netlink.Handle
	filter    *nftables.Conn
}

func enter(namespace *os.File) (*editor, error) {
	in := &editor{namespace: namespace}
	err := netns.Do(namespace, func() (err error) {
		if in.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return operation("open a netlink socket", err)
		}
		if in.filter, err = nftables.New(nftables.AsLasting()); err != nil {
			return supported(err)
		}
		return nil
	})
	if err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

func (in *editor) close() {
	if in.routes != nil {
		in.routes.Close()
	}
	if in.filter != nil {
		_ = in.filter.CloseLasting() // no error matters: each request has its own
	}
}

// endSockets ends sockets of the namespace.
func (in *editor) endSockets(which sockets.Decision) error {
	return netns.Do(in.namespace, func() error {
		_, err := sockets.End(which)
		return err
	})
}
