package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	capturing "github.com/sandbox-runtime/sandbox-runtime/netns/capture"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const (
	// secureAddress is the address of the internet's HTTPS server, and localAddress that of the host's.
	secureAddress = "9.9.9.9:443"
	localAddress  = "127.0.0.1:443"
	// spliceAddress is the bare proxy on the host.
	spliceAddress = "127.0.0.1:81"
	// crowdOfProxied is the number of sandboxes whose processes are weighed.
	crowdOfProxied = 1000
)

// openProxied measures the costs of --network proxied, on a host and an internet like those of full.
func openProxied(o options, dir string) (_ []trial, done func() error, err error) {
	n, done, err := newNetworks(o, dir)
	if err != nil {
		return nil, nil, err
	}
	return []trial{trialSetup(n.proxiedStarts), trialSetup(n.proxiedChanges), trialSetup(n.proxiedStream), trialSetup(n.requests), trialSetup(n.refusals), trialSetup(n.weigh)}, done, nil
}

// proxiedStarts compares sandboxes without a network and with names. One sandbox with names stays up.
func (n *networks) proxiedStarts() (trial, error) {
	names := sandbox.Config{Allow: []string{"web.test"}}
	if _, err := n.manager.Create(context.Background(), names, sandbox.Tied()); err != nil {
		return nil, err
	}
	life := func(c sandbox.Config) func() error {
		return func() error {
			box, err := n.manager.Create(context.Background(), c, sandbox.Tied())
			if err != nil {
				return err
			}
			return errors.Join(execIn(box, "true"), box.Close())
		}
	}
	const (
		none, proxied     = "create to closed, none", "create to closed, proxied"
		doNone, doProxied = "do, none", "do, proxied"
	)
	do := func(flags ...string) []string {
		return absolute(n.onHost(append(append(append([]string{}, n.program...), append([]string{"do"}, flags...)...), "--", "true")...))
	}
	return contest{
		title: "Starts with a network of names",
		about: "Sandboxes that run `true`, from Go with a launcher that is up, and by `do`. One sandbox with `proxied` stays up.",
		unit:  "ms", base: doNone, rounds: n.o.rounds, measure: milliseconds,
		peers: []peer{
			{name: hostPeer, args: []string{filepath.Join(n.o.peers, "bin/busybox"), "true"}},
			{name: none, version: "this tree's", call: life(sandbox.Config{})},
			{name: proxied, version: "this tree's", call: life(names)},
			{name: doNone, args: do()},
			{name: doProxied, args: do("--allow", "web.test")},
		},
		extras: []extra{{doProxied, doNone, hostPeer, 1}, {proxied, none, hostPeer, 1}},
	}, nil
}

// proxiedChanges measures changes of a sandbox that is up.
func (n *networks) proxiedChanges() (trial, error) {
	box, err := n.manager.Create(context.Background(), sandbox.Config{}, sandbox.Tied())
	if err != nil {
		return nil, err
	}
	count := 0
	set := func(network sandbox.Network) func() error {
		return func() error {
			g := sandbox.NetworkGrant{Network: network}
			if network == sandbox.NetworkProxied {
				count++
				g.Allow = []string{fmt.Sprintf("web%d.test:%d", count, 1000+count)}
			}
			_, err := box.SetNetwork(context.Background(), g)
			return err
		}
	}
	const to, rules = "none to proxied", "other rules of proxied"
	program := filepath.Join(n.o.peers, "bin/busybox")
	return contest{
		title: "Changes of a network of names",
		about: "A sandbox that is up changes from `none` to `proxied`, and from one name and port to another.",
		unit:  "ms", base: hostPeer, rounds: n.o.rounds, measure: clocked,
		peers: []peer{
			{name: hostPeer, version: "os/exec", clock: timed(func() error { return exec.Command(program, "true").Run() }, nothing)},
			{name: to, version: "this tree's", clock: timed(set(sandbox.NetworkProxied), set(sandbox.NetworkNone))},
			{name: rules, version: "this tree's", clock: func() (time.Duration, error) {
				if err := set(sandbox.NetworkProxied)(); err != nil {
					return 0, err
				}
				return timed(set(sandbox.NetworkProxied), set(sandbox.NetworkNone))()
			}},
		},
		bounds: []bound{{to, hostPeer, 2}, {rules, hostPeer, 1}},
	}, nil
}

