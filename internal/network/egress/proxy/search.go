package proxy

import (
	"slices"
	"strings"
)

// fullName is the name that a program without the proxy looks up for the name of a request. A name without a dot has the
// first search domain with which it exists: programs that ask the proxy leave that to the proxy.
func (b *Sandbox) fullName(name string) string {
	if b.Exists == nil || !isShort(name) {
		return name
	}
	for _, domain := range b.Search {
		if longer := name + "." + domain; b.Exists(longer) {
			return longer
		}
	}
	return name
}

// matchesHost says whether a request for a host is one for the name: a program that has found the name by a search domain
// asks the server for the short one. A name with a dot can be that of another customer of the same server, so it must be
// the whole name.
func (b *Sandbox) matchesHost(host, name string) bool {
	return host == name ||
		isShort(host) && slices.ContainsFunc(b.Search, func(domain string) bool { return name == host+"."+domain })
}

// isShort is true for the names that programs look up in the search domains first. "localhost" is the sandbox itself.
func isShort(name string) bool {
	return name != "" && name != "localhost" && !strings.Contains(name, ".")
}
