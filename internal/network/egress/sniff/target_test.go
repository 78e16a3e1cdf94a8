package sniff

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func proxyRequestOf(text string) (*Request, error) {
	return NewProxyRequests(Opening{Bytes: []byte(text)}, &endlessConn{text: "A"}, time.Minute).Next()
}

func TestRequestsToAProxy(t *testing.T) {
	for text, want := range map[string]struct {
		host, path, sent string
		port             uint16
		address          string
	}{
		"GET http://Pypi.org./a?b HTTP/1.1\r\nHost: pypi.org:80\r\n\r\n": {
			"pypi.org", "/a", "GET /a?b HTTP/1.1\r\nHost: pypi.org:80\r\n\r\n", 80, "",
		},
		"GET http://pypi.org:8080?q HTTP/1.1\r\nProxy-Connection: x\r\nproxy-authorization: y\r\nHost: pypi.org:8080\r\nX: z\r\n\r\n": {
			"pypi.org", "/", "GET /?q HTTP/1.1\r\nHost: pypi.org:8080\r\nX: z\r\n\r\n", 8080, "",
		},
		"OPTIONS http://pypi.org HTTP/1.1\r\nHost: pypi.org\r\n\r\n": {"pypi.org", "*", "OPTIONS * HTTP/1.1\r\nHost: pypi.org\r\n\r\n", 80, ""},
		"GET http://192.0.2.1/ HTTP/1.0\r\nHost: 192.0.2.1\r\n\r\n":  {"192.0.2.1", "/", "GET / HTTP/1.0\r\nHost: 192.0.2.1\r\n\r\n", 80, "192.0.2.1"},
		"GET http://[2001:DB8::1]:7/ HTTP/1.1\r\nHost: [2001:db8::1]:7\r\n\r\n": {
			"2001:db8::1", "/", "GET / HTTP/1.1\r\nHost: [2001:db8::1]:7\r\n\r\n", 7, "2001:db8::1",
		},
		"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                         {"pypi.org", "", "", 443, ""},
		"CONNECT pypi.org:443 HTTP/1.0\r\n\r\n":                                           {"pypi.org", "", "", 443, ""},
		"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n":               {"2001:db8::1", "", "", 443, "2001:db8::1"},
		"CONNECT [::ffff:10.0.0.1]:443 HTTP/1.0\r\n\r\n":                                  {"::ffff:10.0.0.1", "", "", 443, "::ffff:10.0.0.1"},
		"CONNECT 127.1:80 HTTP/1.1\r\nHost: 127.1:80\r\n\r\n":                             {"127.1", "", "", 80, ""},
		"CONNECT 127.0.0.1.:80 HTTP/1.1\r\nHost: 127.0.0.1.:80\r\n\r\n":                   {"127.0.0.1", "", "", 80, ""},
		"CONNECT 0177.0.0.1:80 HTTP/1.1\r\nHost: 0177.0.0.1:80\r\n\r\n":                   {"0177.0.0.1", "", "", 80, ""},
		"CONNECT pypi.org:1 HTTP/1.1\r\nHost: x\r\n\r\n":                                  {},
		"CONNECT pypi.org:1 HTTP/1.1\r\nHost: pypi.org:2\r\n\r\n":                         {},
		"CONNECT pypi.org:1 HTTP/1.1\r\nHost: pypi.org\r\nHost: x\r\n\r\n":                {},
		"CONNECT pypi.org HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                             {},
		"CONNECT pypi.org:0 HTTP/1.1\r\nHost: pypi.org:0\r\n\r\n":                         {},
		"CONNECT pypi.org:+80 HTTP/1.0\r\n\r\n":                                           {},
		"CONNECT pypi.org:65616 HTTP/1.0\r\n\r\n":                                         {},
		"CONNECT user@pypi.org:80 HTTP/1.0\r\n\r\n":                                       {},
		"CONNECT http://pypi.org:80 HTTP/1.0\r\n\r\n":                                     {},
		"CONNECT /a HTTP/1.0\r\n\r\n":                                                     {},
		"CONNECT [fe80::1%25lo]:80 HTTP/1.0\r\n\r\n":                                      {},
		"CONNECT [fe80::1%lo]:80 HTTP/1.0\r\n\r\n":                                        {},
		"CONNECT [192.0.2.1]:80 HTTP/1.0\r\n\r\n":                                         {},
		"CONNECT [::1]x:80 HTTP/1.0\r\n\r\n":                                              {},
		"CONNECT ::1:80 HTTP/1.0\r\n\r\n":                                                 {},
		"CONNECT pypi.org:80 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx":                      {},
		"CONNECT pypi.org:80 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0":             {},
		"CONNECT " + strings.Repeat("a", 254) + ":80 HTTP/1.0\r\n\r\n":                    {},
		"GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                        {},
		"OPTIONS * HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                    {},
		"GET http://pypi.org/ HTTP/1.0\r\n\r\n":                                           {},
		"GET http://pypi.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n":                         {},
		"GET http://pypi.org/ HTTP/1.1\r\nHost: pypi.org:81\r\n\r\n":                      {},
		"GET http://pypi.org:81/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                      {},
		"GET http://192.0.2.1/ HTTP/1.1\r\nHost: 192.0.2.2\r\n\r\n":                       {},
		"GET http://[::1]/ HTTP/1.1\r\nHost: [::2]\r\n\r\n":                               {},
		"GET http://p%79pi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                       {},
		"GET http://evil.org\\@pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":              {},
		"GET http://evil.org@pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                {},
		"GET http:///pypi.org HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                         {},
		"GET HTTP://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                         {},
		"GET http:pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                           {},
		"GET https://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                        {},
		"GET ftp://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                          {},
		"GET pypi.org HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                 {},
		"GET http://pypi.org/ HTTP/1.1\r\nHost: " + strings.Repeat("a", 254) + "\r\n\r\n": {},
	} {
		r, err := proxyRequestOf(text)
		var bad *MalformedError
		if want.host == "" {
			if !errors.As(err, &bad) {
				t.Errorf("%q: %+v, error %v; want it refused", text, r, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		address, _ := netip.ParseAddr(want.address)
		if r.Host != want.host || r.Path != want.path || r.Port != want.port || r.Address != address || r.IsConnect != (want.sent == "") {
			t.Errorf("%q: %+v", text, r)
		}
		var sent bytes.Buffer
		if err := r.SendHead(&sent); want.sent != "" && (err != nil || sent.String() != want.sent) {
			t.Errorf("%q: sent %q, error %v; want %q", text, &sent, err, want.sent)
		}
	}
}

// The bytes after CONNECT are read like those of a new connection.
func TestBytesAfterCONNECT(t *testing.T) {
	for text, kind := range map[string]Kind{"GET /": HTTP, "\x00": Other, "": Other} {
		const connect = "CONNECT pypi.org:443 HTTP/1.1\r\n\r\n"
		requests := NewProxyRequests(Opening{Bytes: []byte(connect + text)}, expiredConn{}, time.Minute)
		if _, err := requests.Next(); err != nil {
			t.Fatal(err)
		}
		o, err := requests.Opening(time.Minute)
		if text == "" {
			if !errors.Is(err, ErrSilent) {
				t.Errorf("no bytes: %+v, error %v", o, err)
			}
			continue
		}
		if kind == Other && err != nil || o.Kind != kind || string(o.Bytes) != text {
			t.Errorf("%q: %+v, error %v", text, o, err)
		}
	}
}

// The server reads the same host and path as the proxy, with any bytes of the client.
func FuzzRequestsToAProxy(f *testing.F) {
	f.Add("GET http://pypi.org/a?b HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
	f.Add("CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n")
	f.Add("GET http://pypi.org HTTP/1.1\r\nHost: pypi.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := proxyRequestOf(text)
		if err != nil {
			return
		}
		if r.Host == "" || len(r.Host) > maxHost || r.Port == 0 || r.Address.Zone() != "" {
			t.Errorf("%q: %+v", text, r)
		}
		if r.IsConnect {
			return
		}
		var sent bytes.Buffer
		if err := r.SendHead(&sent); err != nil {
			t.Fatal(err)
		}
		if r.Address.IsValid() {
			return // a captured connection to an address is not read
		}
		same, err := NewRequests(Opening{Bytes: sent.Bytes()}, &endlessConn{text: "A"}, time.Minute).Next()
		if err != nil || same.Host != r.Host || withDefault(same.Port) != r.Port || same.Path != r.Path || same.Method != r.Method {
			t.Errorf("%q: the server reads %+v, error %v; judged is %+v", text, same, err, r)
			return
		}
		checkForwarded(t, text, same)
	})
}

// checkForwarded holds that another proxy reads the host and path that were judged, and the password of the host alone.
func checkForwarded(t *testing.T, text string, r *Request) {
	t.Helper()
	const password = "Basic secret"
	authority := r.Host
	if r.Port > 0 && r.Port != 80 {
		authority = fmt.Sprintf("%s:%d", r.Host, r.Port)
	}
	var sent bytes.Buffer
	if err := r.SendProxyHead(&sent, authority, password); err != nil {
		t.Fatal(err)
	}
	same, err := NewProxyRequests(Opening{Bytes: sent.Bytes()}, &endlessConn{text: "A"}, time.Minute).Next()
	if err != nil || same.Host != r.Host || withDefault(same.Port) != withDefault(r.Port) || same.Path != r.Path || same.Method != r.Method {
		t.Errorf("%q: the upstream proxy reads %+v, error %v; judged is %+v", text, same, err, r)
	}
	read, err := http.ReadRequest(bufio.NewReader(&sent))
	if err != nil || !slices.Equal(read.Header["Proxy-Authorization"], []string{password}) || read.Header["Proxy-Connection"] != nil {
		t.Errorf("%q: fields %v, error %v", text, read, err)
	}
}

// A head for another proxy has the whole URL of the judged host, also if the client has sent another form.
func TestHeadsForAnotherProxy(t *testing.T) {
	for text, want := range map[string]string{
		"GET /a?b=http://x/ HTTP/1.1\r\nHost: PyPI.org\r\n\r\n":                                                   "GET http://pypi.org/a?b=http://x/ HTTP/1.1\r\nHost: PyPI.org\r\n",
		"GET http://pypi.org?q HTTP/1.0\r\nHost: pypi.org\r\n\r\n":                                                "GET http://pypi.org/?q HTTP/1.0\r\nHost: pypi.org\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                                            "OPTIONS http://pypi.org HTTP/1.1\r\nHost: pypi.org\r\n",
		"OPTIONS http://pypi.org HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                              "OPTIONS http://pypi.org HTTP/1.1\r\nHost: pypi.org\r\n",
		"GET /a HTTP/1.1\r\nHost: pypi.org\r\nPROXY-Authorization: Basic mine\r\nProxy-Connection: close\r\n\r\n": "GET http://pypi.org/a HTTP/1.1\r\nHost: pypi.org\r\n",
	} {
		r, err := NewRequests(Opening{Bytes: []byte(text)}, &endlessConn{text: "A"}, time.Minute).Next()
		if err != nil {
			t.Fatal(err)
		}
		checkForwarded(t, text, r)
		var sent strings.Builder
		if err := r.SendProxyHead(&sent, "pypi.org", ""); err != nil || sent.String() != want+"\r\n" {
			t.Errorf("%q: %q, error %v; want %q", text, sent.String(), err, want)
		}
	}
}
