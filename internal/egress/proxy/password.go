package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"strings"
)

// errPassword ends an answer of an upstream proxy. Some proxies write the fields of a request into their pages of errors,
// squid before 7.2 for example (CVE-2025-62168).
var errPassword = errors.New("the upstream proxy writes its own password into an answer; correct the configuration of that proxy, for squid: email_err_data off")

// A passwordGuard passes on an answer, and ends it before a password. It keeps only bytes that can begin one.
type passwordGuard struct {
	to      io.Writer
	secrets []string
	held    []byte
}

// newPasswordGuard looks for the value of a field Proxy-Authorization, also as a part of a URL.
func newPasswordGuard(to io.Writer, authorization string) *passwordGuard {
	_, secret, _ := strings.Cut(authorization, " ")
	secret = strings.TrimRight(secret, "=")
	return &passwordGuard{to: to, secrets: []string{secret, url.QueryEscape(secret), url.PathEscape(secret)}}
}

func (g *passwordGuard) Write(b []byte) (int, error) {
	all := append(g.held, b...)
	keep := 0
	for _, secret := range g.secrets {
		if bytes.Contains(all, []byte(secret)) {
			return 0, errPassword
		}
		for n := min(len(secret)-1, len(all)); n > keep; n-- {
			if strings.HasPrefix(secret, string(all[len(all)-n:])) {
				keep = n
			}
		}
	}
	passed := len(all) - keep
	if _, err := g.to.Write(all[:passed]); err != nil {
		return 0, err
	}
	g.held = bytes.Clone(all[passed:])
	return len(b), nil
}

// end passes on the kept bytes after the last Write.
func (g *passwordGuard) end() error { _, err := g.to.Write(g.held); return err }
