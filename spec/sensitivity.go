package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Sensitivity is the level of the most sensitive data that a sandbox has seen. It bounds the
// network of the sandbox. The level of a sandbox rises, and never falls.
type Sensitivity string

// The levels, the lowest first.
const (
	SensitivityPublic       Sensitivity = "public"
	SensitivityInternal     Sensitivity = "internal"
	SensitivityConfidential Sensitivity = "confidential"
	SensitivitySecret       Sensitivity = "secret"
)

// Sensitivities are all levels, the lowest first.
func Sensitivities() []Sensitivity {
	return []Sensitivity{SensitivityPublic, SensitivityInternal, SensitivityConfidential, SensitivitySecret}
}

// Above reports whether the level is higher than the other level. Each level is above one that is not
// among [Sensitivities]. The empty level is public.
func (s Sensitivity) Above(other Sensitivity) bool { return s.rank() > other.rank() }

func (s Sensitivity) rank() int {
	return slices.Index(Sensitivities(), cmp.Or(s, SensitivityPublic))
}

// Networks are all networks, the narrowest first.
func Networks() []Network { return []Network{NetworkNone, NetworkProxied, NetworkFull} }

// width grows with the part of the network that a sandbox can reach. It is -1 for an unknown network.
func (n Network) width() int { return slices.Index(Networks(), n) }

// ceilings are the widest networks of the levels, if the configuration names no others.
var ceilings = map[Sensitivity]Network{
	SensitivityPublic:       NetworkFull,
	SensitivityInternal:     NetworkFull,
	SensitivityConfidential: NetworkProxied,
	SensitivitySecret:       NetworkNone,
}

// ceiling is the widest network that the configuration permits at a level.
func (c Config) ceiling(s Sensitivity) Network {
	s = cmp.Or(s, SensitivityPublic)
	return cmp.Or(c.Ceilings[s], ceilings[s], NetworkNone)
}

// Permits says whether the sensitivity of the configuration permits its network.
func (c Config) Permits() bool {
	width := c.Network.width()
	if c.Observe {
		width = NetworkFull.width() // it reaches as many names
	}
	return width <= c.ceiling(c.Sensitivity).width()
}

// Raised is the configuration with the higher one of both levels. A network that this level does
// not permit becomes the widest one that the level permits, without rules: those of one network can be wrong
// for another one. Published ports close at a level that does not permit them.
func (c Config) Raised(to Sensitivity) Config {
	if to.Above(c.Sensitivity) {
		c.Sensitivity = to
	}
	if !c.permitsPublish() {
		c.Publish = nil
	}
	if c.Permits() {
		return c
	}
	if c.Observe = false; c.Permits() {
		return c
	}
	narrow := NetworkGrant{Network: c.ceiling(c.Sensitivity)}
	if c.hasNetworkLimits() { // those of full do not hold in another network
		narrow.Network = NetworkNone
	}
	return c.WithNetwork(narrow)
}

func (c Config) hasNetworkLimits() bool {
	return c.Limits.NetworkRate != 0 || c.Limits.NetworkQuota != 0
}

// A NetworkGrant is the network that the owner of a sandbox grants.
type NetworkGrant struct {
	Network Network `json:"network"`
	// Allow, Deny, Observe, Ask and Publish are those of [Config].
	Allow   []string `json:"allow,omitempty"`
	Deny    []string `json:"deny,omitempty"`
	Observe bool     `json:"observe,omitempty"`
	Ask     bool     `json:"ask,omitempty"`
	Publish []string `json:"publish,omitempty"`
	// UpstreamProxy is that of [Config].
	UpstreamProxy string `json:"upstream_proxy,omitempty"`
}

// Kind is the network of the grant. Without a name of a network it is NetworkProxied if there are rules,
// Observe or Ask, else NetworkNone.
func (g NetworkGrant) Kind() Network {
	if g.Network == "" && (len(g.Allow) > 0 || len(g.Deny) > 0 || g.Observe || g.Ask) {
		return NetworkProxied
	}
	return cmp.Or(g.Network, NetworkNone)
}

// permitsPublish says whether the level permits published ports. Their clients can be at any address, so such a level
// permits NetworkFull.
func (c Config) permitsPublish() bool { return c.ceiling(c.Sensitivity) == NetworkFull }

// WithNetwork is the configuration with the network of a grant.
func (c Config) WithNetwork(g NetworkGrant) Config {
	c.Network, c.Allow, c.Deny, c.Observe, c.Ask, c.Publish = g.Network, g.Allow, g.Deny, g.Observe, g.Ask, g.Publish
	c.UpstreamProxy = g.UpstreamProxy
	return c
}

// Grant is the network of the configuration.
func (c Config) Grant() NetworkGrant {
	return NetworkGrant{
		Network: c.Network, Allow: c.Allow, Deny: c.Deny, Observe: c.Observe, Ask: c.Ask, Publish: c.Publish, UpstreamProxy: c.UpstreamProxy,
	}
}

// Equal reports whether both grants are the same.
func (g NetworkGrant) Equal(other NetworkGrant) bool {
	return g.Network == other.Network && g.Observe == other.Observe && g.Ask == other.Ask && g.UpstreamProxy == other.UpstreamProxy &&
		slices.Equal(g.Allow, other.Allow) && slices.Equal(g.Deny, other.Deny) && slices.Equal(g.Publish, other.Publish)
}

