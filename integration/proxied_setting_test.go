package integration

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// settingClients are clients that ask the proxy of HTTP_PROXY, with a part of their messages about a refusal of
// the proxy.
var settingClients = map[string]string{
	"curl over HTTP/2": "CONNECT tunnel failed, response 403",
	"wget":             "Proxy tunneling failed",
	"git over https":   "CONNECT tunnel failed, response 403",
	"pip":              "Tunnel connection failed: 403",
	"python":           "Tunnel connection failed: 403",
	"npm":              "E403",
	"go":               "is not allowed; add --allow",
	"apt":              "Invalid response from proxy: HTTP/1.1 403",
}

// Clients that ask the proxy of HTTP_PROXY work to the same names, and fail at once at others.
func TestClientsWorkWithAProxySetting(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newProxiedWorld(t)
	w.says(t, append(append([]string{"up"}, w.flags(t, clientRules)...), "box")...)
	t.Cleanup(func() { w.on(t, "down", "box") })
	for name, message := range settingClients {
		t.Run(name, func(t *testing.T) {
			c := clientOf(t, name)
			need(t, c.missing())
			success := timed(func() { c.succeeds(t, w, "with a setting", "") })
			c.fails(t, w, "", forbiddenName, c.port, message, success)
			c.fails(t, w, "", c.host, c.otherPort, message, success)
		})
	}
	w.outsideSees(t, clientRules, "dns "+serverName, "tls "+serverName, "http "+serverName)
}
