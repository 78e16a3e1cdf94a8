package router

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Router connects the sandboxes of a state root with the host. The caller needs CAP_NET_ADMIN
// and CAP_SYS_ADMIN on the host. The host is the caller's network namespace.
//
// The router comes with the first sandbox and goes with the last one.
//
// The context of a method ends only the wait for other processes that use the router. A change that
// has begun goes on.
type Router struct {
	// Dir is a directory of the state root, for the router alone. The router's network
	// namespace is mounted there.
	Dir string
	// Resolv is the resolv.conf(5) with the host's name servers.
	Resolv string
	// Range has the IPv4 addresses of the sandboxes: see [ParseRange]. The router takes a free part of
	// it. The zero value is any private range without a route of the host.
	Range netip.Prefix
	// Sandbox opens the network namespace of the sandbox with a number. The error is
	// [fs.ErrNotExist] if the sandbox has ended. With nil, a change of one sandbox ends no sockets
	// of others.
	Sandbox func(number uint32) (*os.File, error)
}

// A Member is a sandbox that is connected.
type Member struct {
	// Link is the name of the device in the router. No two sandboxes have the same name, at any
	// time: elements of an earlier sandbox could stay after a crash.
	Link string
	// Number gives the sandbox's addresses. It is the number of a range of user ids.
	Number uint32
	// Deny wins over Allow.
	Allow, Deny []spec.AddressRule
	// Named are the rules of Allow that can open an address of the host or of another sandbox.
	Named []spec.AddressRule
	// Late says that the rules were made earlier. They open no other sandbox: another sandbox can
	// have the address by now.
	Late bool
	// Rate bounds the bytes per second in each direction. Quota bounds the bytes of both
	// directions together, also over several connections of one sandbox. 0 is no bound.
	Rate, Quota uint64
}

func (r Router) seed() [sha256.Size]byte { return sha256.Sum256([]byte(r.Dir)) }

// hostLink is the name of the host's device.
func (r Router) hostLink() string {
	seed := r.seed()
	return linkPrefix + hex.EncodeToString(seed[:6])
}

func (r Router) pinPath() string { return filepath.Join(r.Dir, "router") }

