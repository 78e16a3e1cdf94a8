package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ParseAll reads the texts of --allow. Its error begins with the place of the wrong text, such as [2].
func ParseAll(texts []string) (all []Rule, err error) {
	for i, text := range texts {
		parsed, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		if all = append(all, parsed...); len(all) > MaxRules {
			return nil, fmt.Errorf("[%d]: there are more than %d rules", i, MaxRules)
		}
	}
	return all, nil
}

// IsAddress says whether the rule is for addresses.
func (r Rule) IsAddress() bool { return r.prefix.IsValid() }

// Covers says whether a list that allows by r allows at least as much as one that allows by other. A range does not
// cover a rule for one of its addresses: such a rule opens an address of the host, too.
func (r Rule) Covers(other Rule) bool {
	return r.coversDestination(other) && coverPorts(r.allowedPorts(), other.allowedPorts()) && r.coversRequests(other)
}

func (r Rule) coversDestination(other Rule) bool {
	switch {
	case r.IsAddress() || other.IsAddress():
		return r.IsAddress() && other.IsAddress() && r.prefix.Bits() <= other.prefix.Bits() && r.prefix.Contains(other.prefix.Addr()) &&
			r.prefix.IsSingleIP() == other.prefix.IsSingleIP()
	case !r.isSuffix:
		return !other.isSuffix && r.name == other.name
	}
	return strings.HasSuffix(other.name, "."+r.name) || other.isSuffix && r.name == other.name
}

// coverPorts says whether each of the other ranges is inside a range.
func coverPorts(ranges, others []spec.PortRange) bool {
	return !slices.ContainsFunc(others, func(p spec.PortRange) bool { return !isInside(p, ranges) })
}

// coversRequests compares the methods and paths of plain HTTP.
func (r Rule) coversRequests(other Rule) bool {
	if !r.isHTTP {
		return true
	}
	if !other.isHTTP || !r.isAbove(other.path) {
		return false
	}
	return len(r.methods) == 0 || len(other.methods) > 0 && !slices.ContainsFunc(other.methods, func(m string) bool { return !r.allows(m) })
}
