package nameserver

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxServers is the number of name servers that resolv.conf(5) allows.
	maxServers = 3
	// maxSearch bounds the search domains. resolv.conf(5) has had no bound since glibc 2.26.
	maxSearch = 32
	// maxDots is the greatest value of ndots in resolv.conf(5).
	maxDots = 15
	// maxConfig bounds the file, in bytes.
	maxConfig  = 64 << 10
	serverPort = 53
)

// A Config is the part of a resolv.conf(5) that is about names.
type Config struct {
	Servers []netip.AddrPort
	// Search are domains that programs add to names.
	Search []string
	// Ndots is the value of this option, or -1.
	Ndots int
}

// ReadConfig reads a resolv.conf(5). Lines and names that the C library would not understand are left out. Without a
// name server the Config has the loopback address, as resolv.conf(5) says.
func ReadConfig(path string) (Config, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a named pipe would block the open
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Config{}, err
	}
	if !info.Mode().IsRegular() {
		return Config{}, fmt.Errorf("read %s: not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return Config{}, err
	}
	return parseConfig(string(text)), nil
}

func parseConfig(text string) Config {
	c := Config{Ndots: -1}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch values := fields[1:]; fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(values[0]); err == nil && len(c.Servers) < maxServers {
				c.Servers = append(c.Servers, netip.AddrPortFrom(a, serverPort))
			}
		case "domain": // the last line of both counts
			c.Search = domains(values[:1])
		case "search":
			c.Search = domains(values)
		case "options":
			for _, option := range values {
				if value, is := strings.CutPrefix(option, "ndots:"); is {
					if n, err := strconv.ParseUint(value, 10, 31); err == nil {
						c.Ndots = min(int(n), maxDots)
					}
				}
			}
		}
	}
	if len(c.Servers) == 0 {
		c.Servers = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), serverPort)}
	}
	return c
}

// domains are the valid names, without the root, which adds nothing to a name.
func domains(names []string) (valid []string) {
	for _, name := range names {
		name = strings.TrimSuffix(name, ".")
		if isDomain(name) && len(valid) < maxSearch {
			valid = append(valid, name)
		}
	}
	return valid
}

// isDomain says whether a name has labels of letters, digits, - and _ only. Its length leaves room for one more label.
func isDomain(name string) bool {
	const maxName, maxLabel = 251, 63
	const usual = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	if len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel || strings.Trim(label, usual) != "" {
			return false
		}
	}
	return true
}
