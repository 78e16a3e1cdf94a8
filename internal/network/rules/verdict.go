package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Verdict is the decision about a name, a connection or a request.
type Verdict struct {
	Allowed bool
	// Rule is the rule that decided, without its reason. It is empty if no rule covers the case.
	Rule string
	// Reason is one sentence for people. If the case is allowed, Reason is the reason of the rule,
	// which may be empty.
	Reason string
	// IsSingle says that Rule names one address, not a range. A range does not open the host's own
	// addresses.
	IsSingle bool
	// IsHTTP says that Connect refuses a connection for which Request could allow requests.
	IsHTTP bool
}

// IsDenied says that a deny rule decided.
func (v Verdict) IsDenied() bool { return !v.Allowed && v.Rule != "" }

func allowedBy(e *entry) Verdict {
	return Verdict{Allowed: true, Rule: e.text(), Reason: e.reason, IsSingle: e.prefix.IsValid() && e.prefix.IsSingleIP()}
}

func deniedBy(e *entry, what, why string) Verdict {
	reason := fmt.Sprintf("%s denies %s%s; deny rules win over allow rules", flagText("--deny", e.text()), what, why)
	if e.reason != "" {
		reason += ": " + e.reason
	}
	return Verdict{Rule: e.text(), Reason: reason}
}

// missing refuses a case without a rule. The new rule would allow the case.
func missing(what, rule string) Verdict {
	return Verdict{Reason: fmt.Sprintf("%s is not allowed; add %s", what, flagText("--allow", rule))}
}

func flagText(name, rule string) string {
	if strings.Contains(rule, " ") {
		rule = `"` + rule + `"`
	}
	return name + " " + rule
}

func invalidName(name string, err error) Verdict {
	return Verdict{Reason: fmt.Sprintf("%.80q cannot be a name: %v", name, err)}
}

// Name says whether rules allow a name on any port, for any traffic.
func (l *List) Name(text string) Verdict {
	name, err := askedName(text)
	if err != nil {
		return invalidName(text, err)
	}
	var denied []spec.PortRange
	var last *entry
	for e := range l.deny.byName(name) {
		if !e.isHTTP {
			denied, last = append(denied, e.ports...), e
		}
	}
	denied = merged(denied)
	hasRule := false
	for e := range l.allow.byName(name) {
		hasRule = true
		for _, p := range e.ports {
			if !isInside(p, denied) {
				return allowedBy(e)
			}
		}
	}
	if last != nil && (hasRule || isInside(spec.PortRange{First: 0, Last: 65535}, denied)) {
		return deniedBy(last, name, "")
	}
	return missing(name, name)
}

// isInside says whether a range is inside one of the merged ranges.
func isInside(p spec.PortRange, ranges []spec.PortRange) bool {
	return slices.ContainsFunc(ranges, func(r spec.PortRange) bool { return r.First <= p.First && p.Last <= r.Last })
}

// Connect judges a connection to a name whose bytes no rule can judge: TLS that is passed through, or any
// other protocol. Rules for plain HTTP do not allow it. For plain HTTP ask Request instead.
func (l *List) Connect(text string, port uint16) Verdict {
	name, err := askedName(text)
	if err != nil {
		return invalidName(text, err)
	}
	what := fmt.Sprintf("%s:%d", name, port)
	for e := range l.deny.byName(name) {
		if e.covers(port) && e.isHTTP {
			v := deniedBy(e, what, ", since it can be judged only in plain HTTP, and this is other traffic. Name the ports of plain HTTP in the rule")
			v.IsHTTP = true
			return v
		} else if e.covers(port) {
			return deniedBy(e, what, "")
		}
	}
	hasRule, isHTTP := false, false
	for e := range l.allow.byName(name) {
		if e.covers(port) && !e.isHTTP {
			return allowedBy(e)
		}
		hasRule, isHTTP = true, isHTTP || e.covers(port)
	}
	if isHTTP {
		v := missing("traffic with "+what+" other than plain HTTP", what)
		v.IsHTTP = true
		return v
	}
	return missing(what, nameRule(name, port, hasRule))
}

// nameRule is the rule that a person would add for a port of a name.
func nameRule(name string, port uint16, hasRule bool) string {
	if !hasRule && (port == 80 || port == 443) {
		return name
	}
	return fmt.Sprintf("%s:%d", name, port)
}

