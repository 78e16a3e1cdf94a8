package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const (
	// MaxRules is how many rules a list may have, with the rules of its presets.
	MaxRules = 10_000
	// MaxText is how long the text of a rule may be, in bytes.
	MaxText = 4096
)

// reasonMark stands between a rule and its reason.
const reasonMark = " ; "

// Parse reads one text as it is given after --allow or --deny. A preset is several rules, and any
// other text is one.
func Parse(text string) ([]Rule, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("the rule that begins with %q has %d bytes; the most are %d", text[:40], len(text), MaxText)
	}
	rule, reason, hasReason := strings.Cut(text, reasonMark)
	if hasReason {
		rule = strings.TrimRight(rule, " \t") // in files the reasons stand below each other
		if err := checkReason(reason); err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
	}
	parsed, err := parseOneOrPreset(rule)
	if err != nil {
		return nil, err
	}
	for i := range parsed {
		parsed[i].reason = reason
		if n := len(parsed[i].String()); n > MaxText {
			return nil, fmt.Errorf("the rule that begins with %q has %d bytes in its ASCII form; the most are %d", text[:40], n, MaxText)
		}
	}
	return parsed, nil
}

func parseOneOrPreset(text string) ([]Rule, error) {
	if name, isPreset := strings.CutPrefix(text, "@"); isPreset {
		return preset(name)
	}
	parse := parseNamed
	if isAddress(text) && !strings.Contains(text, " ") {
		parse = parseAddress
	}
	r, err := parse(text)
	if err != nil {
		return nil, err
	}
	return []Rule{r}, nil
}

// checkReason refuses a reason that would change a terminal.
func checkReason(reason string) error {
	if strings.TrimSpace(reason) != reason || reason == "" {
		return errors.New("write the reason right after the ; and one space")
	}
	if !utf8.ValidString(reason) {
		return errors.New("the reason is not UTF-8")
	}
	if i := strings.IndexFunc(reason, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		return fmt.Errorf("the reason has a character that cannot be printed at byte %d", i)
	}
	return nil
}

// isAddress says whether a text without methods is meant as a rule for addresses.
func isAddress(text string) bool {
	head, _, _ := strings.Cut(text, "/")
	host, _, _ := strings.Cut(head, ":")
	return strings.HasPrefix(text, "[") || strings.Count(head, ":") > 1 || endsInNumber(host)
}

// parseAddress reads a rule for addresses.
func parseAddress(text string) (Rule, error) {
	address, _, _ := strings.Cut(strings.TrimPrefix(text, "["), "]")
	address, _, _ = strings.Cut(address, "/")
	if strings.Count(address, ":") == 1 {
		address, _, _ = strings.Cut(address, ":")
	}
	if _, err := netip.ParseAddr(address); err != nil {
		if strings.Contains(address, ":") || strings.HasPrefix(text, "[") {
			return Rule{}, fmt.Errorf("%q: %q is no IPv6 address; a name has one colon at most, as in NAME:PORT", text, address)
		}
		return Rule{}, fmt.Errorf("%q: %q is no IPv4 address, and no name ends in a number; write the address as in 192.0.2.1", text, address)
	}
	if before, ports, hasBits := strings.Cut(text, "/"); hasBits && before == address && strings.Contains(address, ":") && strings.Contains(ports, ":") {
		return Rule{}, fmt.Errorf("%q: write an IPv6 address with ports in brackets, as in [%s]/%s", text, address, ports)
	}
	parsed, err := spec.ParseAddressRule(text)
	if err != nil {
		return Rule{}, err
	}
	if reason := useless(parsed.Prefix); reason != "" {
		return Rule{}, fmt.Errorf("%q: %s", text, reason)
	}
	return Rule{prefix: parsed.Prefix, ports: parsed.Ports}, nil
}

// useless returns the reason why a rule for these addresses has no effect. It is empty if the rule
// has one.
func useless(p netip.Prefix) string {
	switch ours := names.Range(p.Addr()); {
	case p.Addr().IsLoopback():
		return "the sandbox itself has this address, and no rule is needed to reach it; a service of the host must listen at another address"
	case p.Addr().IsUnspecified() && p.IsSingleIP():
		return "no host has this address"
	case ours.Contains(p.Addr()) && p.Bits() >= ours.Bits():
		return fmt.Sprintf("the addresses in %s stand for names inside the sandbox; write a rule for the name", ours)
	}
	return ""
}

// parseNamed reads a rule for a name.
func parseNamed(text string) (Rule, error) {
	r, err := parseRequest(text)
	if err != nil {
		return Rule{}, fmt.Errorf("%q: %w", text, err)
	}
	return r, nil
}

func parseRequest(text string) (r Rule, err error) {
	if text == "" {
		return r, errors.New("the rule is empty; write a name, such as example.com")
	}
	if scheme, rest, hasScheme := strings.Cut(text, "://"); hasScheme {
		return r, withoutScheme(scheme, rest)
	}
	methods, target, hasMethods := strings.Cut(text, " ")
	if !hasMethods {
		target = text
	} else if r.methods, err = parseMethods(methods); err != nil {
		return r, err
	}
	head, path, hasPath := strings.Cut(target, "/")
	r.isHTTP = hasMethods || hasPath
	if r.isHTTP && isAddress(target) {
		return r, fmt.Errorf("methods and paths need a name, and %q is an address", head)
	}
	if r.path, err = segments("/" + path); err != nil {
		return r, fmt.Errorf("path %q: %w", "/"+path, err)
	}
	return r, r.parseHead(head)
}

// withoutScheme is the error of a URL. A rule with a path, also with the path /, would be for plain HTTP.
func withoutScheme(scheme, rest string) error {
	name, path, _ := strings.Cut(rest, "/")
	switch {
	case path == "":
		return fmt.Errorf("a rule has no %q in front; write %s", scheme+"://", name)
	case !strings.HasSuffix(scheme, "http"):
		return fmt.Errorf("a rule has no %q in front; write %s, since paths can be judged only in plain HTTP", scheme+"://", name)
	}
	return fmt.Errorf("a rule has no %q in front; write %s", scheme+"://", rest)
}

// parseHead reads the name and the ports.
func (r *Rule) parseHead(head string) (err error) {
	name, ports, hasPorts := strings.Cut(head, ":")
	if hasPorts && ports == "" {
		return errors.New("there is no port after the colon")
	}
	if hasPorts {
		if r.ports, err = spec.ParsePorts(ports); err != nil {
			return err
		}
	}
	if name == "*" {
		return errors.New("* alone would be every name; write *.SUFFIX")
	}
	name, r.isSuffix = strings.CutPrefix(name, "*.")
	r.name, err = parseName(name)
	return err
}

// maxMethod is how long the name of a method may be, in bytes.
const maxMethod = 32

func parseMethods(text string) ([]string, error) {
	methods := strings.Split(text, ",")
	for _, m := range methods {
		if m == "DENY" || m == "ALLOW" { // else a rule of a file that shall deny would allow
			return nil, fmt.Errorf("%q is no method; in a file write \"deny RULE\" in lower case for a rule that denies, and RULE alone for one that allows", m)
		}
		if !isMethod(m) {
			return nil, fmt.Errorf("%q is no method; write methods in upper case, with a comma between them and one space behind, as in GET,HEAD NAME", m)
		}
	}
	slices.Sort(methods)
	return slices.Compact(methods), nil
}

func isMethod(text string) bool {
	isNot := func(r rune) bool { return (r < 'A' || r > 'Z') && r != '-' }
	return text != "" && len(text) <= maxMethod && !strings.ContainsFunc(text, isNot)
}
