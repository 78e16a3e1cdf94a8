package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// errPassword ends an answer of an upstream proxy. Some proxies write the fields of a request into their pages of errors,
// squid before 7.2 for example (CVE-2025-62168).
var errPassword = errors.New("the upstream proxy writes its own password into an answer; correct the configuration of that proxy, for squid: email_err_data off")

// A passwordGuard passes on an answer, and ends it before a password.
//
// The bytes that the guard keeps do not depend on the password. Otherwise a server that works with the client could pause
// behind some letters, and the client would see whether the password begins with them. The end of an answer still tells
// them that a whole password was right.
type passwordGuard struct {
	to      io.Writer
	secrets []string
	// longest is the length of the longest of the secrets.
	longest int
	// isPage means that the answer can be a page of the proxy. Then the guard keeps its last bytes until more come. Other
	// answers can be streams, and pass at once. So the guard ends them only behind a password that comes in parts.
	isPage bool
	last   []byte // longest-1 bytes at most, kept of a page and passed of another answer
}

// newPasswordGuard looks for the value of a field Proxy-Authorization, also as a part of a URL.
func newPasswordGuard(to io.Writer, authorization string) *passwordGuard {
	_, secret, _ := strings.Cut(authorization, " ")
	secret = strings.TrimRight(secret, "=")
	g := &passwordGuard{to: to, secrets: []string{secret, url.QueryEscape(secret), url.PathEscape(secret)}}
	for _, s := range g.secrets {
		g.longest = max(g.longest, len(s))
	}
	return g
}

// startBody tells the status of the answer whose body comes.
func (g *passwordGuard) startBody(status int) {
	g.isPage, g.last = status >= http.StatusBadRequest, nil // the head has ended
}

func (g *passwordGuard) Write(b []byte) (int, error) {
	all := append(g.last, b...)
	for _, secret := range g.secrets {
		if bytes.Contains(all, []byte(secret)) {
			return 0, errPassword
		}
	}
	border := max(len(all)-(g.longest-1), 0)
	passed := b
	if g.isPage {
		passed = all[:border]
	}
	if _, err := g.to.Write(passed); err != nil {
		return 0, err
	}
	g.last = bytes.Clone(all[border:])
	return len(b), nil
}

// end passes on the kept bytes after the last Write.
func (g *passwordGuard) end() error {
	if !g.isPage {
		return nil
	}
	_, err := g.to.Write(g.last)
	return err
}
