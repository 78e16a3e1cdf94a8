package etcfiles

import (
	"fmt"
	"maps"
	"strings"
)

// UserName is the name of the sandbox's user in the generated passwd.
const UserName = "sandbox"

// Own are the files that are a sandbox's own.
type Own struct {
	UID, GID uint32 // of the sandbox's user
	Home     string
	Hostname string

	// NameServer is the address in resolv.conf. Empty: there is no such file.
	NameServer string
	// Search and ResolverOptions are the search domains and the options of resolv.conf.
	Search, ResolverOptions []string
}

// Files are the names and texts of all files.
func (o Own) Files() map[string]string {
	rootHome := "/"
	if o.UID == 0 {
		rootHome = o.Home
	}
	passwd := fmt.Sprintf("root:x:0:0:root:%s:/bin/sh\n", rootHome)
	if o.UID != 0 {
		passwd += fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/sh\n", UserName, o.UID, o.GID, UserName, o.Home)
	}
	group := "root:x:0:\n"
	if o.GID != 0 {
		group += fmt.Sprintf("%s:x:%d:\n", UserName, o.GID)
	}
	files := map[string]string{
		"passwd": passwd + "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
		"group":  group + "nogroup:x:65534:\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n" +
			"networks: files\nprotocols: files\nservices: files\n",
	}
	if o.NameServer != "" {
		files[ResolvConf] = o.Resolv()
	}
	maps.Copy(files, WithHostname(o.Hostname))
	return files
}

// WithHostname are the files of /etc with a host name.
func WithHostname(name string) map[string]string {
	files := map[string]string{"hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"}
	if name != "" {
		files["hosts"] += "127.0.1.1\t" + name + "\n"
		files["hostname"] = name + "\n"
	}
	return files
}

// ResolvConf is the name of the generated resolv.conf(5) in /etc.
const ResolvConf = "resolv.conf"

// Resolv is the sandbox's resolv.conf(5).
func (o Own) Resolv() string {
	text := "nameserver " + o.NameServer + "\n"
	if len(o.Search) > 0 {
		text += searchLines(o.Search)
	}
	if len(o.ResolverOptions) > 0 {
		text += "options " + strings.Join(o.ResolverOptions, " ") + "\n"
	}
	return text
}

// searchLines have the search domains. musl and glibc before 2.26 take at most 256 bytes of a line, and six domains: a
// longer line has a short one before it. musl ignores the longer one, and glibc takes the last one.
func searchLines(domains []string) string {
	const most, mostDomains = 255, 6
	line := func(some []string) string { return "search " + strings.Join(some, " ") + "\n" }
	all := line(domains)
	first := domains[:min(len(domains), mostDomains)]
	for len(first) > 1 && len(line(first)) > most {
		first = first[:len(first)-1]
	}
	if short := line(first); short != all && len(all) > most && len(short) <= most {
		return short + all
	}
	return all
}

// Validate checks the words of the generated resolv.conf(5).
func (o Own) Validate() error {
	for _, word := range append(o.Search[:len(o.Search):len(o.Search)], o.ResolverOptions...) {
		if word == "" || strings.ContainsAny(word, " \t\r\n\x00#;") {
			return fmt.Errorf("resolv.conf: %q: no space, line break, # or ; may be in it", word)
		}
	}
	return nil
}
