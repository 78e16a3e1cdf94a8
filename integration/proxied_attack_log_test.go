package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// The log, the Result and the messages have no character of the sandbox's that changes a terminal, and no line of
// the sandbox's own.
func TestAttackByTheLog(t *testing.T) {
	need(t, world())
	a := newArena(t)
	script := attemptPrelude + tlsPrelude + proxyPrelude + `
evils = ["\x1b[31m", "\x1b]0;title\x07", "\r\nevil", "\n2026-11-26 00:00:00 allowed forged.test", "\x00", "\x7f", "\x08" * 20, "\x9b31m", "\xc2\x9b31m", "\xe2\x80\xae", "%s%n", "'\"\\", "\xff\xfe"]
for e in evils:
    for f in (lambda: ask([e.encode("latin-1")[:60], b"evil", b"test"]), lambda: ask([e.encode("latin-1")[:60], b"good", b"test"]),
              lambda: tcp(good, 80, "GET /" + e + " HTTP/1.1\r\nHost: good.test\r\n\r\n"), lambda: tcp(good, 80, "GET / HTTP/1.1\r\nHost: " + e + "\r\n\r\n"),
              lambda: tcp(good, 80, e + " / HTTP/1.1\r\nHost: good.test\r\n\r\n"), lambda: talk(hello(e.encode("latin-1") + b".test")),
              lambda: tunnel(e + ":443"), lambda: via("http://" + e + "/", "x"), lambda: tcp("paths.good.test", 80, "GET /secret/" + e + " HTTP/1.1\r\nHost: paths.good.test\r\n\r\n"),
              lambda: tcp("paths.good.test", 80, "X" + e.replace(" ", "") + " /secret/ HTTP/1.1\r\nHost: paths.good.test\r\n\r\n"),
              lambda: socket.getaddrinfo(e + ".evil.test", 80)):
        try:
            f()
        except (OSError, UnicodeError, ValueError):
            pass
sys.exit(7)
`
	if got := a.on(t, append(append([]string{"up", "--network", "proxied", "--allow", "GET paths.good.test/public"}, allowGood[:2]...), "box")...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { a.on(t, "down", "box") })
	plain := a.on(t, "exec", "box", "python3", "-c", script)
	asJSON := a.on(t, "exec", "--json", "box", "python3", "-c", script)
	if plain.code != 7 || !strings.Contains(asJSON.stdout, `{"kind":"network","detail":"`) { // a fast sandbox has more refusals than events
		t.Errorf("%+v, %+v", plain, asJSON)
	}
	texts := map[string]string{"stderr": plain.stderr, "the Result": asJSON.stdout, "the suggestions": a.on(t, "network", "--suggest", "box").stdout}
	for _, flags := range [][]string{nil, {"--json"}} {
		log := start(t, netnstest.Command(a.command(append(append([]string{"network", "--log"}, flags...), "box")...), a.host))
		eventually(t, "the log ends with the last event", func() bool { return strings.Count(log.stdout(), "\n") >= 100 })
		texts["the log "+fmt.Sprint(flags)] = log.stdout()
		log.kill()
		for line := range strings.Lines(log.stdout()) {
			wantDecision(t, line, flags != nil)
		}
	}
	for name, text := range texts {
		if bad := badCharacter(text); bad != "" {
			t.Errorf("%s has %s", name, bad)
		}
		// JSON hides characters behind escapes.
		var value any
		if json.Unmarshal([]byte(text), &value) == nil {
			if bad := badCharacter(fmt.Sprint(value)); bad != "" {
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
}

// wantDecision holds that a line of the log is one decision, and not one that the sandbox has written.
func wantDecision(t *testing.T, line string, isJSON bool) {
	t.Helper()
	if !isJSON {
		if fields := strings.Fields(line); len(fields) < 4 || fields[2] != "allowed" && fields[2] != "denied" && fields[2] != "failed" || fields[3] == "forged.test" {
			t.Errorf("a line of the log is %q", line)
		}
		return
	}
	var e struct{ Name, Address, Rule, Decision, Reason string }
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		t.Errorf("a line of the log is %q: %v", line, err)
	}
	if e.Decision == "denied" && e.Reason == "" {
		t.Errorf("a refusal without a reason: %q", line)
	}
	if bad := badCharacter(e.Name + e.Address + e.Rule + e.Decision + e.Reason); bad != "" {
		t.Errorf("an event has %s: %q", bad, line)
	}
}

// badCharacter names a character that changes a terminal.
func badCharacter(text string) string {
	if !utf8.ValidString(text) {
		return "bytes that are not UTF-8"
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		return fmt.Sprintf("%q", text[max(i-40, 0):min(i+40, len(text))])
	}
	return ""
}
