package rules

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseGivesTheCanonicalForm(t *testing.T) {
	for text, want := range map[string]string{
		"example.com":                          "example.com",
		"EXAMPLE.com.":                         "example.com",
		"example.com:443":                      "example.com:443",
		"example.com:8000-8010":                "example.com:8000-8010",
		"*.example.com:22":                     "*.example.com:22",
		"*.com":                                "*.com",
		"intranet":                             "intranet",
		"_dmarc.my_host.example.com":           "_dmarc.my_host.example.com",
		"r3---sn-4g5e.example.com":             "r3---sn-4g5e.example.com",
		"bücher.example":                       "xn--bcher-kva.example",
		"BÜCHER。example":                       "xn--bcher-kva.example",
		"XN--bcher-KVA.example":                "xn--bcher-kva.example",
		"192.0.2.1":                            "192.0.2.1",
		"192.0.2.0/24:443":                     "192.0.2.0/24:443",
		"2001:DB8::/32":                        "2001:db8::/32",
		"[2001:db8::1]:80-90":                  "[2001:db8::1]:80-90",
		"[2001:db8::]/64:80":                   "[2001:db8::]/64:80",
		"0.0.0.0/0":                            "0.0.0.0/0",
		"::/0":                                 "::/0",
		"198.0.0.0/8":                          "198.0.0.0/8",
		"example.com/":                         "example.com/",
		"example.com:8080/docs/":               "example.com:8080/docs",
		"example.com/a%20b/%C3%BC/%7e":         "example.com/a%20b/%C3%BC/%7E",
		"HEAD,GET,GET *.example.com":           "GET,HEAD *.example.com/",
		"POST example.com/v1/items":            "POST example.com/v1/items",
		"example.com ; the team's own server":  "example.com ; the team's own server",
		"example.com \t  ; a column of a file": "example.com ; a column of a file",
		"GET 7zip.example/x ; see #4 ; and #5": "GET 7zip.example/x ; see #4 ; and #5",
	} {
		if r, err := Parse(text); err != nil || len(r) != 1 || r[0].String() != want {
			t.Errorf("%s: %v, %v; want %s", text, r, err, want)
		}
	}
}

// An error has the rule, the wrong part and the way out.
func TestParseNamesTheWrongPart(t *testing.T) {
	long := strings.Repeat("a", 64)
	for text, want := range map[string]string{
		"":                                "write a name",
		"*":                               "write *.SUFFIX",
		"*.":                              "there is no name",
		"*.*.example.com":                 `label 1, "*", has a *`,
		"www.*.example.com":               `label 2, "*", has a *`,
		"w*.example.com":                  `label 1, "w*", has a *`,
		"example..com":                    `label 2, "", is empty`,
		".example.com":                    `label 1, "", is empty`,
		"example.com..":                   `label 3, "", is empty`,
		long + ".com":                     "has 64 bytes in its ASCII form; the most are 63",
		strings.Repeat("a.", 127):         "", // 253 bytes without the last dot
		strings.Repeat("a.", 128):         "has 255 bytes in its ASCII form; the most are 253",
		"-a.example":                      "begins or ends with a hyphen",
		"example.a_b":                     "is the last and has a _",
		"exam ple.com":                    `"exam" is no method`,
		"example.com ":                    `"example.com" is no method`,
		"me@example.com":                  `label 1, "me@example", has the character '@'`,
		"example.com%eth0":                `has the character '%'`,
		"xn--a.example":                   `label 1, "xn--a", is no international name`,
		"a\u202eb.example":                "is no international name",
		"\xff.example":                    "is no international name",
		"1.2":                             "no name ends in a number",
		"127.1":                           "write the address as in 192.0.2.1",
		"2130706433":                      "no name ends in a number",
		"0x7f000001":                      "no name ends in a number",
		"0x7f.1:80":                       "no name ends in a number",
		"0X7F.0x":                         "no name ends in a number",
		"017700000001":                    "no name ends in a number",
		"0177.0.0.1":                      "no name ends in a number",
		"１２７.１":                           "no name ends in a number",
		"example.1.":                      "no name ends in a number",
		"localhost":                       "the sandbox itself has this name",
		"*.LOCALHOST.":                    "the sandbox itself has this name",
		"db.localhost:5432":               "the sandbox itself has this name",
		"127.0.0.0/8":                     "a service of the host must listen at another address",
		"[::1]:80":                        "a service of the host must listen at another address",
		"0.0.0.0":                         "no host has this address",
		"198.18.0.1":                      "the addresses in 198.18.0.0/15 stand for names",
		"198.19.0.0/16:80":                "the addresses in 198.18.0.0/15 stand for names",
		"fd53::/16":                       "the addresses in fd53::/16 stand for names",
		"[fd53:0:0:1::7]:80":              "write a rule for the name",
		"::ffff:192.0.2.1":                "use 192.0.2.1",
		"fe80::1%eth0":                    "use the address without the zone",
		"192.0.2.1/24":                    "the range is 192.0.2.0/24",
		"192.0.2.0/33":                    "no address range",
		"[example.com]:80":                `"example.com" is no IPv6 address`,
		"2001:db8::/32:80":                "in brackets, as in [2001:db8::]/32:80",
		"[2001:db8::1:80":                 "has no ]",
		"example.com:80:90":               "a name has one colon at most",
		"example.com:":                    "there is no port after the colon",
		"example.com:0":                   `"0" is no port`,
		"example.com:65536":               `"65536" is no port`,
		"example.com:90-80":               "the ports 90-80 go down",
		"example.com:http":                `"http" is no port`,
		":80":                             "there is no name",
		"/docs":                           "there is no name",
		"https://example.com":             "write example.com",
		"https://example.com/docs":        "write example.com, since paths can be judged only in plain HTTP",
		"http://example.com/docs":         "write example.com/docs",
		"GET https://example.com":         "write example.com",
		"get example.com":                 `"get" is no method; write methods in upper case`,
		"GET, HEAD example.com":           `"" is no method`,
		"GET  example.com":                "has the character ' '",
		"GET":                             "", // a name
		"GET 192.0.2.1":                   "methods and paths need a name",
		"GET [2001:db8::1]:80/x":          "methods and paths need a name",
		"192.0.2.1:80/docs":               `"80/docs" is no port`,
		"example.com/a/../b":              `path "/a/../b": has the segment ..`,
		"example.com/%2e%2E":              "has the segment ..",
		"example.com/a//b":                "has two slashes in a row",
		"example.com/a%2fb":               "has an encoded slash",
		`example.com/a\b`:                 "has a backslash",
		"example.com/a;b":                 "has a semicolon",
		"example.com/%00":                 "has a control character",
		"example.com/%ff":                 "is not UTF-8",
		"example.com/%2561":               "is encoded twice",
		"example.com/%zz":                 "has a % without two hexadecimal digits",
		"example.com/a?b":                 "a rule knows no queries",
		"example.com/*":                   "", // a star like any other character
		"@":                               "the presets are @crates, @debian",
		"@PyPI":                           `"@PyPI": unknown preset`,
		"@pypi:8080":                      "a preset has its ports and paths already; write @pypi",
		"@pipy:8080":                      "unknown preset",
		"example.com ; ":                  "write the reason right after",
		"example.com ; a\x1b[2J":          "cannot be printed",
		"example.com ; \xff":              "not UTF-8",
		strings.Repeat("a", 5000):         "has 5000 bytes; the most are 4096",
		"a/" + strings.Repeat("ü/", 1300): "the most are 4096",
	} {
		r, err := Parse(text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want == "":
		case err == nil:
			t.Errorf("%q is the rule %v", text, r)
		case !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v; want %s", text, err, want)
		case len(text) < 1000 && !strings.HasPrefix(err.Error(), fmt.Sprintf("%q", text)):
			t.Errorf("%q: the error has another rule: %v", text, err)
		}
	}
}