// insideOf opens the network namespace of a sandbox.
func (n *networks) insideOf(box *sandbox.Sandbox) (*os.File, error) {
	info, err := box.Info(context.Background())
	if err != nil {
		return nil, err
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", info.Pid))
	if err == nil {
		n.ends = append(n.ends, f.Close)
	}
	return f, err
}

// proxiedStream compares a stream through the proxy with one through a bare proxy of Go on the host.
func (n *networks) proxiedStream() (trial, error) {
	err := netns.Do(n.host, func() error {
		l, err := net.Listen("tcp", spliceAddress)
		if err == nil {
			n.ends = append(n.ends, l.Close)
			go n.splice(l)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	box, err := n.manager.Create(context.Background(), sandbox.Config{Allow: []string{internetAddress}}, sandbox.Tied())
	if err != nil {
		return nil, err
	}
	inside, err := n.insideOf(box)
	if err != nil {
		return nil, err
	}
	const base, proxied = "bare splice proxy", "proxied"
	send := func(namespace *os.File, to string) func() error {
		return func() error { return netns.Do(namespace, func() error { return sendStream(to) }) }
	}
	return contest{
		title: "One TCP stream through a proxy",
		about: fmt.Sprintf("A client sends %d MiB to a namespace behind the host. A throughput of at least 0.8 of the bare proxy's is a time of at most 1.25.", streamSize>>20),
		unit:  "ms", base: base, rounds: max(n.o.rounds/4, 1), measure: milliseconds,
		peers: []peer{
			{name: base, version: "io.Copy", call: send(n.host, spliceAddress)},
			{name: proxied, version: "this tree's", call: send(inside, internetAddress)},
		},
		bounds: []bound{{proxied, base, 1.25}},
	}, nil
}

// splice passes each connection on to the internet's server.
func (n *networks) splice(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var server net.Conn
			err := netns.Do(n.host, func() (err error) {
				server, err = net.Dial("tcp", internetAddress)
				return err
			})
			if err != nil {
				return
			}
			defer server.Close()
			go func() {
				_, _ = io.Copy(server, c)              // the client learns of a loss by the missing answer
				_ = server.(*net.TCPConn).CloseWrite() // as above
			}()
			_, _ = io.Copy(c, server) // as above
		}()
	}
}

// requests compares small HTTPS requests, each with a connection of its own.
func (n *networks) requests() (trial, error) {
	certificate, err := selfSigned()
	if err != nil {
		return nil, err
	}
	for address, namespace := range map[string]*os.File{secureAddress: n.internet, localAddress: n.host} {
		err := netns.Do(namespace, func() error {
			l, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
			if err == nil {
				n.ends = append(n.ends, l.Close)
				go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })) //nolint:gosec,errcheck // of the bench alone
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	box, err := n.manager.Create(context.Background(), sandbox.Config{Allow: []string{secureAddress}}, sandbox.Tied())
	if err != nil {
		return nil, err
	}
	inside, err := n.insideOf(box)
	if err != nil {
		return nil, err
	}
	const local, direct, proxied = "loopback", "to the internet", "to the internet, proxied"
	return contest{
		title: "Small HTTPS requests",
		about: "One request with a new connection and a new TLS session. The destination is an address of a rule.",
		unit:  "ms", base: local, rounds: n.o.rounds, measure: milliseconds,
		peers: []peer{
			{name: local, version: "net/http", call: getIn(n.host, localAddress)},
			{name: direct, version: "net/http", call: getIn(n.host, secureAddress)},
			{name: proxied, version: "this tree's", call: getIn(inside, secureAddress)},
		},
		extras: []extra{{proxied, direct, local, 0.5}},
	}, nil
}

// refusals measures how long a program waits for a refusal.
func (n *networks) refusals() (trial, error) {
	const most = 100 // ms
	box, err := n.manager.Create(context.Background(), sandbox.Config{Allow: []string{"web.test:80", internetAddress}}, sandbox.Tied())
	if err != nil {
		return nil, err
	}
	inside, err := n.insideOf(box)
	if err != nil {
		return nil, err
	}
	in := func(f func() error) func() error {
		return func() error {
			if err := netns.Do(inside, f); err == nil {
				return errors.New("it was not refused")
			}
			return nil
		}
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		err = netns.Do(inside, func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, "udp", spec.NameServer+":53")
			return err
		})
		return c, err
	}}
	contest := contest{
		title: "Refusals",
		about: "The time until a program in a sandbox with `proxied` learns that something is refused.",
		unit:  "ms", base: "a port in no rule", rounds: n.o.rounds, measure: milliseconds,
		peers: []peer{
			{name: "a port in no rule", version: "this tree's", call: in(func() error { return dialOnce("tcp", "9.9.9.9:81") })},
			{name: "UDP", version: "this tree's", call: in(func() error { return dialOnce("udp", "9.9.9.9:443") })},
			{name: "an address in no rule, at a port of a rule", version: "this tree's", call: in(func() error { return dialOnce("tcp", "9.9.9.10:80") })},
			{name: "a name in no rule", version: "this tree's", call: in(func() error {
				_, err := resolver.LookupHost(context.Background(), "other.test.")
				return err
			})},
		},
	}
	for _, p := range contest.peers {
		contest.limits = append(contest.limits, limit{peer: p.name, most: most})
	}
	return contest, nil
}

