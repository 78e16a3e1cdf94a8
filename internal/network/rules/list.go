package rules

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A List is the rules of one sandbox. The zero value refuses everything.
type List struct {
	allow, deny index
}

// New makes a list from the texts of --allow and --deny. The error names each wrong rule by its
// place, such as allow[2].
func New(allow, deny []string) (*List, error) {
	l := &List{newIndex(), newIndex()}
	var wrong faults
	count := 0
	add := func(field string, texts []string, x *index, ports func(Rule) []spec.PortRange) {
		for i, text := range texts {
			parsed, err := Parse(text)
			if err != nil {
				wrong.add(fmt.Errorf("%s[%d]: %w", field, i, err))
			}
			if count += len(parsed); count > MaxRules {
				return
			}
			for _, r := range parsed {
				x.add(&entry{r, ports(r)})
			}
		}
	}
	add("allow", allow, &l.allow, Rule.allowedPorts)
	add("deny", deny, &l.deny, Rule.deniedPorts)
	if count > MaxRules {
		return nil, fmt.Errorf("there are more than %d rules; write a suffix or a range for several rules", MaxRules)
	}
	if err := wrong.join(); err != nil {
		return nil, err
	}
	return l, nil
}

// Ports are all ports of the allow rules, sorted, each once.
func (l *List) Ports() []spec.PortRange {
	return merged(slices.Clone(l.allow.ports))
}

// An entry is a rule of a list.
type entry struct {
	Rule
	ports []spec.PortRange
}

func (e *entry) covers(port uint16) bool {
	return slices.ContainsFunc(e.ports, func(p spec.PortRange) bool { return p.First <= port && port <= p.Last })
}

// An index finds the rules for a name or an address. Its maps make that quick with many rules.
type index struct {
	names, suffixes map[string][]*entry
	prefixes        map[netip.Prefix][]*entry
	// bits4 and bits6 are the lengths of the prefixes, the longest first.
	bits4, bits6 []int
	// ports are those of all rules.
	ports []spec.PortRange
}

func newIndex() index {
	return index{names: map[string][]*entry{}, suffixes: map[string][]*entry{}, prefixes: map[netip.Prefix][]*entry{}}
}

func (x *index) add(e *entry) {
	x.ports = append(x.ports, e.ports...)
	switch {
	case e.isSuffix:
		x.suffixes[e.name] = append(x.suffixes[e.name], e)
	case e.name != "":
		x.names[e.name] = append(x.names[e.name], e)
	default:
		x.prefixes[e.prefix] = append(x.prefixes[e.prefix], e)
		bits := x.bits(e.prefix.Addr())
		if !slices.Contains(*bits, e.prefix.Bits()) {
			*bits = append(*bits, e.prefix.Bits())
			slices.SortFunc(*bits, func(a, b int) int { return b - a })
		}
	}
}

func (x *index) bits(a netip.Addr) *[]int {
	if a.Is4() {
		return &x.bits4
	}
	return &x.bits6
}

// byName are the rules for a name, the closest first.
func (x *index) byName(name string) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		if !yieldAll(x.names[name], yield) {
			return
		}
		for rest, isMore := name, true; isMore; {
			if _, rest, isMore = strings.Cut(rest, "."); isMore && !yieldAll(x.suffixes[rest], yield) {
				return
			}
		}
	}
}

// byAddress are the rules for an address, the closest first.
func (x *index) byAddress(a netip.Addr) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, bits := range *x.bits(a) {
			if p, err := a.Prefix(bits); err != nil || !yieldAll(x.prefixes[p], yield) {
				return
			}
		}
	}
}

func yieldAll(entries []*entry, yield func(*entry) bool) bool {
	for _, e := range entries {
		if !yield(e) {
			return false
		}
	}
	return true
}

// merged are the same ports, sorted, without overlaps and neighbours.
func merged(ranges []spec.PortRange) []spec.PortRange {
	slices.SortFunc(ranges, func(a, b spec.PortRange) int { return int(a.First) - int(b.First) })
	var all []spec.PortRange
	for _, r := range ranges {
		if n := len(all); n > 0 && int(r.First) <= int(all[n-1].Last)+1 {
			all[n-1].Last = max(all[n-1].Last, r.Last)
		} else {
			all = append(all, r)
		}
	}
	return all
}
