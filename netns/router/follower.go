package router

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/worker"
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
func (o *opened) repairFollower() error {
	id, err := readProcess(o.router.followerFile())
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

func (r Router) endFollower() error {
	if err := endProcess(r.followerFile()); err != nil {
		return fmt.Errorf("end the follower: %w", err)
	}
	return nil
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
	f := &follower{Router{Dir: args[0]}, worker.File(1), worker.File(2), inRouter, host}
	for {
		err := f.look() // first at what has changed before the changes were heard
		if isNoDevice(err) {
			return nil // the router is gone
		}
		next := changes
		if err != nil {
			time.Sleep(retryTime)
			next = nil
		} else {
			time.Sleep(lookTime)
		}
		if next != nil {
			<-next
		}
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

// hostChanges tells of changes of devices, addresses, rules and settings of forwarding. Changes of routes do not
// matter (see device), and a router of the internet has thousands each second. Changes that are not fetched become one.
func hostChanges() (<-chan struct{}, error) {
	const ipv4Netconf, ipv6Netconf = 24, 25 // RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, ipv4Netconf, ipv6Netconf)
	if err != nil {
		return nil, fmt.Errorf("follow the host: %w", err)
	}
	changes := make(chan struct{}, 1)
	go func() {
		for {
			_, _, err := s.Receive()
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) { // lost changes are changes
				time.Sleep(lookTime)
			}
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes, nil
}

// look brings the router up to date with the host. If something has flushed the host's table, no sandbox has a
// network, and the next command of the router repairs it: look does nothing then.
func (f *follower) look() error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	o := &opened{router: f.router, host: f.host}
	name := f.router.hostLink()
	if err := o.state.read(f.host, name); err != nil {
		return err
	}
	table, isThere, err := f.router.openHostTable()
	if err == nil && isThere {
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

// lock is [Router.lock] by open files.
func (f *follower) lock() (unlock func(), err error) {
	if err := descriptor.Lock(context.Background(), f.turn); err != nil {
		return nil, err
	}
	err = descriptor.Lock(context.Background(), f.dir)
	_ = unix.Flock(int(f.turn.Fd()), unix.LOCK_UN)
	if err != nil {
		return nil, err
	}
	return func() { _ = unix.Flock(int(f.dir.Fd()), unix.LOCK_UN) }, nil
}
