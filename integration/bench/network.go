package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// networks are a host and the internet behind it, as namespaces of the bench, so that nothing
// changes the machine's own network.
type networks struct {
	o              options
	dir            string
	host, internet *os.File
	program        []string // the runtime, with its directories
	manager        *sandbox.Manager
	ends           []func() error
	made           int // members, also those that are gone
}

// internetAddress is the address of the internet's server.
const internetAddress = "9.9.9.9:80"

// openNetworks measures the costs of --network full.
func openNetworks(o options, dir string) (_ []trial, done func() error, err error) {
	n, done, err := newNetworks(o, dir)
	if err != nil {
		return nil, nil, err
	}
	return []trial{trialSetup(n.starts), trialSetup(n.stream), trialSetup(n.attach), trialSetup(n.cut)}, done, nil
}

func newNetworks(o options, dir string) (n *networks, done func() error, err error) {
	n = &networks{o: o, dir: dir}
	done = func() error { return closeAll(n.ends) }
	defer func() {
		if err != nil {
			err = errors.Join(err, done())
		}
	}()
	if n.host, err = n.namespace(); err != nil {
		return nil, nil, err
	}
	if n.internet, err = n.namespace(); err != nil {
		return nil, nil, err
	}
	err = n.shell(n.host, `ip link add wan type veth peer name lan && ip link set lan netns /proc/self/fd/4 &&
		ip link set wan up && ip address add 9.9.9.1/24 dev wan && ip route add default via 9.9.9.9`, n.internet)
	if err == nil {
		err = n.shell(n.internet, "ip link set lan up && ip address add 9.9.9.9/24 dev lan")
	}
	if err == nil {
		err = n.serve()
	}
	if err == nil {
		err = n.launcher()
	}
	if err != nil {
		return nil, nil, err
	}
	return n, done, nil
}

// A trialSetup prepares a trial just before the trial runs.
type trialSetup func() (trial, error)

func (s trialSetup) run(w io.Writer, o options) error {
	t, err := s()
	if err != nil {
		return err
	}
	return t.run(w, o)
}

func (n *networks) namespace() (*os.File, error) {
	f, err := netns.Create()
	if err == nil {
		n.ends = append(n.ends, f.Close)
	}
	return f, err
}

func (n *networks) shell(namespace *os.File, line string, others ...*os.File) error {
	return capture(netnstest.Command(exec.Command("sh", "-c", line), namespace, others...))
}

// serve reads all that clients send to the internet's server, and then answers with one byte.
func (n *networks) serve() error {
	return netns.Do(n.internet, func() error {
		l, err := net.Listen("tcp", internetAddress)
		if err != nil {
			return err
		}
		n.ends = append(n.ends, l.Close)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go swallow(c)
			}
		}()
		return nil
	})
}

func swallow(c net.Conn) {
	defer c.Close()
	buffer := make([]byte, 1<<20)
	for {
		if _, err := c.Read(buffer); err != nil {
			_, _ = c.Write(buffer[:1]) // the client learns of a lost byte by itself
			return
		}
	}
}

// launcher starts a launcher on the host.
func (n *networks) launcher() (err error) {
	n.program = []string{n.o.binary, "--root", n.o.root(n.dir, "sandboxes"), "--data", filepath.Join(n.dir, "data")}
	n.manager, err = sandbox.NewManager(sandbox.ManagerConfig{Launcher: n.onHost(append(n.program, "launcher", "--fd", "3")...)})
	if err == nil {
		n.ends = append(n.ends, n.manager.Close)
	}
	return err
}

// onHost is a command line that runs on the host.
func (n *networks) onHost(args ...string) []string {
	return append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), n.host.Fd())}, args...)
}

