package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Rule is one parsed rule. It covers the same traffic as an allow rule and as a deny rule, except
// for the ports of a rule without ports.
type Rule struct {
	// name is in its ASCII form. It is empty in a rule for addresses.
	name string
	// isSuffix stands for the names below name.
	isSuffix bool
	prefix   netip.Prefix
	// ports are zero if the text has none.
	ports spec.PortRange
	// isHTTP marks a rule with a path, with methods or with both. It is for plain HTTP.
	isHTTP bool
	// methods are sorted. None stands for all.
	methods []string
	// path has the decoded segments of the prefix.
	path   []string
	reason string
}

// String is the rule in the form that Parse reads, with its reason.
func (r Rule) String() string {
	if r.reason == "" {
		return r.text()
	}
	return r.text() + reasonMark + r.reason
}

// text is the rule without its reason.
func (r Rule) text() string {
	var b strings.Builder
	if len(r.methods) > 0 {
		b.WriteString(strings.Join(r.methods, ",") + " ")
	}
	b.WriteString(r.destination())
	if r.isHTTP {
		b.WriteString(escapedPath(r.path))
	}
	return b.String()
}

func (r Rule) destination() string {
	ports := portsText(r.ports)
	switch {
	case r.isSuffix:
		return "*." + r.name + ports
	case r.name != "":
		return r.name + ports
	}
	address, bits := r.prefix.Addr().String(), ""
	if !r.prefix.IsSingleIP() {
		bits = fmt.Sprintf("/%d", r.prefix.Bits())
	}
	if r.prefix.Addr().Is6() && ports != "" {
		address = "[" + address + "]"
	}
	return address + bits + ports
}

func portsText(p spec.PortRange) string {
	switch {
	case p == spec.PortRange{}:
		return ""
	case p.First == p.Last:
		return fmt.Sprintf(":%d", p.First)
	}
	return fmt.Sprintf(":%d-%d", p.First, p.Last)
}

// allowedPorts are the ports of an allow rule.
func (r Rule) allowedPorts() []spec.PortRange {
	switch {
	case r.ports != spec.PortRange{}:
		return []spec.PortRange{r.ports}
	case r.isHTTP:
		return []spec.PortRange{{First: 80, Last: 80}}
	}
	return []spec.PortRange{{First: 80, Last: 80}, {First: 443, Last: 443}}
}

// deniedPorts are the ports of a deny rule.
func (r Rule) deniedPorts() []spec.PortRange {
	if r.ports == (spec.PortRange{}) {
		return []spec.PortRange{{First: 0, Last: 65535}}
	}
	return []spec.PortRange{r.ports}
}

// allows says whether an allow rule for plain HTTP covers a method. Methods are case-sensitive
// (RFC 9110, section 9.1).
func (r Rule) allows(method string) bool {
	return len(r.methods) == 0 || slices.Contains(r.methods, method)
}

// denies says whether a deny rule for plain HTTP covers a method. Some servers ignore the case.
func (r Rule) denies(method string) bool {
	return len(r.methods) == 0 || slices.ContainsFunc(r.methods, func(m string) bool { return strings.EqualFold(m, method) })
}

// isAbove says whether the rule's path is a prefix of another path.
func (r Rule) isAbove(path []string) bool {
	return len(r.path) <= len(path) && slices.Equal(r.path, path[:len(r.path)])
}
