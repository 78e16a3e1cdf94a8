package networks

import (
	"errors"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// checkUpstream refuses a configuration whose upstream proxies are missing, or not those of its field. The field must
// have no password, since other people may read the configuration.
func checkUpstream(c spec.Config, u *spec.Upstream) error {
	if (c.UpstreamProxy == "") != (u == nil) || spec.ShownUpstream(c.UpstreamProxy) != c.UpstreamProxy {
		return errors.New("upstream_proxy: the request has the name of an upstream proxy without its setting, or a password in the name; use a client of this version")
	}
	if u == nil {
		return nil
	}
	_, err := upstream.New(*u)
	return err
}

// hintOf is the way out for a server that the sandbox of a record has not reached without an upstream proxy. It is empty
// if nothing hints at one.
func hintOf(r record.Record) string {
	switch {
	case r.Upstream != nil && r.Upstream.IsEmpty():
		return "--upstream-proxy env has found no HTTP_PROXY and no HTTPS_PROXY in the environment (sudo removes them: use sudo -E)"
	case r.Upstream != nil || !rules.HasUpstreamEnvironment():
		return ""
	case r.UID == 0:
		return "the host's environment names a proxy: add --upstream-proxy env"
	}
	return "the host's environment names a proxy: root can add upstream_proxy to the rule of the user"
}
