package spec

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// UpstreamEnv is the value of Config.UpstreamProxy that stands for HTTP_PROXY, HTTPS_PROXY and NO_PROXY in the
// environment of the caller.
const UpstreamEnv = "env"

// An Upstream has the proxies of the host's network, with their passwords. A [Config] that the launcher keeps has
// none of them: see [ShownUpstream].
type Upstream struct {
	// HTTP is the URL of the proxy for plain HTTP, and HTTPS of the one for all other traffic. Empty: no proxy.
	HTTP  string `json:"http,omitempty"`
	HTTPS string `json:"https,omitempty"`
	// NoProxy lists the destinations without a proxy, in the form of NO_PROXY.
	NoProxy string `json:"no_proxy,omitempty"`
}

// String has no passwords.
func (u Upstream) String() string {
	return fmt.Sprintf("HTTP %q, HTTPS %q, without a proxy %q", ShownUpstream(u.HTTP), ShownUpstream(u.HTTPS), u.NoProxy)
}

// IsEmpty says whether there is no proxy.
func (u Upstream) IsEmpty() bool { return u.HTTP == "" && u.HTTPS == "" }

// maxUpstream bounds the URL of a proxy, in bytes.
const maxUpstream = 1024

// ParseUpstreamURL reads the URL of a proxy. The result has a port. An error has no part of the text, which can have a
// password.
func ParseUpstreamURL(text string) (*url.URL, error) {
	if len(text) > maxUpstream {
		return nil, fmt.Errorf("%d bytes are more than the %d that the URL of a proxy may have", len(text), maxUpstream)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return nil, errors.New("not the URL of a proxy; write http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, " +
			"with % and two hexadecimal digits for special characters of the password")
	}
	ports := map[string]string{"http": "80", "https": "443"}
	switch {
	case ports[u.Scheme] == "":
		return nil, fmt.Errorf("a proxy of the kind %.20q is not supported; use http://HOST:PORT or https://HOST:PORT", u.Scheme)
	case u.Hostname() == "" || strings.ContainsAny(u.Hostname(), "%\x00 "):
		return nil, errors.New("the URL of a proxy needs a host without a zone, as in http://HOST:PORT")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("the URL of a proxy has no path; write http://HOST:PORT")
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), ports[u.Scheme]), 10, 16)
	if err != nil || port == 0 {
		return nil, errors.New("the URL of a proxy has no valid port; use 1 to 65535")
	}
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return &url.URL{Scheme: u.Scheme, User: u.User, Host: fmt.Sprintf("%s:%d", strings.ToLower(host), port)}, nil
}

// ShownUpstream is the value of Config.UpstreamProxy without user and password. Other people may read it.
func ShownUpstream(text string) string {
	if text == "" || text == UpstreamEnv {
		return text
	}
	u, err := ParseUpstreamURL(text)
	if err != nil {
		return "" // an upper layer refuses such a text
	}
	u.User = nil
	return u.String()
}

func (c Config) validateUpstream(p *problems) {
	if c.UpstreamProxy == "" {
		return
	}
	if c.Network != NetworkProxied {
		p.add("upstream_proxy", "needs the network %q", NetworkProxied)
	}
	if c.Observe {
		p.add("observe", "cannot be together with an upstream proxy: that proxy looks names up, and nothing would keep the "+
			"sandbox from addresses that are not public; name the destinations with allow")
	}
	if c.UpstreamProxy == UpstreamEnv {
		return
	}
	if _, err := ParseUpstreamURL(c.UpstreamProxy); err != nil {
		p.add("upstream_proxy", "%v", err)
	}
}
