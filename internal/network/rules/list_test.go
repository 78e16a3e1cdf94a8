package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func newList(t *testing.T, allow, deny []string) *List {
	t.Helper()
	l, err := New(allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// askList puts a question to a list: NAME, NAME:PORT, ADDRESS:PORT or METHOD NAME:PORT/PATH.
func askList(t *testing.T, l *List, question string) Verdict {
	t.Helper()
	if a, err := netip.ParseAddrPort(question); err == nil {
		return l.Address(a.Addr(), a.Port())
	}
	method, target, isRequest := strings.Cut(question, " ")
	if !isRequest {
		target = question
	}
	host, path, _ := strings.Cut(target, "/")
	name, text, hasPort := strings.Cut(host, ":")
	if !hasPort {
		return l.Name(name)
	}
	var port uint16
	if _, err := fmt.Sscan(text, &port); err != nil {
		t.Fatal(err)
	}
	if isRequest {
		return l.Request(name, port, method, "/"+path)
	}
	return l.Connect(name, port)
}

// Each question is judged by the rules above it. A + stands for allowed.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		claim       string
		allow, deny string
		yes, no     string
	}{
		{"nothing is allowed without a rule", "", "",
			"", "example.com | example.com:443 | GET example.com:80/ | 192.0.2.1:443"},
		{"a name is this name on 80 and 443", "example.com", "",
			"example.com | EXAMPLE.COM. | example.com:80 | example.com:443 | GET example.com:80/x | GET example.com:443/a/../b",
			"www.example.com | notexample.com | example.com.evil.test | com | example.com:22 | GET example.com:8080/ | example.com:0"},
		{"a suffix is all names below", "*.example.com", "",
			"www.example.com | a.b.example.com:443 | _x.example.com | GET a.example.com:80/",
			"example.com | notexample.com | *.example.com | .example.com | a..example.com | a$b.example.com | ä.example.com | " +
				strings.Repeat("a", 64) + ".example.com | " + strings.Repeat("a.", 126) + "example.com"},
		{"ports are exact", "example.com:8000-8002 | *.example.com:22", "",
			"example.com | example.com:8000 | example.com:8002 | a.example.com:22", "example.com:443 | example.com:8003 | a.example.com:8000"},
		{"an international name is its ASCII form", "bücher.example", "",
			"xn--bcher-kva.example | XN--BCHER-KVA.example:443", "bücher.example | bucher.example"},
		{"no name is a number", "0.0.0.0/0 | *.example", "",
			"192.0.2.1:443", "192.0.2.1 | 127.1 | 0x7f.1 | 2130706433 | 1.example.0x"},

		{"deny wins, on all ports", "*.example.com | *.example.com:22", "bad.example.com",
			"a.bad.example.com:443 | good.example.com:22", "bad.example.com | bad.example.com:443 | bad.example.com:22 | GET bad.example.com:80/"},
		{"a denied suffix leaves the name itself", "example.com | a.example.com", "*.example.com",
			"example.com:443", "a.example.com | a.example.com:443"},
		{"a denied port leaves the others", "example.com", "example.com:80",
			"example.com | example.com:443", "example.com:80 | GET example.com:80/"},
		{"a name with all its ports denied does not exist", "example.com", "example.com:1-100 | example.com:443",
			"", "example.com"},

		{"an address is the addresses of its range", "192.0.2.0/24 | [2001:db8::]/32:5000-6000", "",
			"192.0.2.9:80 | 192.0.2.9:443 | [2001:db8::1]:5432", "192.0.3.1:80 | 192.0.2.9:22 | [2001:db9::1]:5432 | [::ffff:192.0.2.9]:80"},
		{"deny wins among addresses, in translated forms too", "0.0.0.0/0 | ::/0", "10.0.0.0/8 | 192.0.2.1:80",
			"192.0.2.1:443 | 11.0.0.1:80 | [2001:db8::1]:443 | [64:ff9b::b00:1]:80",
			"10.1.2.3:443 | 192.0.2.1:80 | [64:ff9b::a00:1]:80 | [2002:a00:1::]:443 | [::ffff:10.0.0.1]:80"},
		{"no rule opens the sandbox's own addresses", "0.0.0.0/0:1-65535 | [::]/0:1-65535", "",
			"198.17.0.1:80", "127.0.0.1:80 | [::1]:80 | 0.0.0.0:80 | [::]:80 | 198.18.0.2:80 | 198.19.255.255:80 | [fd53:0:0:1::1]:443 | [::ffff:127.0.0.1]:80"},
		{"a zone changes nothing", "fe80::/10", "fe80::1",
			"[fe80::2%eth0]:80", "[fe80::1%eth0]:80"},

		{"a path is a prefix of segments, for plain HTTP on port 80", "example.com/docs/a%20b", "",
			"example.com | GET example.com:80/docs/a%20b | POST example.com:80/docs/a%20b/ | GET example.com:80/%64ocs/a%20b/c?d=/../",
			"example.com:80 | example.com:443 | GET example.com:443/docs/a%20b | GET example.com:80/docs/a%20bc | GET example.com:80/docs | GET example.com:80/Docs/a%20b"},
		{"methods are exact", "GET,HEAD example.com:8080 | POST example.com:8080/up", "",
			"GET example.com:8080/any/x | HEAD example.com:8080/ | POST example.com:8080/up/1 | GET example.com:8080/a/../b",
			"POST example.com:8080/ | get example.com:8080/ | PUT example.com:8080/up | GET example.com:80/ | example.com:8080"},
		{"a path that servers read in different ways is refused", "example.com/a", "",
			"GET example.com:80/a/b",
			`GET example.com:80/a/../b | GET example.com:80/a/%2e%2e/b | GET example.com:80/a/. | GET example.com:80/a%2Fb | GET example.com:80/a/..%2fb | ` +
				`GET example.com:80/a/%5c | GET example.com:80/a/\ | GET example.com:80/a/%00 | GET example.com:80/a/..;/b | GET example.com:80//a | GET example.com:80/a//b | ` +
				`GET example.com:80/a/%252e%252e/b | GET example.com:80/a/%c0%ae | GET example.com:80/a/%zz | GET example.com:80/a#b`},
		{"a denied path is refused, and so is all that could be this path", "example.com", "example.com/admin",
			"example.com | GET example.com:80/ | GET example.com:80/admin2 | GET example.com:80/user/admin",
			"GET example.com:80/admin | GET example.com:80/admin/x | GET example.com:80/%61dmin | GET example.com:80//admin | GET example.com:80/x/../admin | GET example.com:80/admin;x"},
		{"a denied path cannot be judged in other traffic", "example.com | other.example", "POST example.com | other.example:80/admin",
			"GET example.com:80/ | other.example:443", "example.com:443 | example.com:80 | POST example.com:80/ | post example.com:80/ | other.example:80"},
	} {
		l := newList(t, fields(c.allow), fields(c.deny))
		for _, question := range fields(c.yes) {
			if v := askList(t, l, question); !v.Allowed || v.Rule == "" {
				t.Errorf("%s: %s is refused: %+v", c.claim, question, v)
			}
		}
		for _, question := range fields(c.no) {
			if v := askList(t, l, question); v.Allowed || v.Reason == "" {
				t.Errorf("%s: %s is allowed: %+v", c.claim, question, v)
			}
		}
	}
}