// starts compares sandboxes without and with the outside. One sandbox with the outside stays up.
func (n *networks) starts() (trial, error) {
	m := n.manager
	if _, err := m.Create(context.Background(), sandbox.Config{Network: sandbox.NetworkFull}, sandbox.Tied()); err != nil {
		return nil, err
	}
	life := func(network sandbox.Network) func() error {
		return func() error {
			box, err := m.Create(context.Background(), sandbox.Config{Network: network}, sandbox.Tied())
			if err != nil {
				return err
			}
			return errors.Join(execIn(box, "true"), box.Close())
		}
	}
	const (
		none, full     = "create to closed, none", "create to closed, full"
		doNone, doFull = "do, none", "do, full"
	)
	do := func(network string) []string {
		return n.onHost(append(n.program, "do", "--network", network, "--", "true")...)
	}
	only := []string{n.o.binary, "--root", n.o.root(n.dir, "alone"), "--data", filepath.Join(n.dir, "data"), "do", "--network", "full", "--", "true"}
	return contest{
		title: "Starts with a network",
		about: "Sandboxes that run `true`, from Go with a launcher that is up, and by `do`. One sandbox with `full` stays up, except beside \"the only one\", whose router comes and goes.",
		unit:  "ms", base: doNone, rounds: n.o.rounds, measure: milliseconds,
		peers: []peer{
			{name: hostPeer, args: []string{filepath.Join(n.o.peers, "bin/busybox"), "true"}},
			{name: none, version: "this tree's", call: life(sandbox.NetworkNone)},
			{name: full, version: "this tree's", call: life(sandbox.NetworkFull)},
			{name: doNone, args: absolute(do("none"))},
			{name: doFull, args: absolute(do("full"))},
			{name: doFull + ", the only one", args: absolute(n.onHost(only...))},
		},
		extras: []extra{{doFull, doNone, doNone, 0.3}, {doFull, doNone, hostPeer, 5}, {full, none, none, 0.3}, {full, none, hostPeer, 5}},
	}, nil
}

// absolute is a command line with the path of its program.
func absolute(args []string) []string {
	if path, err := exec.LookPath(args[0]); err == nil {
		args[0] = path
	}
	return args
}

// streamSize is the number of bytes of one stream.
const streamSize = 64 << 20

// stream compares the router with a veth pair and masquerade, both made for one namespace.
func (n *networks) stream() (trial, error) {
	plain, err := n.namespace()
	if err != nil {
		return nil, err
	}
	err = n.shell(n.host, `ip link add plain type veth peer name eth0 netns /proc/self/fd/4 &&
		ip link set plain up && ip address add 10.77.0.1/24 dev plain && echo 1 > /proc/sys/net/ipv4/ip_forward &&
		nft 'table ip plain { chain hide { type nat hook postrouting priority srcnat; ip saddr 10.77.0.0/24 masquerade; }; }'`, plain)
	if err == nil {
		err = n.shell(plain, "ip link set eth0 up && ip address add 10.77.0.2/24 dev eth0 && ip route add default via 10.77.0.1")
	}
	if err != nil {
		return nil, err
	}
	ours, err := n.member(n.router("stream"), 1)
	if err != nil {
		return nil, err
	}
	const base, routed = "veth pair with masquerade", "through the router"
	send := func(namespace *os.File) func() error {
		return func() error { return netns.Do(namespace, func() error { return sendStream(internetAddress) }) }
	}
	return contest{
		title: "One TCP stream",
		about: fmt.Sprintf("A namespace sends %d MiB to a namespace behind the host. A throughput of at least 0.95 of the veth pair's is a time of at most 1.05.", streamSize>>20),
		unit:  "ms", base: base, rounds: max(n.o.rounds/4, 1), measure: milliseconds,
		peers: []peer{
			{name: base, version: "by hand", call: send(plain)},
			{name: routed, version: "this tree's", call: send(ours.namespace)},
		},
		bounds: []bound{{routed, base, 1 / 0.95}},
	}, nil
}

