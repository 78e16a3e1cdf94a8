package source

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

const (
	testUser     = "user"
	testPassword = "pass:word"
)

var basicHeader = "Basic " + base64.StdEncoding.EncodeToString([]byte(testUser+":"+testPassword))

// observer is a server that notes the credentials that it was sent.
type observer struct {
	server *httptest.Server
	mu     sync.Mutex
	seen   []string
	asked  int
}

func newObserver(t *testing.T, answer http.HandlerFunc) *observer {
	t.Helper()
	o := &observer{}
	o.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.ParseForm()
		o.mu.Lock()
		o.asked++
		if seen := r.Header.Get("Authorization") + r.PostForm.Get("refresh_token") + r.PostForm.Get("password"); seen != "" {
			o.seen = append(o.seen, seen)
		}
		o.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(o.server.Close)
	return o
}

// byName is the address of the server with a name: the library refuses tokens from literal addresses.
func (o *observer) byName() string {
	return strings.Replace(o.server.URL, "127.0.0.1", "localhost", 1)
}

func (o *observer) credentials() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// fixedCredential is a credential for one host.
type fixedCredential struct {
	host string
	Credential
}

func (f fixedCredential) Lookup(_ context.Context, host, _ string) (Credential, error) {
	if host != f.host {
		return Credential{}, nil
	}
	return f.Credential, nil
}

// demand makes a registry ask for a token of a realm, or for basic authentication without a realm.
func demand(f *fakeRegistry, realm string) {
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		want, ask := "Bearer good", fmt.Sprintf(`Bearer realm=%q,service="test"`, realm)
		if realm == "" {
			want, ask = basicHeader, `Basic realm="test"`
		}
		if r.Header.Get("Authorization") == want {
			return false
		}
		w.Header().Set("WWW-Authenticate", ask)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

// giveToken answers as a token server for the test's user.
func giveToken(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != basicHeader || r.Form.Get("scope") != "repository:some/image:pull" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	json.NewEncoder(w).Encode(map[string]string{"token": "good"})
}

func TestBasicAuthentication(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 1000)
	f.putImage(t, "tag", "amd64", layer)
	demand(f, "")
	o := testOptions(t)
	refuses(t, f.ref(), o, "401", "; check the name, or log in with: docker login "+f.host)
	o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: testPassword}}
	mustRead(t, f.ref(), o, layer)
	o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: "wrong"}}
	o.Cache = t.TempDir()
	refuses(t, f.ref(), o, "401")
}

func TestTokenServerOfTheSameHost(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 1000)
	f.putImage(t, "tag", "amd64", layer)
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token":
			r.ParseForm()
			giveToken(w, r)
			return true
		case r.Header.Get("Authorization") == "Bearer good":
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, f.server.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	o := testOptions(t)
	o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: testPassword}}
	mustRead(t, f.ref(), o, layer)
}

// A registry that asks for its credentials at another host does not get them sent there.
func TestTokenServerOfAnotherHostGetsNoCredentials(t *testing.T) {
	for name, credential := range map[string]Credential{
		"password":       {Username: testUser, Password: testPassword},
		"identity token": {IdentityToken: "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			f.putImage(t, "tag", "amd64", noise(t, 1, 1000))
			token := newObserver(t, giveToken)
			demand(f, token.byName()+"/token")
			o := testOptions(t)
			o.Credentials = fixedCredential{f.host, credential}
			refuses(t, f.ref(), o, "asks for its credentials at localhost:", "they were not sent there", "allow this token server")
			if seen := token.credentials(); len(seen) > 0 {
				t.Errorf("the token server got %q", seen)
			}
		})
	}
	t.Run("allowed", func(t *testing.T) {
		f := newFakeRegistry(t)
		layer := noise(t, 1, 1000)
		f.putImage(t, "tag", "amd64", layer)
		token := newObserver(t, giveToken)
		demand(f, token.byName()+"/token")
		o := testOptions(t)
		o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: testPassword}}
		o.TokenHosts = []string{strings.TrimPrefix(token.byName(), "http://")}
		mustRead(t, f.ref(), o, layer)
	})
	t.Run("public image", func(t *testing.T) {
		f := newFakeRegistry(t)
		layer := noise(t, 1, 1000)
		f.putImage(t, "tag", "amd64", layer)
		token := newObserver(t, func(w http.ResponseWriter, _ *http.Request) {
			json.NewEncoder(w).Encode(map[string]string{"token": "good"})
		})
		demand(f, token.byName()+"/token")
		o := testOptions(t)
		o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: testPassword}}
		mustRead(t, f.ref(), o, layer)
		if seen := token.credentials(); len(seen) > 0 || token.asked == 0 {
			t.Errorf("the token server got %q in %d requests", seen, token.asked)
		}
	})
}

