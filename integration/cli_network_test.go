package integration

import "strings"

// networkCases send real traffic: busybox's httpd serves, its wget fetches.
var networkCases = []cliCase{
	{"no network but loopback", "", func(c cli) {
		c.want(c.once("ls /sys/class/net; ping -c 1 -W 1 192.0.2.1 >/dev/null 2>&1 || echo unreachable; ping -c 1 127.0.0.1 >/dev/null && echo loopback", "--network", "none"),
			"lo\nunreachable\nloopback\n")
	}},
	{"containers reach each other on the bridge", "", func(c cli) {
		address := c.address(c.start(serve))
		c.want(c.once(fetch(address)), "hello\n")
		if got := c.once(tryFetch(address), "--network", "none"); got.code == 0 {
			c.Errorf("without a network: %+v", got)
		}
	}},
	{"published port is reached from the host", "", func(c cli) {
		id := c.start(serve, "--publish", "8080:80")
		c.address(id)
		c.want(c.once(fetch("127.0.0.1:8080"), "--network", "host"), "hello\n")
		c.ok("stop", "--time", "0", id)
		if got := c.once(tryFetch("127.0.0.1:8080"), "--network", "host"); got.code == 0 {
			c.Errorf("still published: %+v", got)
		}
	}},
	{"published port of the engine's choice", "", func(c cli) {
		id := c.start(serve, "--publish", "127.0.0.1::80")
		c.address(id)
		c.want(c.once(fetch(strings.TrimSpace(c.ok("port", id, "80/tcp"))), "--network", "host"), "hello\n")
	}},
	{"network of one's own", "", func(c cli) {
		c.network("own", "--subnet", "10.97.0.0/24")
		id := c.start(serve, "--network", "own", "--ip", "10.97.0.7")
		c.says(id, "ready")
		c.want(c.once(fetch("10.97.0.7"), "--network", "own"), "hello\n")
		c.ok("network", "disconnect", "own", id)
		c.want(c.inside(id, "ls /sys/class/net"), "lo\n")
	}},
	{"network joined while running", "", func(c cli) {
		c.network("own", "--subnet", "10.97.0.0/24")
		id := c.start(serve)
		c.says(id, "ready")
		c.ok("network", "connect", "--ip", "10.97.0.7", "own", id)
		c.want(c.once(fetch("10.97.0.7"), "--network", "own"), "hello\n")
	}},
}

// serve is a container's script that serves "hello" on port 80.
const serve = "echo hello > /index.html; echo ready; exec httpd -f -p 80 -h /"

// fetch is a script that prints what a server at address serves. Who is ready to
// serve may not listen yet, and the first packets on a new bridge may be lost.
func fetch(address string) string { return "until " + tryFetch(address) + "; do sleep 0.2; done" }

// tryFetch tries it once.
func tryFetch(address string) string { return "timeout 3 wget -q -O - http://" + address + "/" }

// network creates a network that the case's end removes.
func (c cli) network(name string, flags ...string) {
	c.Helper()
	c.ok(append(append([]string{"network", "create"}, flags...), name)...)
	c.Cleanup(func() {
		c.removeAll()
		c.ok("network", "rm", name)
	})
}

// address waits for a container that serves and returns its address.
func (c cli) address(id string) string {
	c.Helper()
	c.says(id, "ready")
	return c.field(id, ".NetworkSettings.IPAddress")
}
