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
	"time"
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
			g.startBody(http.StatusForbidden)
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

// What is passed so far does not depend on the password: a server of the client's own would try one letter after the other.
func TestThePasswordGuardTellsNoLetter(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusForbidden} {
		for _, text := range []string{"d", "dmlz", "page dmlz+XRv/jp", "0123456789abcdef0123456789abcdef"} {
			var passed []int
			for _, authorization := range []string{"Basic dmlz+XRv/jp3", "Basic 0123+567/abc"} {
				var out strings.Builder
				g := newPasswordGuard(&out, authorization)
				g.startBody(status)
				if _, err := io.WriteString(g, text); err != nil {
					t.Fatal(err)
				}
				passed = append(passed, out.Len())
			}
			if passed[0] != passed[1] {
				t.Errorf("status %d: of %q, %d and %d bytes were passed", status, text, passed[0], passed[1])
			}
		}
	}
}

// A stream passes at once, also with the first letter of the password at its end.
func TestAStreamOfAnUpstreamProxyIsNotKept(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, nil)
	read := make(chan struct{})
	server(t, office, func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nd")
			<-read
			fmt.Fprint(c, "!")
		}
	})
	defer close(read)
	w.useUpstream(t, "http://visitor:word@"+office) // dmlzaXRvcjp3b3Jk
	c := dialTo(t, w.captured(t, w.address(t, "pypi.org", 80)))
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadFull(answer.Body, make([]byte, 1)); err != nil {
		t.Errorf("the letter that came: %v", err)
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
	for method, reason := range map[string]string{"GET": "its own password", "TRACE": "TRACE", "trace": "TRACE", "connect": "a tunnel"} {
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