func fields(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, " | ")
}

func TestAPathMustBeAbsolute(t *testing.T) {
	l := newList(t, []string{"example.com/a"}, nil)
	for _, path := range []string{"", "a", "*", "http://example.com/a"} {
		if v := l.Request("example.com", 80, "GET", path); v.Allowed {
			t.Errorf("%q is allowed: %+v", path, v)
		}
	}
}

// No rule with a path judges a path that takes long. A rule without a path allows such a path, too.
func TestLongPaths(t *testing.T) {
	l := newList(t, []string{"example.com/a", "plain.example", "part.example"}, []string{"part.example/private"})
	long := "/a/" + strings.Repeat("b/", maxPath/2)
	for name, allowed := range map[string]bool{"example.com": false, "plain.example": true, "part.example": false} {
		if v := l.Request(name, 80, "GET", long); v.Allowed != allowed || !allowed && !strings.Contains(v.Reason, "more than 8192 bytes") {
			t.Errorf("%s: %+v", name, v)
		}
		if v := l.Request(name, 80, "GET", long[:maxPath-1]+"?"+long); !v.Allowed {
			t.Errorf("%s, with a long query: %+v", name, v)
		}
	}
}

// A refusal tells a person the flag that would allow the same, or the rule that denies it.
func TestReasons(t *testing.T) {
	l := newList(t, []string{"example.com ; the team's server", "get.example:8080/a", "http.example/a", "192.0.2.0/24", "192.0.2.7"},
		[]string{"bad.example.com ; no uploads", "POST get.example"})
	for question, want := range map[string]Verdict{
		"example.com:443":    {Allowed: true, Rule: "example.com", Reason: "the team's server"},
		"192.0.2.1:80":       {Allowed: true, Rule: "192.0.2.0/24"},
		"192.0.2.7:80":       {Allowed: true, Rule: "192.0.2.7", IsSingle: true},
		"other.example":      {Reason: "other.example is not allowed; add --allow other.example"},
		"other.example:443":  {Reason: "other.example:443 is not allowed; add --allow other.example"},
		"other.example:8443": {Reason: "other.example:8443 is not allowed; add --allow other.example:8443"},
		"http.example:80":    {IsHTTP: true, Reason: "traffic with http.example:80 other than plain HTTP is not allowed; add --allow http.example:80"},
		"http.example:443":   {Reason: "http.example:443 is not allowed; add --allow http.example:443"},
		"get.example:443":    {IsHTTP: true, Rule: "POST get.example/", Reason: `--deny "POST get.example/" denies get.example:443, since it can be judged only in plain HTTP, and this is other traffic. Name the ports of plain HTTP in the rule; deny rules win over allow rules`},
		"[2001:db8::1]:5432": {Reason: "[2001:db8::1]:5432 is not allowed; add --allow [2001:db8::1]:5432"},
		"bad.example.com:80": {Rule: "bad.example.com", Reason: "--deny bad.example.com denies bad.example.com:80; deny rules win over allow rules: no uploads"},
		"GET get.example:8080/b c'$": {
			Reason: "a request to get.example:8080 is not allowed, since its path has a ?, a # or a space; a rule knows no queries, and other such characters are written as %XX; a rule without a path would allow it"},
		"GET get.example:8080/b'$(x)":                                {Reason: `this request to get.example:8080 is not allowed; add --allow "GET get.example:8080/b%27%24%28x%29"`},
		"<b> get.example:8080/b":                                     {Reason: "this request to get.example:8080 is not allowed; add --allow get.example:8080/b"},
		"GET get.example:8080/b" + strings.Repeat("/cccccccccc", 30): {Reason: `this request to get.example:8080 is not allowed; add --allow "GET get.example:8080/b` + strings.Repeat("/cccccccccc", 14) + `"`},
	} {
		if got := askList(t, l, question); got != want {
			t.Errorf("%s:\n     %+v\nwant %+v", question, got, want)
		}
		if got, want := askList(t, l, question).IsDenied(), want.Rule != "" && !want.Allowed; got != want {
			t.Errorf("%s: denied: %v", question, got)
		}
	}
}