// The token server's own redirect leads to another host, too.
func TestRedirectedTokenRequestCarriesNoCredentials(t *testing.T) {
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64", noise(t, 1, 1000))
	other := newObserver(t, giveToken)
	token := newObserver(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.byName()+"/token?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
	})
	demand(f, token.byName()+"/token")
	o := testOptions(t)
	o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: testPassword}}
	o.TokenHosts = []string{strings.TrimPrefix(token.byName(), "http://")}
	refuses(t, f.ref(), o, "401")
	if seen := other.credentials(); len(seen) > 0 || len(token.credentials()) == 0 {
		t.Errorf("the other host got %q", seen)
	}
}

func TestRedirectsCarryNoCredentials(t *testing.T) {
	for name, realm := range map[string]bool{"basic": false, "token": true} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 100_000)
			f.putImage(t, "tag", "amd64", layer)
			content := newObserver(t, f.answer)
			token := newObserver(t, giveToken)
			o := testOptions(t)
			o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: testPassword}}
			o.TokenHosts = []string{strings.TrimPrefix(token.byName(), "http://")}
			if realm {
				demand(f, token.byName()+"/token")
			} else {
				demand(f, "")
			}
			inner := f.hook
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				if inner(w, r) || !isBlob(f, r, 1000) {
					return r.Header.Get("Authorization") == ""
				}
				http.Redirect(w, r, content.byName()+r.URL.Path+"?signature=secret", http.StatusTemporaryRedirect)
				return true
			})
			mustRead(t, f.ref(), o, layer)
			if seen := content.credentials(); len(seen) > 0 || content.asked == 0 {
				t.Errorf("the other host got %q in %d requests", seen, content.asked)
			}
			// The signature of the address is in no error.
			content.server.Close()
			o.Cache = t.TempDir()
			_, _, err := readImage(t, f.ref(), o)
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestEndlessRedirectsAreLeft(t *testing.T) {
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64", noise(t, 1, 100_000))
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(f, r, 1000) {
			return false
		}
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
		return true
	})
	refuses(t, f.ref(), testOptions(t), "more than 5 redirects")
	if n := f.count("/blobs/"); n > 8 {
		t.Errorf("%d requests", n)
	}
}

