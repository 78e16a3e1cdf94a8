package router

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// The follower is a process of each router. It follows the host: forwarding of new devices, the guard, and the
// host's own addresses in the router's table. It has CAP_NET_ADMIN in two threads, one in the host's network
// namespace and one in the router's, and no other privilege.

// followerKind is the kind of the worker.
const followerKind = "follower"

// lookTime is the least time between two looks at the host.
const lookTime = 100 * time.Millisecond

// retryTime is the time until the next look after one that failed, such as at a device that went.
const retryTime = time.Second

func (r Router) followerFile() string { return filepath.Join(r.Dir, "follower") }

// repairFollower starts a follower unless one runs.
func (o *lockedRouter) repairFollower() error {
	id, err := readJSON[process.ID](o.router.followerFile())
	if err == nil && id.Lives() {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the follower's process: %w", err)
	}
	var files []*os.File // the locks are the follower's own: of new open files
	defer func() { descriptor.Close(files...) }()
	for _, path := range []string{filepath.Dir(o.router.Dir), o.router.Dir} {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("start the follower: %w", err)
		}
		files = append(files, f)
	}
	all := append([]*os.File{o.namespace}, files...)
	return worker.Start(followerKind, []string{o.router.Dir}, all, func(id process.ID) error {
		return statedir.ReplaceJSON(o.router.followerFile(), id)
	})
}

// TakeOver does not return in the follower of a router. Each program that uses a Router calls TakeOver before it
// does anything else.
func TakeOver() { worker.TakeOverPrivileged(followerKind, runFollower) }

// A follower works in two threads.
type follower struct {
	router    Router
	turn, dir *os.File // for the lock
	inRouter  chan<- func()
	host      *netlink.Handle
	last      state // of the last look
}

// runFollower is the life of the process.
func runFollower(args []string) error {
	if len(args) != 1 {
		return errors.New("the arguments are not a follower's")
	}
	runtime.LockOSThread()
	inRouter, err := dropInTwoThreads(worker.File(0))
	if err != nil {
		return err
	}
	changes, err := hostChanges()
	if err != nil {
		return err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	f := &follower{router: Router{Dir: args[0]}, turn: worker.File(1), dir: worker.File(2), inRouter: inRouter, host: host}
	for {
		err := f.refresh() // first at the changes before the follower listened
		if isNoDevice(err) {
			return nil // the router is gone
		}
		if err != nil {
			time.Sleep(retryTime)
			continue
		}
		time.Sleep(lookTime)
		<-changes
	}
}

// dropInTwoThreads drops the privileges of all threads, except CAP_NET_ADMIN of the calling thread and of one in the
// router's namespace, which calls the functions that it gets.
func dropInTwoThreads(namespace *os.File) (chan<- func(), error) {
	calls := make(chan func())
	ready, dropped := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // for ever
		err := netns.Set(netns.NsHandle(namespace.Fd()))
		if err == nil {
			err = worker.KeepCapabilities()
		}
		ready <- err
		<-dropped
		ready <- worker.ReduceCapabilities(unix.CAP_NET_ADMIN)
		for f := range calls {
			f()
		}
	}()
	err := <-ready
	if err == nil {
		err = worker.KeepCapabilities()
	}
	if err == nil {
		err = worker.Drop()
	}
	if err != nil {
		return nil, err
	}
	close(dropped)
	return calls, errors.Join(worker.ReduceCapabilities(unix.CAP_NET_ADMIN), <-ready)
}

// hostChanges tells of changes of devices, addresses, rules and settings of forwarding, and of removed tables of
// nftables. Changes of routes do not matter (see device), and a router of the internet has thousands each second.
// Changes that are not fetched become one.
func hostChanges() (<-chan struct{}, error) {
	const ipv4Netconf, ipv6Netconf, tables = 24, 25, 7 // RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF, NFNLGRP_NFTABLES
	routing, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, ipv4Netconf, ipv6Netconf)
	if err != nil {
		return nil, fmt.Errorf("follow the host: %w", err)
	}
	firewall, err := nl.Subscribe(unix.NETLINK_NETFILTER, tables)
	if err != nil {
		return nil, fmt.Errorf("follow the host's nftables: %w", err)
	}
	changes := make(chan struct{}, 1)
	go listen(routing, changes, func(uint16) bool { return true })
	go listen(firewall, changes, func(kind uint16) bool { return kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE })
	return changes, nil
}

// listen tells of messages that matter, and of lost messages, for ever.
func listen(s *nl.NetlinkSocket, changes chan<- struct{}, matters func(kind uint16) bool) {
	for {
		messages, _, err := s.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) { // lost changes are changes
			time.Sleep(lookTime)
		}
		if err == nil && !slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool { return matters(m.Header.Type) }) {
			continue
		}
		select {
		case changes <- struct{}{}:
		default:
		}
	}
}

// refresh brings the router up to date with the host. If something has removed the router's device or its table, no
// sandbox has a network, and nothing guards the host's devices: refresh switches their settings off. The next command of
// the router repairs the table and switches the settings on again.
func (f *follower) refresh() error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	o := &lockedRouter{router: f.router, host: f.host}
	name := f.router.hostLink()
	if err := o.state.read(f.host, name); isNoDevice(err) {
		if _, e := restore(f.host, name, f.last); e != nil {
			return e
		}
		return err
	} else if err != nil {
		return err
	}
	f.last = o.state.clone()
	table, isThere, err := f.router.hostSide().openTable()
	if err == nil && !isThere {
		return f.close(o.state, table)
	}
	if err == nil {
		isThere, err = table.hasGuard()
	}
	if err != nil || !isThere {
		return err
	}
	link, err := f.host.LinkByName(name)
	if err != nil {
		return err
	}
	w, err := o.noteForwarding(link)
	f.last = o.state.clone()
	if err == nil {
		err = errors.Join(o.repairRules(name), o.enableForwarding(link, w))
	}
	if err != nil {
		return err
	}
	done := make(chan error)
	f.inRouter <- func() { done <- o.refreshHostSets() }
	return <-done
}

// close switches off the settings that the tables of other routers do not guard.
func (f *follower) close(s state, table *firewall) error {
	routers, err := others(f.host, f.router.hostLink())
	if err != nil {
		return err
	}
	var guards []state
	for _, r := range routers {
		isThere, err := table.has(r.table)
		if err != nil {
			return err
		}
		if isThere {
			guards = append(guards, r)
		}
	}
	return switchOff(f.host, s, guards)
}

// lock is [Router.lock] by open files.
func (f *follower) lock() (unlock func(), err error) {
	if err := descriptor.Lock(context.Background(), f.turn, descriptor.Exclusive); err != nil {
		return nil, err
	}
	err = descriptor.Lock(context.Background(), f.dir, descriptor.Exclusive)
	descriptor.Unlock(f.turn)
	if err != nil {
		return nil, err
	}
	return func() { descriptor.Unlock(f.dir) }, nil
}