func TestEachPresetIsRules(t *testing.T) {
	for _, name := range Presets() {
		rules, err := Parse("@" + name + " ; why")
		if err != nil || len(rules) != len(presets[name]) {
			t.Errorf("%s: %v, %v", name, rules, err)
		}
		for i, r := range rules {
			if want := presets[name][i] + " ; why"; r.String() != want {
				t.Errorf("%s: %v; want %s", name, r, want)
			}
		}
	}
	if len(Presets()) != 10 {
		t.Errorf("presets: %v", Presets())
	}
}

func TestParseFile(t *testing.T) {
	const text = "\ufeff# what the build needs\n\n@pypi\r\n  example.com:8443 ; own server # of the team\n\tdeny\t *.example.com ; old\nGET example.org/a#b"
	_, _, err := ParseFile("rules.txt", strings.NewReader(text))
	if err == nil || !strings.HasPrefix(err.Error(), `rules.txt:6: "GET example.org/a#b": path "/a#b"`) {
		t.Error(err)
	}
	allow, deny, err := ParseFile("rules.txt", strings.NewReader(strings.TrimSuffix(text, "#b")))
	if got, want := fmt.Sprintf("%q %q %v", allow, deny, err),
		`["@pypi" "example.com:8443 ; own server" "GET example.org/a"] ["*.example.com ; old"] <nil>`; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

func TestParseFileIsBounded(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"many rules", strings.Repeat("a\n", MaxRules+1), "f:10001: there are more than 10000 rules"},
		{"a long line", "a\n#" + strings.Repeat("x", 1<<17), "f:2: the line is longer"},
		{"many faults", strings.Repeat("*\n", 15), "f:10: \"*\": * alone would be every name; write *.SUFFIX\n5 more rules are wrong"},
		{"deny alone", "a\n deny \n", "f:2: deny has no rule"},
		{"DENY", "DENY a.example", `f:1: "DENY a.example": "DENY" is no method; in a file write "deny RULE" in lower case`},
		{"ALLOW", "GET,ALLOW a.example", `"ALLOW" is no method`},
		{"a flag", "a\n--allow b.example", `f:2: "--allow b.example": a file has rules without a flag in front`},
	} {
		if _, _, err := ParseFile("f", strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A parsed rule is printed in a form that gives the same rule. No text causes a panic.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"GET,HEAD *.example.com:80-90/a%20b ; why", "BÜCHER。example.", "[2001:db8::]/64:80", "192.0.2.0/24", "@npm", "0x7f.1", "xn--a-0hb.b",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := Parse(text)
		if err != nil {
			return
		}
		for _, r := range parsed {
			again, err := Parse(r.String())
			if err != nil || len(again) != 1 || again[0].String() != r.String() {
				t.Errorf("%q: %q gives %v, %v", text, r, again, err)
			}
		}
		l, err := New([]string{text}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if name := parsed[0].name; name != "" && l.Name("a."+name).Allowed == l.Name(name).Allowed && len("a."+name) <= maxName {
			t.Errorf("%q allows both or neither of %s and a name below", text, name)
		}
		l.Request(text, 80, text, text)
	})
}
