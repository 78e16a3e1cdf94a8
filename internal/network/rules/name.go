package rules

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Bounds of names and labels, in bytes (RFC 1035, section 2.3.4).
const (
	maxName  = 253
	maxLabel = 63
)

// parseName returns the ASCII form of a name in a rule: lower case, without a dot at the end.
func parseName(text string) (string, error) {
	labels := strings.Split(strings.TrimSuffix(text, "."), ".")
	for i, label := range labels {
		labels[i] = lower(label)
		if isASCII(label) && !strings.HasPrefix(labels[i], "xn--") {
			continue
		}
		ascii, err := idna.Lookup.ToASCII(labels[i])
		if err != nil {
			return "", fmt.Errorf("label %d, %q, is no international name", i+1, label)
		}
		labels[i] = ascii
	}
	name := strings.Join(labels, ".")
	if err := checkName(name); err != nil {
		return "", err
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return "", errors.New("the sandbox itself has this name, and no rule is needed to reach it")
	}
	return name, nil
}

// askedName returns the name of a query or a connection in the form of parseName. Non-ASCII
// characters are refused there: programs send the ASCII form.
func askedName(text string) (string, error) {
	if len(text) > maxName+1 {
		return "", errors.New("it is too long")
	}
	name := lower(strings.TrimSuffix(text, "."))
	return name, checkName(name)
}

// lower changes only ASCII characters. IDNA maps the others.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}

// checkName checks a name in its ASCII form.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("there is no name; write a name, such as example.com")
	case len(name) > maxName:
		return fmt.Errorf("the name has %d bytes in its ASCII form; the most are %d", len(name), maxName)
	case endsInNumber(name):
		return errors.New("no name ends in a number; write an IPv4 address as in 192.0.2.1")
	}
	labels := strings.Split(name, ".")
	for i, label := range labels {
		if err := checkLabel(label, i == len(labels)-1); err != nil {
			return fmt.Errorf("label %d, %.80q, %w", i+1, label, err)
		}
	}
	return nil
}

func checkLabel(label string, isLast bool) error {
	switch {
	case label == "":
		return errors.New("is empty; remove one of the dots")
	case strings.Contains(label, "*"):
		return errors.New("has a *; only the first label can be *, as in *.example.com")
	case len(label) > maxLabel:
		return fmt.Errorf("has %d bytes in its ASCII form; the most are %d", len(label), maxLabel)
	case strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-"):
		return errors.New("begins or ends with a hyphen")
	case isLast && strings.Contains(label, "_"):
		return errors.New("is the last and has a _; only labels before it can have one")
	}
	for _, r := range label {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return fmt.Errorf("has the character %q; use letters, digits, - and _", r)
		}
	}
	return nil
}

// endsInNumber says whether the last label is a number, decimal, octal or hexadecimal. Programs
// read such a name as an IPv4 address (inet_aton(3); WHATWG URL, "ends in a number checker").
func endsInNumber(name string) bool {
	name = strings.TrimSuffix(name, ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	if len(last) > 1 && last[0] == '0' && (last[1] == 'x' || last[1] == 'X') {
		return strings.Trim(last[2:], "0123456789abcdefABCDEF") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
}
