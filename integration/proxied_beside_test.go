package integration

import (
	"strings"
	"testing"
)

// besideRules are scripts that connect to a name that rules allow at other ports, or with the name of another
// server, and their messages.
var besideRules = []struct{ name, script, message string }{
	{"TLS at a port of another name", "curl -sS https://db.test/", "reset by peer"},
	{"plain HTTP at a port of another name", "curl -sSf http://npm.test/", "error: 403"},
	{"the reason in plain HTTP", "curl -sS http://npm.test/ | tee /dev/stderr | grep -v sandbox-runtime", "npm.test:80 is not allowed; add --allow npm.test:80"},
	{"a database at a port of another name", "$POSTGRES/psql -c 'select 1' 'host=deb.test port=5432 user=visitor dbname=postgres'", "port 5432 failed"},
	{"SSH at a port of another name", "ssh -o BatchMode=yes visitor@db.test true", "reset by peer"},
	{"another name in TLS", "curl -sS --connect-to ::web.test:443 https://" + forbiddenName + "/", "reset by peer"},
	{"another allowed name in TLS", "curl -sS --connect-to ::web.test:443 https://deb.test/", "reset by peer"},
	{"no name in TLS", "openssl s_client -noservername -connect web.test:443 </dev/null", "errno=104"},
	{"another name in plain HTTP", "curl -sSf --connect-to ::web.test:80 http://" + forbiddenName + "/", "error: 403"},
	{"a literal address", "curl -sS https://" + worldServer + "/", "reset by peer"},
	{"a literal address and another port", "curl -sS https://" + worldServer + ":8443/", "Failed to connect"},
}

// Connections that no rule allows at a port that is in a rule fail at once, too, and nothing of them arrives outside.
// A client of an allowed name that is silent for a moment may wait for the server: the proxy connects to it then.
func TestConnectionsBesideTheRulesFailAtOnce(t *testing.T) {
	need(t, world(), peers())
	w := newProxiedWorld(t)
	w.says(t, append(append([]string{"up"}, w.flags(t, clientRules)...), "box")...)
	t.Cleanup(func() { w.on(t, "down", "box") })
	for _, r := range besideRules {
		t.Run(r.name, func(t *testing.T) {
			c := proxiedClient{script: r.script}
			if strings.Contains(r.script, "$POSTGRES") {
				c.program = "postgres"
				need(t, c.missing())
			}
			c.fails(t, w, noProxy, "", "", r.message, 0)
		})
	}
	w.outsideSees(t, []string{"web.test"})
}
