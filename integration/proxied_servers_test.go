package integration

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// serveHTTPS serves the files of the root, git and WebSocket at each address, over HTTP/2, too. The server
// records the names that clients tell.
func (w *proxiedWorld) serveHTTPS(t *testing.T, addresses ...string) {
	t.Helper()
	config := &tls.Config{
		Certificates: []tls.Certificate{w.certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			w.arrivals.add("tls", h.ServerName)
			return nil, nil
		},
	}
	w.serveSite(t, config, addresses...)
}

// serveHTTP does so without TLS.
func (w *proxiedWorld) serveHTTP(t *testing.T, addresses ...string) {
	t.Helper()
	w.serveSite(t, nil, addresses...)
}

func (w *proxiedWorld) serveSite(t *testing.T, config *tls.Config, addresses ...string) {
	t.Helper()
	server := &http.Server{Handler: w.site(t), TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan error, len(addresses))
	for _, address := range addresses {
		l := netnstest.Listen(t, w.outside, address)
		go func() {
			if config == nil {
				ended <- server.Serve(l)
				return
			}
			ended <- server.ServeTLS(l, "", "")
		}()
	}
	t.Cleanup(func() {
		_ = server.Close()
		for range addresses {
			if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("the server of the web: %v", err)
			}
		}
	})
}

// site answers requests for all names.
func (w *proxiedWorld) site(t *testing.T) http.Handler {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/git/", &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Root: "/git", Dir: w.dir, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + w.www, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1"},
	})
	mux.HandleFunc("/protocol", func(answer http.ResponseWriter, r *http.Request) { io.WriteString(answer, r.Proto+"\n") })
	mux.HandleFunc("/echo", echo)
	mux.HandleFunc("/upload", func(answer http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(answer, "%d bytes\n", n)
	})
	// The proxy of Go's modules sends clients to another host for archives, as the real one does.
	mux.Handle("/hello.test/word/@v/v1.0.0.zip", http.RedirectHandler("https://"+archiveName+"/word.zip", http.StatusFound))
	mux.Handle("/", http.FileServer(http.Dir(w.www)))
	return http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		w.arrivals.add("http", host)
		mux.ServeHTTP(answer, r)
	})
}

// echo sends short messages of WebSocket back, the last one of which closes the connection (RFC 6455).
func echo(answer http.ResponseWriter, r *http.Request) {
	c, buffered, err := answer.(http.Hijacker).Hijack()
	if err != nil {
		http.Error(answer, err.Error(), http.StatusInternalServerError)
		return
	}
	defer c.Close()
	accept := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		base64.StdEncoding.EncodeToString(accept[:]) + "\r\n\r\n")
	const last = 0x88
	for kind := byte(0); buffered.Flush() == nil && kind != last; {
		var text []byte
		if kind, text, err = readMessage(buffered.Reader); err != nil {
			return
		}
		buffered.Write(append([]byte{kind, byte(len(text))}, text...))
	}
}

// readMessage reads one masked message of up to 125 bytes.
func readMessage(r *bufio.Reader) (kind byte, text []byte, err error) {
	head := make([]byte, 6)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	size := head[1] & 0x7f
	if head[1]&0x80 == 0 || size > 125 {
		return 0, nil, errors.New("the message is not masked, or too long")
	}
	text = make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return 0, nil, err
	}
	for i := range text {
		text[i] ^= head[2+i%4]
	}
	return head[0], text, nil
}

// serveWords is a server that speaks first. It sends back all bytes of a client, and a last word after their end.
func (w *proxiedWorld) serveWords(t *testing.T, address string) {
	t.Helper()
	l := netnstest.Listen(t, w.outside, address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.WriteString(c, "hello\n")
				io.Copy(c, c)
				io.WriteString(c, "bye\n")
			}()
		}
	}()
}

// postgresPrograms is the directory of the host's PostgreSQL. It is empty if there is none.
func postgresPrograms() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is valid
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

// servePostgres serves a database at the addresses, over TLS only. PostgreSQL refuses to run as root.
func (w *proxiedWorld) servePostgres(t *testing.T, addresses ...string) {
	t.Helper()
	if postgresPrograms() == "" {
		return // its client says so
	}
	home := filepath.Join(t.TempDir(), "postgres")
	data := filepath.Join(home, "data")
	if err := errors.Join(os.Chmod(filepath.Dir(filepath.Dir(home)), 0o711), os.Mkdir(home, 0o700)); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(home, "certificate"), certificatePEM(w.certificate.Certificate[0]))
	writeFile(t, filepath.Join(home, "key"), keyPEM(t, w.certificate.PrivateKey))
	writeFile(t, filepath.Join(home, "access"), "hostssl all all all trust\n")
	netnstest.Shell(t, w.outside, "chmod 600 "+home+"/* && chown -R 65534:65534 "+home)
	command := func(program string, args ...string) *exec.Cmd {
		as := []string{"--reuid=65534", "--regid=65534", "--clear-groups", filepath.Join(postgresPrograms(), program)}
		cmd := netnstest.Command(exec.Command("setpriv", append(as, args...)...), w.outside)
		cmd.Dir = home
		cmd.Env = []string{"HOME=" + home, "PATH=/usr/bin:/bin", "LC_ALL=C"}
		return cmd
	}
	if got := run(t, command("initdb", "-D", data, "-U", "visitor", "-A", "trust", "--no-sync", "-E", "UTF8")); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	daemon(t, command("postgres", "-D", data, "-p", "5432", "-c", "listen_addresses="+strings.Join(addresses, ","), "-c", "unix_socket_directories=",
		"-c", "hba_file="+home+"/access", "-c", "ssl=on", "-c", "ssl_cert_file="+home+"/certificate", "-c", "ssl_key_file="+home+"/key",
		"-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap"), func() {})
}

// answers waits until a server outside listens at the address.
func (w *proxiedWorld) answers(t *testing.T, address string) {
	t.Helper()
	eventually(t, address+" is served", func() bool {
		c, err := w.dialOutside(t.Context(), address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (w *proxiedWorld) dialOutside(ctx context.Context, address string) (c net.Conn, err error) {
	err = netns.Do(w.outside, func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return err
	})
	return c, err
}