// dialOnce connects, and waits for an answer to some bytes.
func dialOnce(network, address string) error {
	c, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{0}); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// getIn gets a page in a network namespace.
func getIn(namespace *os.File, address string) func() error {
	return func() error {
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: "web.test"}, //nolint:gosec // the bench's own server
			DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
				err = netns.Do(namespace, func() (err error) {
					c, err = (&net.Dialer{}).DialContext(ctx, network, address)
					return err
				})
				return c, err
			},
		}}
		answer, err := client.Get("https://" + address)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"web.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// weigh has a thousand sandboxes admitted, each with a name of its own.
func (n *networks) weigh() (trial, error) {
	ctx, e := context.Background(), egress.Egress{Dir: filepath.Join(n.dir, "weighed")}
	admit := func(number int) error {
		namespace, err := netns.Create()
		if err != nil {
			return err
		}
		defer namespace.Close()
		l, err := capturing.Open(namespace, []spec.PortRange{{First: 443, Last: 443}})
		if err != nil {
			return err
		}
		key := fmt.Sprintf("s-%d", number)
		n.ends = append(n.ends, func() error { return e.Dismiss(ctx, key) })
		err = e.Admit(ctx, egress.Box{Key: key, Allow: []string{key + ".test"}}, l)
		return errors.Join(err, l.Close())
	}
	for number := range crowdOfProxied {
		if err := admit(number); err != nil {
			return nil, err
		}
	}
	const both = "parent and worker"
	return contest{
		title: "Memory of the processes of a network of names",
		about: fmt.Sprintf("Two processes serve %d sandboxes. Pages that they share with others count in part (PSS).", crowdOfProxied),
		unit:  "MiB", base: both, rounds: 1,
		measure: func(peer) (float64, error) { return proportionalMemory(e.Dir) },
		peers:   []peer{{name: both, version: "this tree's"}},
		limits:  []limit{{peer: both, most: 100}},
	}, nil
}

// proportionalMemory is the PSS of the parent of a directory and of its worker, in MiB.
func proportionalMemory(dir string) (mib float64, err error) {
	parent, err := findProcess(func(args []string) bool { return len(args) > 2 && args[1] == "egress" && args[2] == dir })
	if err != nil {
		return 0, err
	}
	worker, err := findProcess(func(args []string) bool {
		return len(args) > 2 && strings.HasPrefix(args[1], "egress-worker") && args[2] == parent
	})
	if err != nil {
		return 0, err
	}
	for _, pid := range []string{parent, worker} {
		rollup, err := os.ReadFile(filepath.Join("/proc", pid, "smaps_rollup"))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(rollup), "\nPss:")
		var kib float64
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			return 0, fmt.Errorf("memory of process %s: %w", pid, err)
		}
		mib += kib / 1024
	}
	return mib, nil
}

// findProcess returns the number of the process with these arguments.
func findProcess(is func(args []string) bool) (string, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err == nil && is(strings.Split(string(line), "\x00")) { // else the process has ended
			return filepath.Base(filepath.Dir(file)), nil
		}
	}
	return "", errors.Join(err, errors.New("a process of the proxied network is not there"))
}
