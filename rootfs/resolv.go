package rootfs

import (
	"fmt"
	"strings"
)

// resolvName is the name of the generated resolv.conf(5) in /etc.
const resolvName = "resolv.conf"

// resolvConf is the sandbox's resolv.conf(5).
func resolvConf(cfg *Config) string {
	text := "nameserver " + cfg.NameServer + "\n"
	if len(cfg.Search) > 0 {
		text += searchLines(cfg.Search)
	}
	if len(cfg.ResolverOptions) > 0 {
		text += "options " + strings.Join(cfg.ResolverOptions, " ") + "\n"
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

// validateResolver checks the words of the generated resolv.conf(5).
func (c *Config) validateResolver() error {
	for _, word := range append(c.Search[:len(c.Search):len(c.Search)], c.ResolverOptions...) {
		if word == "" || strings.ContainsAny(word, " \t\r\n\x00#;") {
			return fmt.Errorf("resolv.conf: %q: no space, line break, # or ; may be in it", word)
		}
	}
	return nil
}

// SetResolver gives the file resolv.conf(5) the search domains and options of a Config. An image can lack the file.
func (s *Shown) SetResolver(cfg Config) error {
	if err := cfg.validateResolver(); err != nil {
		return err
	}
	return s.write(resolvName, resolvConf(&cfg))
}