// Attach connects a sandbox's network namespace, and returns the sandbox's addresses. There is no IPv6
// address if the host forwards no IPv6. Nothing passes before all is set. After an error call Detach.
func (r Router) Attach(ctx context.Context, sandbox *os.File, m Member) ([]netip.Addr, error) {
	if m.Number > maxNumber {
		return nil, fmt.Errorf("the sandbox has the number %d; at most %d have an address", m.Number, maxNumber)
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	o, err := r.open()
	if err != nil {
		return nil, fmt.Errorf("connect the sandbox: %w", err)
	}
	defer o.close()
	if err := o.state.checkRange(r.Range); err != nil {
		return nil, fmt.Errorf("connect the sandbox: %w", err)
	}
	if err := o.attach(sandbox, m); err != nil {
		return nil, fmt.Errorf("connect the sandbox: %w", err)
	}
	return o.state.addresses().ofSandbox(m.Number), nil
}

// Detach disconnects the sandbox with this link, also after an Attach that failed. First the
// published ports close, then packets stop, then the sandbox's connections end. Detach returns the
// number of sockets that ended. The router keeps the traffic of the sandbox for the next Attach. If
// ctx ends the wait for the router, only the sandbox's side is disconnected.
//
// If the processes of the sandbox have ended, sandbox is nil: the kernel then removes the
// connections and the link with the namespace, some 10 ms later.
func (r Router) Detach(ctx context.Context, sandbox *os.File, link string) (ended int, err error) {
	before := func() error { return r.endPublisher(link) }
	var s disconnection
	err = r.change(ctx, before, func(namespace *os.File) (err error) {
		s, err = r.detach(namespace, sandbox, link)
		return err
	}, func() error {
		if sandbox != nil {
			return nil
		}
		return r.ledger().prune(func(l string) (bool, error) { return l != link, nil })
	})
	if sandbox != nil { // without the router's lock: a sandbox can have many sockets
		n, end := endConnections(sandbox, noneStays)
		ended, err = n, errors.Join(err, end, r.endPeers(s.Others, s.Addresses, noneStays), silence(sandbox))
	}
	if err != nil {
		return ended, fmt.Errorf("disconnect the sandbox: %w", err)
	}
	return ended, nil
}

// Regrant replaces the rules of a sandbox that is connected. First the packets stop that the new rules
// do not permit. Then the sockets end that have such a peer. Regrant returns their number.
func (r Router) Regrant(ctx context.Context, sandbox *os.File, m Member) (ended int, err error) {
	unlock, err := r.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	o, err := r.open()
	if err != nil {
		return 0, fmt.Errorf("change the sandbox's network: %w", err)
	}
	defer o.close()
	p, err := o.regrant(m)
	if err == nil {
		unlock() // a sandbox can have many sockets
		ended, err = endConnections(sandbox, p.reaches)
		err = errors.Join(err, r.endPeers(p.others, p.ofSandbox(m.Number), p.permit))
	}
	if err != nil {
		return ended, fmt.Errorf("change the sandbox's network: %w", err)
	}
	return ended, nil
}

// Prune removes the remains of killed processes: the links of sandboxes that are not live, and a
// router without sandboxes. It calls isLive while no other process can connect a sandbox.
func (r Router) Prune(ctx context.Context, isLive func(link string) (bool, error)) error {
	err := r.change(ctx,
		func() error { return r.endPublishers(isLive) },
		func(namespace *os.File) error { return r.forgetGone(namespace, isLive) },
		func() error { return r.ledger().prune(isLive) })
	if err != nil {
		return fmt.Errorf("clean up the router: %w", err)
	}
	return nil
}

// change calls before, then f if there is a router, and then after. A router without sandboxes is
// removed before after is called. The links of dying sandboxes go with that router.
func (r Router) change(ctx context.Context, before func() error, f func(namespace *os.File) error, after func() error) error {
	if !statedir.Exists(r.Dir) { // there was no router
		return nil
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// A publisher that does not end keeps no packet of the sandbox from its end.
	return errors.Join(before(), r.changeLocked(f), after())
}

func (r Router) changeLocked(f func(namespace *os.File) error) error {
	namespace, err := r.namespace()
	if errors.Is(err, fs.ErrNotExist) {
		return r.remove()
	}
	if err != nil {
		return err
	}
	defer namespace.Close()
	earlier := r.severance().finish(namespace) // an error keeps no other sandbox connected
	if err := f(namespace); err != nil {
		return errors.Join(err, earlier)
	}
	if earlier != nil { // f can have finished this, too
		if err := r.severance().finish(namespace); err != nil {
			return err
		}
	}
	if used, err := isUsed(namespace); used || err != nil {
		return err
	}
	return r.remove()
}

// lock keeps other processes from changes of the router.
func (r Router) lock(ctx context.Context) (unlock func(), err error) {
	return r.inTurn(ctx, descriptor.Exclusive)
}

// inTurn locks the router's directory. Each process waits at the parent directory for its turn, so
// those that only read do not pass one that waits for a change: flock(2) alone lets them pass.
func (r Router) inTurn(ctx context.Context, how descriptor.Hold) (unlock func(), err error) {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, err
	}
	turn, err := lockDir(ctx, filepath.Dir(r.Dir), descriptor.Exclusive)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	f, err := lockDir(ctx, r.Dir, how)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

func lockDir(ctx context.Context, path string, how descriptor.Hold) (*os.File, error) {
	return descriptor.OpenLocked(ctx, path, unix.O_DIRECTORY|unix.O_NOFOLLOW, how)
}

// namespace opens the router's network namespace. Without a router the error is fs.ErrNotExist.
func (r Router) namespace() (*os.File, error) {
	f, err := os.Open(r.pinPath())
	if err != nil {
		return nil, err
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		f.Close()
		return nil, err
	}
	if s.Type != unix.NSFS_MAGIC {
		f.Close()
		return nil, fmt.Errorf("%s: no namespace is mounted: %w", r.pinPath(), fs.ErrNotExist)
	}
	return f, nil
}

// A lockedRouter is whole, and its lock is held.
type lockedRouter struct {
	router    Router
	namespace *os.File
	host      *netlink.Handle
	inner     *netlink.Handle // in the router's namespace
	state     state
}

func (o *lockedRouter) close() {
	if o.inner != nil {
		o.inner.Close()
	}
	if o.host != nil {
		o.host.Close()
	}
	o.namespace.Close()
}

// errHalfRemoved says that a process was killed while it removed the router.
var errHalfRemoved = errors.New("the router is removed only in part")

// open opens the router, and makes or repairs the missing parts.
func (r Router) open() (*lockedRouter, error) {
	o, err := r.openAsIs()
	if !errors.Is(err, errHalfRemoved) {
		return o, err
	}
	if err := r.remove(); err != nil {
		return nil, err
	}
	return r.openAsIs()
}

// openAsIs is open, but does not finish the removal of an older router.
func (r Router) openAsIs() (_ *lockedRouter, err error) {
	namespace, err := r.namespace()
	isNew := errors.Is(err, fs.ErrNotExist)
	if isNew {
		namespace, err = newNamespace()
	}
	if err != nil {
		return nil, err
	}
	o := &lockedRouter{router: r, namespace: namespace}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if o.host, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if o.inner, err = handleAt(namespace); err != nil {
		return nil, err
	}
	if err = r.severance().finish(namespace); err != nil { // first: remove takes the file
		return nil, err
	}
	if isNew {
		if err = o.build(); err == nil {
			err = r.mount(namespace)
		}
	} else if err = o.state.read(o.host, r.hostLink()); isNoDevice(err) {
		err = lostDevice(namespace, err)
	}
	for _, repair := range []func() error{o.repairHost, o.repairResolver, o.repairFollower} {
		if err == nil {
			err = repair()
		}
	}
	return o, err
}

// lostDevice describes the loss of the host's device. The removal of a router removes it early.
func lostDevice(namespace *os.File, lost error) error {
	if used, err := isUsed(namespace); err == nil && !used {
		return errHalfRemoved
	}
	return fmt.Errorf("%w; something has removed it: give all sandboxes with full the network none, or remove them", lost)
}

// mount keeps the namespace, once all in it is made. Until then a killed process leaves nothing:
// the link to the host ends with the namespace.
func (r Router) mount(namespace *os.File) error {
	f, err := os.OpenFile(r.pinPath(), os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	source := fmt.Sprintf("/proc/thread-self/fd/%d", namespace.Fd())
	if err := unix.Mount(source, r.pinPath(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the router's namespace: %w", err)
	}
	return nil
}

// remove removes the router and all that it has on the host.
func (r Router) remove() error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer host.Close()
	if err := r.endProcesses(); err != nil {
		return err
	}
	if err := r.hostSide().remove(host); err != nil {
		return err
	}
	err = unix.Unmount(r.pinPath(), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount the router's namespace: %w", err)
	}
	if err := erase.IgnoreMissing(os.Remove(r.pinPath())); err != nil {
		return err
	}
	return statedir.RemoveJSON(r.severance().file)
}
