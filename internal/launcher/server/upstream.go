package server

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// readUpstream reads the upstream proxy of the rule.
func (r *Rule) readUpstream() (err error) {
	if r.UpstreamProxy == "" {
		return nil
	}
	if !slices.Contains(r.Networks, spec.NetworkProxied) {
		return errors.New(`upstream_proxy: add "proxied" to networks`)
	}
	r.shownUpstream, r.upstream, err = rules.ResolveUpstream(r.UpstreamProxy)
	if err != nil {
		return fmt.Errorf("upstream_proxy: %w", err)
	}
	if r.upstream.IsEmpty() {
		return errors.New("upstream_proxy: env, and the environment of the launcher has no HTTP_PROXY and no HTTPS_PROXY; set one of them, or write a URL")
	}
	return nil
}

// setUpstream gives a grant the upstream proxy of the rule. A user cannot name one: the launcher's worker would connect to
// any host that the user chooses, with the host's network. A nil grant changes no network.
func (r *Rule) setUpstream(g *spec.NetworkGrant, asked *spec.Upstream) (*spec.Upstream, error) {
	switch {
	case r.all || g == nil:
		return asked, nil
	case (g.UpstreamProxy != "" || asked != nil) && r.upstream == nil:
		return nil, refused("upstream_proxy: a user cannot choose the upstream proxy; root can add upstream_proxy to the rule for user %s", r.User)
	case g.UpstreamProxy != "" || asked != nil:
		return nil, refused("upstream_proxy: the rule for user %s has the upstream proxy of all sandboxes of the user; leave the field out", r.User)
	case r.upstream == nil || g.Kind() != spec.NetworkProxied:
		return nil, nil
	}
	g.UpstreamProxy = r.shownUpstream
	return r.upstream, nil
}
