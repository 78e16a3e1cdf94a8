package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

// Programs use short names with the search domains of the host: with the proxy and without it.
func TestShortNamesHaveSearchDomains(t *testing.T) {
	list, err := rules.New([]string{"db.corp.example"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, []string{"db.corp.example", "evil.org.corp.example"}, nil, map[string][]string{
		"db.corp.example": {public}, "evil.org.corp.example": {public},
	})
	w.Search, w.Exists = []string{"lab.example", "corp.example"}, func(name string) bool { return list.Name(name).Allowed }
	newSite(t, public+":80")
	secureSite(t, public+":443")
	explicit := w.explicit(t)
	captured := map[netip.AddrPort]bool{}
	viaProxy := http.ProxyURL(&url.URL{Scheme: "http", Host: explicit})
	for _, x := range []struct {
		url  string
		at   string // the name that the program has looked up; empty: it asks the proxy
		want string // empty: the connection is refused
	}{
		{"http://db/a", "", "/a of db"},
		{"http://db/a", "db.corp.example", "/a of db"},
		{"https://db/a", "", "hello db"},
		{"https://db/a", "db.corp.example", "hello db"},
		{"http://nothing/", "", "nothing:80 is not allowed"},
		{"http://nothing/", "db.corp.example", "is for the host \"nothing\""},
		{"http://localhost/", "", "localhost is the sandbox itself"},
		{"http://evil.org/", "", "evil.org:80 is not allowed"},
		{"http://evil.org/", "evil.org.corp.example", "is for the host \"evil.org\""}, // another customer of the server
		{"https://evil.org/", "evil.org.corp.example", ""},
		{"http://corp/", "db.corp.example", "is for the host \"corp\""},
	} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
		if x.at == "" {
			transport.Proxy = viaProxy
		} else {
			port := uint16(80)
			if strings.HasPrefix(x.url, "https:") {
				port = 443
			}
			at := w.address(t, x.at, port)
			if !captured[at] {
				captured[at] = true
				w.captured(t, at)
			}
			transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", at.String())
			}
		}
		client := &http.Client{Transport: transport}
		got, err := fetch(client, x.url)
		if x.want == "" && err == nil || !strings.Contains(got, x.want) || x.want != "" && err != nil {
			t.Errorf("%s at %q: %q, %v; want %q", x.url, x.at, got, err, x.want)
		}
	}
}

// fetch is the body of an answer.
func fetch(client *http.Client, url string) (string, error) {
	answer, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}