// Changed is the configuration of a live sandbox after a change. A nil grant leaves the network, as
// far as the level permits it. A level that is empty or below the present one changes nothing.
func (c Config) Changed(g *NetworkGrant, level Sensitivity) (Config, error) {
	if !slices.Contains(Sensitivities(), cmp.Or(level, SensitivityPublic)) {
		return c, &FieldError{"sensitivity", unknownLevel(level)}
	}
	c = c.Raised(level)
	if g != nil {
		c = c.WithNetwork(*g)
	}
	return c.Complete()
}

func unknownLevel(s Sensitivity) string {
	return fmt.Sprintf("unknown level %q; use public, internal, confidential or secret", s)
}

// A NetworkChange tells what a change of a live sandbox's network has done.
type NetworkChange struct {
	From Network `json:"from"`
	To   Network `json:"to"`
	// Sensitivity is the level of the sandbox now.
	Sensitivity Sensitivity `json:"sensitivity"`
	// Raised says that this change has raised the level.
	Raised bool `json:"raised"`
	// ConnectionsCut is the number of sockets in the sandbox that the change has ended. Their
	// readers and writers have the error ECONNABORTED, or ECONNRESET after new rules of NetworkProxied.
	ConnectionsCut int `json:"connections_cut"`
	// Message describes the change for a person or an agent.
	Message string `json:"message"`
}

// NewNetworkChange describes a change between two configurations of a sandbox.
func NewNetworkChange(from, to Config, cut int) NetworkChange {
	c := NetworkChange{
		From: from.Network, To: to.Network, Sensitivity: cmp.Or(to.Sensitivity, SensitivityPublic),
		Raised: to.Sensitivity.Above(from.Sensitivity), ConnectionsCut: cut,
	}
	switch {
	case c.Raised && c.From != c.To:
		c.Message = fmt.Sprintf("Network access has been restricted from %s to %s, because %s data entered this sandbox.", c.From, c.To, c.Sensitivity)
	case c.From != c.To:
		c.Message = fmt.Sprintf("The network of this sandbox has changed from %s to %s.", c.From, c.To)
	case c.Raised:
		c.Message = fmt.Sprintf("The sensitivity of this sandbox is %s now. Its network is still %s%s.", c.Sensitivity, c.To, otherRules(from, to))
	case !from.Grant().Equal(to.Grant()):
		c.Message = fmt.Sprintf("The network of this sandbox is still %s%s.", c.To, otherRules(from, to))
	default:
		c.Message = fmt.Sprintf("Nothing has changed: the network of this sandbox is %s, and its sensitivity is %s.", c.To, c.Sensitivity)
	}
	switch {
	case cut == 1:
		c.Message += " One open connection was ended."
	case cut > 1:
		c.Message += fmt.Sprintf(" %d open connections were ended.", cut)
	}
	switch {
	case c.To == NetworkNone && c.From != NetworkNone:
		c.Message += " Processes and files are unchanged. Programs in the sandbox cannot reach any address outside."
	case c.To == NetworkProxied && c.From == NetworkFull:
		c.Message += " Processes and files are unchanged. Programs in the sandbox reach only the names that its rules allow."
	}
	return c
}

// otherRules is the part of a message about a network of the same kind.
func otherRules(from, to Config) string {
	switch a, b := from.Grant(), to.Grant(); {
	case a.Equal(b):
		return ""
	case len(a.Publish) > 0 && len(b.Publish) == 0:
		return ", without published ports"
	case a.Observe && !b.Observe:
		return ", without --observe and with the names of its rules alone"
	case a.UpstreamProxy != "" && b.UpstreamProxy == "":
		return ", without the upstream proxy; repeat --upstream-proxy to keep it"
	default:
		return ", with other rules"
	}
}

// validateSensitivity refuses unknown levels, a higher level with a wider network, and a network
// that the level does not permit.
func (c Config) validateSensitivity(p *problems) {
	if !slices.Contains(Sensitivities(), c.Sensitivity) {
		p.add("sensitivity", "%s", unknownLevel(c.Sensitivity))
		return
	}
	before := len(*p)
	for _, level := range slices.Sorted(maps.Keys(c.Ceilings)) {
		if !slices.Contains(Sensitivities(), level) {
			p.add("ceilings", "%s", unknownLevel(level))
		}
		if network := c.Ceilings[level]; network.width() < 0 {
			p.add("ceilings."+string(level), "unknown network %q; use one of %q", network, Networks())
		}
	}
	lower := NetworkFull
	for _, level := range Sensitivities() {
		network := c.ceiling(level)
		if network.width() > lower.width() {
			p.add("ceilings."+string(level), "%q is wider than %q, the network of a lower level", network, lower)
		}
		lower = network
	}
	switch {
	case len(*p) > before || c.Permits():
	case c.Observe && c.ceiling(c.Sensitivity) == NetworkProxied:
		p.add("observe", "it reaches each name, and the sensitivity %q permits only named ones; name them with allow", c.Sensitivity)
	default:
		p.add("network", "the sensitivity %q permits at most the network %q, and a sensitivity never falls; use %q",
			c.Sensitivity, c.ceiling(c.Sensitivity), c.ceiling(c.Sensitivity))
	}
}
