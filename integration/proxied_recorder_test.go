package integration

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// A streamRecord has servers that keep all bytes of their clients.
type streamRecord struct {
	mu   sync.Mutex
	all  strings.Builder
	open int
}

// newCertificate is a certificate for a server whose clients do not check it.
func newCertificate(t *testing.T) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serve answers requests at an address, within TLS if there is a certificate.
func (r *streamRecord) serve(t *testing.T, namespace *os.File, address string, certificate *tls.Certificate) {
	t.Helper()
	l := netnstest.Listen(t, namespace, address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.answer(c, certificate)
		}
	}()
}

// A tee records the bytes of a client before a server reads them.
type tee struct {
	net.Conn
	record *streamRecord
}

func (c tee) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.record.add(string(b[:n]))
	return n, err
}

// answer answers each request of a connection with the host that it names. The path "/slow" has an answer of one
// byte per second, and "/silent" has none.
func (r *streamRecord) answer(c net.Conn, certificate *tls.Certificate) {
	defer c.Close()
	r.count(1)
	defer r.count(-1)
	r.add("connection " + c.LocalAddr().String() + "\n")
	c = tee{c, r}
	if certificate != nil {
		c = tee{tls.Server(c, &tls.Config{
			Certificates: []tls.Certificate{*certificate},
			GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				r.add("SNI " + h.ServerName + "\n")
				return nil, nil
			},
		}), r}
	}
	reader := bufio.NewReader(c)
	for {
		q, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, q.Body); err != nil {
			return
		}
		switch q.URL.Path {
		case "/silent":
			_, _ = io.Copy(io.Discard, c) // to the end of the client
			return
		case "/slow":
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"); err != nil {
				return
			}
			for range 1000 {
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}
		body := "hello " + q.Host + ", end of answer\n"
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil || q.Close {
			return
		}
	}
}

func (r *streamRecord) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.WriteString(text)
}

func (r *streamRecord) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open += n
}

func (r *streamRecord) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.String()
}

func (r *streamRecord) saw(text string) bool {
	return strings.Contains(strings.ToLower(r.text()), strings.ToLower(text))
}

func (r *streamRecord) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.Reset()
}

// isSilent says whether no connection is open.
func (r *streamRecord) isSilent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open == 0
}