func sendStream(to string) error {
	c, err := net.DialTimeout("tcp", to, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	block := make([]byte, 1<<20)
	for range streamSize / len(block) {
		if _, err := c.Write(block); err != nil {
			return err
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.ReadFull(c, block[:1])
	return err
}

func (n *networks) router(name string) router.Router {
	return router.Router{Dir: filepath.Join(n.dir, name), Resolv: "/etc/resolv.conf"}
}

// A member is a namespace in place of a sandbox.
type member struct {
	networks  *networks
	router    router.Router
	namespace *os.File
	router.Member
}

func (n *networks) newMember(r router.Router, number uint32) (*member, error) {
	namespace, err := netns.Create()
	if err != nil {
		return nil, err
	}
	n.made++ // no two members have the same link, at any time
	return &member{n, r, namespace, router.Member{Link: fmt.Sprintf("s-%d", n.made), Number: number}}, nil
}

func (m *member) attach() error {
	return netns.Do(m.networks.host, func() error {
		_, err := m.router.Attach(context.Background(), m.namespace, m.Member)
		return err
	})
}

func (m *member) detach() error {
	return netns.Do(m.networks.host, func() error {
		_, err := m.router.Detach(context.Background(), m.namespace, m.Link)
		return err
	})
}

// member is attached until the end of the field.
func (n *networks) member(r router.Router, number uint32) (*member, error) {
	m, err := n.newMember(r, number)
	if err != nil {
		return nil, err
	}
	n.ends = append(n.ends, m.namespace.Close, m.detach)
	return m, m.attach()
}

// attachCrowd is the number of the last member.
const attachCrowd = 1000

// attach compares the first members of a router with the last ones.
func (n *networks) attach() (trial, error) {
	few, many := n.router("few"), n.router("many")
	if _, err := n.member(few, 0); err != nil {
		return nil, err
	}
	for number := range uint32(attachCrowd - 1) {
		if _, err := n.member(many, number); err != nil {
			return nil, err
		}
	}
	const first, last = "attach the 2nd sandbox", "attach the 1,000th sandbox"
	return contest{
		title: "Attach to a router",
		about: "A namespace is connected with a router that has other members.",
		unit:  "ms", base: first, rounds: n.o.rounds, measure: clocked,
		peers: []peer{
			{name: first, version: "this tree's", clock: n.attachment(few)},
			{name: last, version: "this tree's", clock: n.attachment(many)},
		},
		bounds: []bound{{last, first, 1.5}},
	}, nil
}

// attachment is a clock of an attach.
func (n *networks) attachment(r router.Router) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		m, err := n.newMember(r, attachCrowd)
		if err != nil {
			return 0, err
		}
		defer m.namespace.Close()
		return timed(m.attach, m.detach)()
	}
}

// cut measures the end of a network with a connection.
func (n *networks) cut() (trial, error) {
	r := n.router("cut")
	if _, err := n.member(r, 0); err != nil {
		return nil, err
	}
	box, err := n.manager.Create(context.Background(), sandbox.Config{Network: sandbox.NetworkFull}, sandbox.Tied())
	if err != nil {
		return nil, err
	}
	set := func(network sandbox.Network) func() error {
		return func() error {
			_, err := box.SetNetwork(context.Background(), sandbox.NetworkGrant{Network: network})
			return err
		}
	}
	const link, live = "cut of a live link", "cut of a live sandbox"
	program := filepath.Join(n.o.peers, "bin/busybox")
	return contest{
		title: "Cuts",
		about: "A namespace with an open TCP connection loses its link to a router that has another member: the connection has ended then. And a sandbox that is up changes from `full` to `none`.",
		unit:  "ms", base: hostPeer, rounds: n.o.rounds, measure: clocked,
		peers: []peer{
			{name: hostPeer, version: "os/exec", clock: timed(func() error { return exec.Command(program, "true").Run() }, nothing)},
			{name: link, version: "this tree's", clock: n.severance(r)},
			{name: live, version: "this tree's", clock: timed(set(sandbox.NetworkNone), set(sandbox.NetworkFull))},
		},
		bounds: []bound{{link, hostPeer, 5}, {live, hostPeer, 5}},
	}, nil
}

// severance is a clock of a detach.
func (n *networks) severance(r router.Router) func() (time.Duration, error) {
	return func() (took time.Duration, err error) {
		m, err := n.newMember(r, 1)
		if err != nil {
			return 0, err
		}
		defer m.namespace.Close()
		if err := m.attach(); err != nil {
			return 0, errors.Join(err, m.detach())
		}
		var c net.Conn
		err = netns.Do(m.namespace, func() (err error) {
			c, err = net.Dial("tcp", internetAddress)
			return err
		})
		if err != nil {
			return 0, errors.Join(err, m.detach())
		}
		defer c.Close()
		return timed(m.detach, func() error {
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				return errors.New("the connection was not cut")
			}
			return nil
		})()
	}
}
