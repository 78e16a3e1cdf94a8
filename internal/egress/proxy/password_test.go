package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestThePasswordGuard(t *testing.T) {
	const authorization = "Basic dmlz+XRv/jp3==" // as "Basic dmlz%2BXRv%2Fjp3" in a URL
	for text, isPassed := range map[string]bool{
		"page":                            true,
		"ends in dmlz+XRv/jp":             true,
		"dmlz+XRv/dmlz+XRv/jp and more":   true,
		"Basic dmlz+XRv/jp3== and more":   false,
		"mailto:?body=dmlz%2BXRv%2Fjp3":   false,
		"dmlz+dmlz+XRv/jp3":               false,
		strings.Repeat("dmlz", 100) + "!": true,
	} {
		for _, size := range []int{1, 3, len(text)} {
			var out strings.Builder
			g := newPasswordGuard(&out, authorization)
			_, err := io.CopyBuffer(struct{ io.Writer }{g}, struct{ io.Reader }{strings.NewReader(text)}, make([]byte, size))
			if err == nil {
				err = g.end()
			}
			if isPassed && (err != nil || out.String() != text) || !isPassed && (!errors.Is(err, errPassword) || strings.Contains(out.String(), "XRv")) {
				t.Errorf("%q by %d: %q, error %v", text, size, out.String(), err)
			}
		}
	}
}

// A page of a proxy with the fields of the request does not reach the client.
func TestThePasswordOfAnUpstreamProxyStaysOutside(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, nil)
	seen := server(t, office, func(c *net.TCPConn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err == nil {
			page := "<a href='mailto:?body=" + r.Header.Get("Proxy-Authorization") + "'>"
			fmt.Fprintf(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s", len(page), page)
		}
	})
	w.useUpstream(t, "http://visitor:word@"+office)
	to := w.captured(t, w.address(t, "pypi.org", 80))
	for method, reason := range map[string]string{"GET": "its own password", "TRACE": "TRACE"} {
		c := dialTo(t, to)
		fmt.Fprintf(c, "%s / HTTP/1.1\r\nHost: pypi.org\r\nMax-Forwards: 0\r\n\r\n", method)
		got, _ := io.ReadAll(c)
		if strings.Contains(string(got), "dmlzaXRvcjp3b3Jk") {
			t.Errorf("%s: %q", method, got)
		}
		c.Close()
		if e := w.event(t); !strings.Contains(e.Reason, reason) {
			t.Errorf("%s: event %+v", method, e)
		}
	}
	if n := seen.count(); n != 1 {
		t.Errorf("%d connections to the upstream proxy", n)
	}
}