// guardFor is a guard whose requests go to no server.
func guardFor(host string, plain ...string) (*guard, *[]*http.Request) {
	var sent []*http.Request
	g := newGuard(host, Options{PlainHTTP: plain, TokenHosts: []string{"trusted.example"}, patience: impatient})
	g.inner = roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}}, nil
	})
	return g, &sent
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestGuardRefusesRequests(t *testing.T) {
	for address, says := range map[string]string{
		"http://registry.example/v2/":    "not asked without TLS",
		"http://10.0.0.1/v2/":            "not asked without TLS",
		"http://other.example/":          "not asked without TLS",
		"ftp://registry.example/":        "unsupported scheme",
		"https://169.254.169.254/latest": "inside the network",
		"https://127.0.0.1:8443/":        "inside the network",
		"http://127.0.0.1:80/":           "inside the network",
		"https://[::1]/":                 "inside the network",
		"https://[::ffff:10.0.0.1]/":     "inside the network",
		"https://localhost/":             "inside the network",
		"https://x.localhost/":           "inside the network",
		"https://localhost./":            "inside the network",
		"https://X.Localhost./":          "inside the network",
		"https://100.64.0.1/":            "inside the network",
		"https://192.168.1.1/":           "inside the network",
		"https://0.0.0.0/":               "inside the network",
	} {
		g, sent := guardFor("registry.example")
		r, err := http.NewRequest(http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.RoundTrip(r); err == nil || !strings.Contains(err.Error(), says) || len(*sent) > 0 {
			t.Errorf("%s: error %v lacks %q", address, err, says)
		}
	}
	for host, address := range map[string]string{"registry.example:80": "http://registry.example:80/", "10.0.0.1": "https://10.0.0.2/", "localhost": "http://127.0.0.1/"} {
		g, sent := guardFor(host, "registry.example:80")
		r, err := http.NewRequest(http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := g.RoundTrip(r)
		if err != nil || len(*sent) != 1 {
			t.Errorf("%s: %v", address, err)
			continue
		}
		response.Body.Close()
	}
}

func TestGuardSendsCredentialsToTheSameSiteOnly(t *testing.T) {
	for _, test := range []struct {
		registry, address string
		want              bool
	}{
		{"index.docker.io", "https://index.docker.io/v2/", true},
		{"index.docker.io", "https://auth.docker.io/token", true},
		{"registry.gitlab.com", "https://gitlab.com/jwt/auth", true},
		{"registry.example", "https://trusted.example/", true},
		{"index.docker.io", "https://docker.io.evil.example/", false},
		{"index.docker.io", "https://evil-docker.io/", false},
		{"index.docker.io", "https://other.example/", false},
		{"a.github.io", "https://b.github.io/", false}, // of two owners
		{"a.co.uk", "https://b.co.uk/", false},
		{"10.0.0.1:5000", "https://10.0.0.1:5001/", false},
		{"10.0.0.1:5000", "https://10.0.0.1:5000/", true},
		{"localhost:5000", "http://localhost:5001/", false},
		{"registry", "https://token/", false},
	} {
		g, sent := guardFor(test.registry)
		r, err := http.NewRequest(http.MethodGet, test.address, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "secret")
		response, err := g.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if has := (*sent)[0].Header.Get("Authorization") != ""; has != test.want {
			t.Errorf("%s, to %s: sent is %v", test.registry, test.address, has)
		}
	}
}

func TestTLSNeedsATrustedCertificate(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 1000)
	f.putImage(t, "tag", "amd64", layer)
	f.server.Close()
	f.server = httptest.NewTLSServer(f)
	defer f.server.Close()
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.host = strings.TrimPrefix(f.server.URL, "https://")
	o := testOptions(t)
	refuses(t, f.ref(), o, "certificate signed by unknown authority", "SSL_CERT_FILE")
	if f.count("") > 0 {
		t.Errorf("asked %q", f.asked)
	}
	o.RootCAs = x509.NewCertPool()
	o.RootCAs.AddCert(f.server.Certificate())
	mustRead(t, f.ref(), o, layer)
}

func TestCredentialFiles(t *testing.T) {
	dir := t.TempDir()
	auth := func(user string) string {
		return fmt.Sprintf(`{"auth":%q}`, base64.StdEncoding.EncodeToString([]byte(user+":x")))
	}
	put := func(path, text string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testhost.WriteFile(t, path, text)
		return path
	}
	put("home/.docker/config.json", `{"auths":{"https://index.docker.io/v1/":`+auth("hub")+`,"home.example":`+auth("docker")+`,"stored.example":{}},"credsStore":"test"}`)
	put("run/containers/auth.json", `{"auths":{"home.example":`+auth("podman")+`,"quay.io/org":`+auth("org")+`,"quay.io/org/image":`+auth("image")+`,"quay.io":`+auth("quay")+`}}`)
	t.Setenv("HOME", filepath.Join(dir, "home"))
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run"))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	testhost.Script(t, filepath.Join(dir, "docker-credential-test"), `#!/bin/sh
read -r server || [ -n "$server" ]
case $1-$server in
get-stored.example) echo '{"ServerURL":"x","Username":"helped","Secret":"x"}' ;;
get-token.example) echo '{"ServerURL":"x","Username":"<token>","Secret":"identity"}' ;;
get-broken.example) echo secret; echo "something is wrong" >&2; exit 1 ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac
`)
	want := func(host, repository string, c Credential) {
		t.Helper()
		if have, err := (Files{}).Lookup(t.Context(), host, repository); err != nil || have != c {
			t.Errorf("%s/%s: %+v, %v, and not %+v", host, repository, have, err, c)
		}
	}
	user := func(name string) Credential { return Credential{Username: name, Password: "x"} }
	want("docker.io", "library/debian", user("hub"))
	want("home.example", "a", user("podman"))
	want("quay.io", "org/image", user("image"))
	want("quay.io", "org/other/deep", user("org"))
	want("quay.io", "organisation/x", user("quay"))
	want("stored.example", "x", user("helped"))
	want("token.example", "x", Credential{IdentityToken: "identity"})
	want("other.example", "x", Credential{})
	if _, err := (Files{}).Lookup(t.Context(), "broken.example", "x"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
	t.Setenv("DOCKER_CONFIG", filepath.Dir(put("explicit/config.json", `{"auths":{"home.example":`+auth("explicit")+`},"credHelpers":{"stored.example":"test"}}`)))
	want("home.example", "a", user("explicit"))
	want("stored.example", "a", user("helped"))
	t.Setenv("REGISTRY_AUTH_FILE", put("file.json", `{"auths":{"home.example":{"username":"file","password":"x"}}}`))
	want("home.example", "a", user("file"))
	for text, says := range map[string]string{`{`: "file.json", `{"auths":{"home.example":{"auth":"!secret"}}}`: "file.json",
		`{"credHelpers":{"home.example":"../x"}}`: "invalid credential helper"} {
		put("file.json", text)
		if c, err := (Files{}).Lookup(t.Context(), "home.example", "a"); err == nil || strings.Contains(err.Error(), "!secret") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}

func TestErrorsHaveNoSecretParts(t *testing.T) {
	err := redact(&url.Error{Op: "Get", URL: "https://user:secret@host.example/path?signature=secret", Err: fmt.Errorf("at http://h/x?token=secret: no\x1b[2J")})
	if text := err.Error(); strings.Contains(text, "secret") || !strings.Contains(text, "https://host.example/path") || strings.Contains(text, "\x1b") {
		t.Error(text)
	}
}