// The rule in a reason allows the case.
func TestSuggestedRulesSuffice(t *testing.T) {
	for _, question := range []string{
		"example.com", "example.com:80", "example.com:443", "example.com:22", "192.0.2.1:80", "[2001:db8::1]:22", "GET example.com:80/a", "GET example.com:81/a",
		"GET path.example:80/", "POST path.example:80/b/%24(x)", "odd path.example:80/b", "path.example:80",
	} {
		allow := []string{"path.example/only"}
		_, suggestion, _ := strings.Cut(askList(t, newList(t, allow, nil), question).Reason, "--allow ")
		suggestion = strings.Trim(suggestion, `"`)
		if v := askList(t, newList(t, append(allow, suggestion), nil), question); !v.Allowed || v.Rule != suggestion {
			t.Errorf("%s: %s does not suffice: %+v", question, suggestion, v)
		}
	}
}

func TestPorts(t *testing.T) {
	l := newList(t, []string{"a.example", "b.example:440-445", "192.0.2.1:446", "*.c.example/x", "d.example:22", "d.example:65535"}, []string{"e.example:7"})
	if got, want := fmt.Sprint(l.Ports()), "[{22 22} {80 80} {440 446} {65535 65535}]"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if got := new(List).Ports(); len(got) != 0 {
		t.Errorf("no rules: %v", got)
	}
}

func TestTheZeroListRefuses(t *testing.T) {
	for _, question := range []string{"example.com", "example.com:443", "GET example.com:80/", "192.0.2.1:443"} {
		if v := askList(t, new(List), question); v.Allowed {
			t.Errorf("%s: %+v", question, v)
		}
	}
	if v := new(List).Address(netip.Addr{}, 80); v.Allowed {
		t.Errorf("no address: %+v", v)
	}
}

func TestNewNamesEachWrongRule(t *testing.T) {
	_, err := New([]string{"a.example", "*"}, []string{"b.example:x"})
	if want := "allow[1]: \"*\": * alone would be every name; write *.SUFFIX\ndeny[0]: \"b.example:x\": \"x\" is no port from 1 to 65535"; err == nil || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
	many := make([]string, MaxRules)
	for i := range many {
		many[i] = "a.example"
	}
	if _, err := New(many, []string{"@npm"}); err == nil || !strings.Contains(err.Error(), "more than 10000 rules") {
		t.Error(err)
	}
}

// Verdicts do not scan the rules: 10,000 rules take about the time of four.
func TestVerdictsAreQuickWithManyRules(t *testing.T) {
	if few, many := verdictTime(t, 1), verdictTime(t, MaxRules/4); many > 5*few {
		t.Errorf("four verdicts take %v with 4 rules and %v with %d", few, many, MaxRules)
	} else {
		t.Logf("four verdicts take %v with 4 rules and %v with %d", few, many, MaxRules)
	}
}

// verdictTime is the shortest time of four verdicts, with n rules of each of four kinds.
func verdictTime(t *testing.T, n int) time.Duration {
	t.Helper()
	var allow []string
	for i := range n {
		allow = append(allow, fmt.Sprintf("n%d.example", i), fmt.Sprintf("*.s%d.example", i),
			fmt.Sprintf("n%d.example:22", i), fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
	}
	l, best := newList(t, allow, nil), time.Hour
	address := netip.MustParseAddr("10.0.0.7")
	for range 200 { // other programs disturb some rounds
		start := time.Now()
		ok := l.Connect("n0.example", 22).Allowed && l.Connect("a.b.s0.example", 443).Allowed && l.Address(address, 443).Allowed && l.Name("n0.example").Allowed
		best = min(best, time.Since(start))
		if !ok {
			t.Fatal("a name or an address is refused")
		}
	}
	return best
}
