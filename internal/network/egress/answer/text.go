package answer

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// lowerASCII changes ASCII letters only: other bytes of a DNS name have no case (RFC 4343).
func lowerASCII(name string) string {
	b := []byte(name)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// isHost is true for names of hosts in lower case: letters, digits, hyphens and underscores. A rule
// for *.example.com allows no other bytes.
func isHost(name string) bool {
	const usual = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(usual, r) })
}

// printable writes unusual bytes as RFC 4343, section 2.1, does.
func printable(name string) string {
	if isHost(name) {
		return name
	}
	var b strings.Builder
	for _, c := range []byte(name) {
		if c > ' ' && c < 0x7f && c != '\\' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\%03d`, c)
		}
	}
	return b.String()
}

// reverse reads the address in the name of a PTR query (RFC 1035, section 3.5; RFC 3596, section 2.5).
func reverse(name string) (netip.Addr, bool) {
	if text, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(text, ".")
		slices.Reverse(parts)
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil && a.Is4()
	}
	text, ok := strings.CutSuffix(name, ".ip6.arpa")
	const digits = 32
	if !ok || len(text) != 2*digits-1 {
		return netip.Addr{}, false
	}
	parts := strings.Split(text, ".")
	slices.Reverse(parts)
	b, err := hex.DecodeString(strings.Join(parts, ""))
	if err != nil || len(parts) != digits {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(b)
}
