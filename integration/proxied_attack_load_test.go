package integration

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// loadPrelude opens many connections. A process has 4,096 descriptors at most.
const loadPrelude = `
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def open_all(number, port=80):
    a, all = socket.gethostbyname(good), []
    for i in range(number):
        s = socket.socket(four, stream)
        s.settimeout(20)
        try:
            s.connect((a, port))
            all.append(s)
        except OSError:
            s.close()
    return all
def is_open(s):
    try:
        s.setblocking(False)
        return len(s.recv(1)) > 0
    except BlockingIOError:
        return True
    except OSError:
        return False
def each(all, data):
    for s in all:
        try:
            s.send(data)
        except OSError:
            pass
def forked(number, work):
    for i in range(number):
        if os.fork() == 0:
            work()
            os._exit(0)
def hold(all):
    print("ready", flush=True)
    time.sleep(1000)
`

// loads are ways to keep the proxy busy. Each prints "ready", once for each process, and goes on.
var loads = []struct {
	name, script string
	processes    int
	isIdle       bool
}{
	{"10,000 idle connections", "forked(4, lambda: hold(open_all(2500)))\ntime.sleep(1000)", 4, true},
	{"1,000 slow requests", `
all = open_all(1000)
each(all, b"GET / HTTP/1.1\r\nHost: good.test\r\nX: ")
print("ready", flush=True)
while True:
    each(all, b"x")
    time.sleep(0.5)
`, 1, false},
	{"1,000 slow hellos", `
all = open_all(1000, 443)
each(all, b"\x16\3\1\x40\0\1\0\x3f\xf0" + bytes(8000))
print("ready", flush=True)
while True:
    each(all, b"x")
    time.sleep(0.5)
`, 1, false},
	{"1,000 servers that never answer", `
all = open_all(1000)
each(all, b"GET /silent HTTP/1.1\r\nHost: good.test\r\n\r\n")
hold(all)
`, 1, false},
	{"1,000 servers of one byte per second", `
all = open_all(1000)
each(all, b"GET /slow HTTP/1.1\r\nHost: good.test\r\n\r\n")
hold(all)
`, 1, false},
	{"1,000 clients that do not read", `
all = open_all(1000)
each(all, b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n" * 500)
hold(all)
`, 1, false},
	{"queries without end", `
def flood():
    s = socket.socket(four, datagram)
    s.connect(("198.18.0.1", 53))
    print("ready", flush=True)
    while True:
        try:
            s.send(question("%d.evil.test" % time.monotonic_ns()))
        except OSError:
            pass
forked(2, flood)
time.sleep(1000)
`, 2, false},
	{"connections without end", `
def flood():
    a = socket.gethostbyname(good)
    print("ready", flush=True)
    while True:
        try:
            s = socket.create_connection((a, 80), 5)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
        except OSError:
            pass
forked(2, flood)
time.sleep(1000)
`, 2, false},
	{"a stopped program with connections", `
all = open_all(1000)
each(all, b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
print("ready", flush=True)
os.kill(os.getpid(), 19)
`, 1, false},
}

// What one sandbox does with its connections, another one does not notice. It has 1,024 of them at most.
func TestAttackByManyAndSlowConnections(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	a := newArena(t)
	for _, box := range []string{"attacker", "neighbour"} {
		if got := a.on(t, append(append([]string{"up", "--network", "proxied"}, allowGood...), box)...); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		t.Cleanup(func() { a.on(t, "down", box) })
	}
	for _, load := range loads {
		t.Run(load.name, func(t *testing.T) {
			eventually(t, "the connections of the last load end", func() bool { return a.servers.isSilent() })
			script := attemptPrelude + loadPrelude + load.script
			attacker := begin(t, netnstest.Command(a.command("exec", "attacker", "python3", "-c", script), a.host))
			defer attacker.kill()
			eventually(t, "the attacker is ready", func() bool {
				if attacker.ended() {
					t.Fatalf("the attacker has ended: %+v", attacker.wait())
				}
				return strings.Count(attacker.stdout(), "ready") == load.processes
			})
			for range 3 {
				a.neighbourWorks(t)
			}
			// The neighbour has one at a time. The kernel knows the present ones; a busy server learns late of ends.
			if now := a.established(t); now > 1024+1 || load.isIdle && now < 1000 {
				t.Errorf("outside there are %d connections", now)
			}
		})
	}
	a.onlyArrive(t, usual()...)
}

// established is the number of connections to the servers outside.
func (a *arena) established(t *testing.T) int {
	t.Helper()
	return strings.Count(netnstest.Shell(t, a.outside, "ss -Htn state established"), "\n") + 1
}

// neighbourWorks holds that another sandbox gets answers, each within the time of a refusal.
func (a *arena) neighbourWorks(t *testing.T) {
	t.Helper()
	script := attemptPrelude + "case('plain', lambda: get(good))\ncase('encrypted', lambda: tls(good, good))\ncase('unknown', lambda: ask('evil.test'))\n"
	begin := time.Now()
	got := run(t, netnstest.Command(exec.Command("timeout", append([]string{"60"}, a.command("exec", "neighbour", "python3", "-c", script).Args...)...), a.host))
	outcomes := attemptEnds(t, got)
	for name, works := range map[string]bool{"plain": true, "encrypted": true, "unknown": false} {
		// A busy host can lose a DNS packet: the client asks again after five seconds.
		if o, ok := outcomes[name]; !ok || o.Works != works || o.Took > 2*slowest {
			t.Errorf("the neighbour: %s: %+v; all of it took %v: %+v", name, o, time.Since(begin), got)
		}
	}
}