// Request judges a request of plain HTTP. The path is as the client sent it, and may have a query. A
// request that changes the protocol (Upgrade) also needs Connect: rules for plain HTTP cannot judge the
// bytes after such a request.
func (l *List) Request(text string, port uint16, method, path string) Verdict {
	name, err := askedName(text)
	if err != nil {
		return invalidName(text, err)
	}
	path, _, _ = strings.Cut(path, "?")
	asked, unclear := segments(path)
	what := fmt.Sprintf("%s:%d", name, port)
	for e := range l.deny.byName(name) {
		switch {
		case !e.covers(port) || !e.denies(method):
		case len(e.path) > 0 && unclear != nil:
			return deniedBy(e, what, ", since the path of the request "+unclear.Error())
		case e.isAbove(asked):
			return deniedBy(e, what, "")
		}
	}
	hasRule, isHTTP := false, false
	for e := range l.allow.byName(name) {
		hasRule = true
		switch {
		case !e.covers(port):
		case e.allows(method) && (len(e.path) == 0 || unclear == nil && e.isAbove(asked)):
			return allowedBy(e)
		default:
			isHTTP = true
		}
	}
	switch {
	case isHTTP && unclear != nil:
		return Verdict{Reason: fmt.Sprintf("a request to %s is not allowed, since its path %v; a rule without a path would allow it", what, unclear)}
	case isHTTP:
		return missing("this request to "+what, requestRule(name, port, method, asked))
	}
	return missing(what, nameRule(name, port, hasRule))
}

// maxSuggestion is how long the path of a suggested rule may be, in bytes.
const maxSuggestion = 200

// requestRule is the rule that a person would add for a request. The sandbox chose method and path.
func requestRule(name string, port uint16, method string, path []string) string {
	if port != 80 {
		name = fmt.Sprintf("%s:%d", name, port)
	}
	if isMethod(method) {
		name = method + " " + name
	}
	escaped := escapedPath(path)
	for len(escaped) > maxSuggestion {
		path = path[:len(path)/2]
		escaped = escapedPath(path)
	}
	return name + escaped
}

// Address judges a connection to an address without a name. It also judges each address that an
// allowed name resolves to: there IsDenied forbids the address, Allowed opens an address that is not
// public, and without a rule only public addresses are open.
//
// No rule opens an address that the inside of a sandbox uses, 127.0.0.1 for example.
func (l *List) Address(a netip.Addr, port uint16) Verdict {
	a = a.WithZone("")
	what := netip.AddrPortFrom(a, port).String()
	for _, form := range addressForms(a) {
		for e := range l.deny.byAddress(form) {
			if e.covers(port) {
				return deniedBy(e, what, "")
			}
		}
	}
	switch {
	case !a.IsValid():
		return Verdict{Reason: "there is no address"}
	case a.Is4In6():
		return Verdict{Reason: fmt.Sprintf("%s is an IPv4 address in IPv6 form; connect to %s", what, netip.AddrPortFrom(a.Unmap(), port))}
	case a.IsLoopback() || a.IsUnspecified() || names.Reserved(a):
		return Verdict{Reason: fmt.Sprintf("%s is an address of the sandbox itself; it leads to no other host", what)}
	}
	for e := range l.allow.byAddress(a) {
		if e.covers(port) {
			return allowedBy(e)
		}
	}
	return MissingAddress(netip.AddrPortFrom(a, port))
}

// MissingAddress refuses an address without a rule.
func MissingAddress(a netip.AddrPort) Verdict { return missing(a.String(), a.String()) }

// Ranges of IPv6 with IPv4 addresses in them (RFC 6052, RFC 3056).
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// addressForms are an address and the IPv4 address that it stands for. Deny rules cover both.
func addressForms(a netip.Addr) []netip.Addr {
	bytes := a.As16()
	switch {
	case !a.IsValid():
		return nil
	case a.Is4In6():
		return []netip.Addr{a, a.Unmap()}
	case nat64.Contains(a):
		return []netip.Addr{a, netip.AddrFrom4([4]byte(bytes[12:16]))}
	case sixToFour.Contains(a):
		return []netip.Addr{a, netip.AddrFrom4([4]byte(bytes[2:6]))}
	}
	return []netip.Addr{a}
}
