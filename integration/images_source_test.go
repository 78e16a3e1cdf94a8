package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/sandbox-runtime/sandbox-runtime/images/source"
)

// The password of registries is "secret". Its hash is of bcrypt, which the registry wants.
const (
	registryUser     = "user"
	registryPassword = "secret"
	registryHash     = "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a"
)

// imageTools are Debian's tools for images, with a home of the test's.
type imageTools struct {
	t    *testing.T
	home string
}

func newImageTools(t *testing.T) *imageTools {
	t.Helper()
	need(t, peers())
	i := &imageTools{t, t.TempDir()}
	policy := filepath.Join(i.home, ".config/containers/policy.json")
	if err := os.MkdirAll(filepath.Dir(policy), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, policy, `{"default": [{"type": "insecureAcceptAnything"}]}`)
	writeFile(t, i.in("registries.conf"), "")
	writeFile(t, i.in("auth.json"), "{}")
	writeFile(t, i.in("storage.conf"), fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", i.in("graph"), i.in("run")))
	return i
}

func (i *imageTools) in(name string) string { return filepath.Join(i.home, name) }

// run runs a tool, which must succeed.
func (i *imageTools) run(tool string, args ...string) string {
	i.t.Helper()
	cmd := exec.Command(peer("usr/bin/"+tool), args...)
	cmd.Env = append(peerEnvironment(i.home), "CONTAINERS_REGISTRIES_CONF="+i.in("registries.conf"), "CONTAINERS_STORAGE_CONF="+i.in("storage.conf"),
		"REGISTRY_AUTH_FILE="+i.in("auth.json"), "SSL_CERT_FILE="+i.in("ca.pem"))
	cmd.Dir = i.home
	got := run(i.t, cmd)
	if got.code != 0 {
		i.t.Fatalf("%q: %+v", cmd.Args, got)
	}
	return got.stdout
}

// makeLayout makes a layout with one image of two layers, by umoci.
func (i *imageTools) makeLayout() string {
	i.t.Helper()
	layout := i.in("layout")
	i.run("umoci", "init", "--layout", layout)
	i.run("umoci", "new", "--image", layout+":1")
	for _, name := range []string{"low", "high"} {
		writeFile(i.t, i.in(name), strings.Repeat(name, 100_000))
		i.run("umoci", "insert", "--image", layout+":1", i.in(name), "/"+name)
	}
	return layout
}

// serveRegistry starts Debian's registry, and returns its HOST:PORT.
func (i *imageTools) serveRegistry(auth string, withTLS bool) string {
	i.t.Helper()
	config := i.in(fmt.Sprintf("registry-%d.yml", time.Now().UnixNano()))
	text := fmt.Sprintf("version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: %q}}\n%shttp:\n  addr: 127.0.0.1:0\n", i.t.TempDir(), auth)
	if withTLS {
		text += fmt.Sprintf("  tls: {certificate: %q, key: %q}\n", i.in("ca.pem"), i.in("key.pem"))
	}
	writeFile(i.t, config, text)
	cmd := exec.Command(peer("usr/bin/docker-registry"), "serve", config)
	cmd.Env = peerEnvironment(i.home)
	server := start(i.t, cmd)
	listening := regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)
	var address []string
	eventually(i.t, "the registry listens", func() bool {
		address = listening.FindStringSubmatch(server.stdout() + server.stderr())
		return address != nil
	})
	return address[1]
}

// makeCertificate makes ca.pem and key.pem, which serve for TLS and sign tokens.
func (i *imageTools) makeCertificate() (tls.Certificate, *x509.CertPool) {
	i.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		i.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		DNSNames: []string{"localhost", "registry.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		i.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		i.t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	writeFile(i.t, i.in("ca.pem"), string(public))
	writeFile(i.t, i.in("key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(public)
	return tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}, pool
}

// mustSource reads an image, and checks all its layers against the config.
func mustSource(t *testing.T, reference string, layers int, o source.Options) *source.Image {
	t.Helper()
	if o.Cache == "" {
		o.Cache = t.TempDir()
	}
	image, err := source.Open(t.Context(), reference, o)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if len(image.Layers) != layers {
		t.Errorf("%s has %d layers, not %d", reference, len(image.Layers), layers)
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(image.Config, &config); err != nil {
		t.Fatal(err)
	}
	for n, l := range image.Layers {
		if id := diffID(t, l); id != l.DiffID || id != config.RootFS.DiffIDs[n] {
			t.Errorf("layer %d of %s is %s, and not %s as the config says", n, reference, id, config.RootFS.DiffIDs[n])
		}
	}
	return image
}

// diffID is the digest of a layer without its compression.
func diffID(t *testing.T, l source.Layer) string {
	t.Helper()
	r, err := l.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	var plain io.Reader = bytes.NewReader(raw)
	switch {
	case bytes.HasPrefix(raw, []byte{0x1f, 0x8b}):
		plain, err = gzip.NewReader(plain)
	case bytes.HasPrefix(raw, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		z, err = zstd.NewReader(plain)
		defer z.Close()
		plain = z
	}
	sum := sha256.New()
	if err == nil {
		_, err = io.Copy(sum, plain)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

func TestImagesOfRealTools(t *testing.T) {
	i := newImageTools(t)
	layout := i.makeLayout()
	mustSource(t, "oci:"+layout+":1", 2, source.Options{})
	from := "oci:" + layout + ":1"
	i.run("skopeo", "copy", from, "oci-archive:"+i.in("oci.tar")+":1")
	mustSource(t, "oci-archive:"+i.in("oci.tar")+":1", 2, source.Options{})
	i.run("skopeo", "copy", from, "docker-archive:"+i.in("docker.tar")+":name:1")
	mustSource(t, "docker-archive:"+i.in("docker.tar"), 2, source.Options{})
	i.run("skopeo", "copy", "--dest-compress-format", "zstd", "--dest-compress", "docker-archive:"+i.in("docker.tar"), "oci:"+i.in("zstd")+":1")
	mustSource(t, "oci:"+i.in("zstd"), 2, source.Options{})
	for _, name := range []string{"oci.tar", "docker.tar"} {
		f, err := os.Open(i.in(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		mustSource(t, "-", 2, source.Options{Stdin: f})
	}
	work := strings.TrimSpace(i.run("buildah", "from", "scratch"))
	i.run("buildah", "copy", work, i.in("low"), "/low")
	i.run("buildah", "commit", work, "oci:"+i.in("buildah")+":1")
	mustSource(t, "oci:"+i.in("buildah")+":1", 1, source.Options{})
	i.run("buildah", "commit", work, "docker-archive:"+i.in("buildah.tar")+":name:1")
	mustSource(t, "docker-archive:"+i.in("buildah.tar"), 1, source.Options{})
}

func TestImagesOfARegistry(t *testing.T) {
	i := newImageTools(t)
	layout := i.makeLayout()
	host := i.serveRegistry("", false)
	for name, format := range map[string]string{"oci": "oci", "docker": "v2s2"} {
		i.run("skopeo", "copy", "--format", format, "--dest-tls-verify=false", "oci:"+layout+":1", "docker://"+host+"/some/"+name+":1")
		cache := t.TempDir()
		image := mustSource(t, host+"/some/"+name+":1", 2, source.Options{Cache: cache})
		digest := strings.TrimSpace(i.run("skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+host+"/some/"+name+":1"))
		if image.Digest != digest {
			t.Errorf("%s: digest %s, and skopeo says %s", name, image.Digest, digest)
		}
		mustSource(t, host+"/some/"+name+"@"+digest, 2, source.Options{})
	}
	if _, err := source.Open(t.Context(), host+"/some/oci:2", source.Options{Cache: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a missing tag: %v", err)
	}
}

// A proxy before a registry, such as one that signs addresses, can refuse the rest of a layer.
func TestImagesOfARegistryThatRefusesRanges(t *testing.T) {
	i := newImageTools(t)
	layout := i.makeLayout()
	host := i.serveRegistry("", false)
	i.run("skopeo", "copy", "--dest-tls-verify=false", "oci:"+layout+":1", "docker://"+host+"/some/image:1")
	refused := make(chan string, 100)
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			refused <- r.URL.Path
			w.WriteHeader(http.StatusForbidden)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	reference, cache := strings.TrimPrefix(proxy.URL, "http://")+"/some/image:1", t.TempDir()
	image := mustSource(t, reference, 2, source.Options{Cache: cache})
	for _, l := range image.Layers {
		name := strings.TrimPrefix(l.Digest, "sha256:")
		part := filepath.Join(cache, "partial", name)
		if err := errors.Join(os.Rename(filepath.Join(cache, "blobs", name), part), os.Truncate(part, l.Size/2)); err != nil {
			t.Fatal(err)
		}
	}
	mustSource(t, reference, 2, source.Options{Cache: cache})
	if len(refused) != 2 {
		t.Errorf("%d requests for the rest of a layer", len(refused))
	}
}

func TestImagesOfARegistryWithPassword(t *testing.T) {
	i := newImageTools(t)
	layout := i.makeLayout()
	_, pool := i.makeCertificate()
	writeFile(t, i.in("htpasswd"), registryUser+":"+registryHash+"\n")
	host := i.serveRegistry(fmt.Sprintf("auth: {htpasswd: {realm: test, path: %q}}\n", i.in("htpasswd")), true)
	i.run("skopeo", "login", "--username", registryUser, "--password", registryPassword, host)
	i.run("skopeo", "copy", "oci:"+layout+":1", "docker://"+host+"/some/image:1")
	o := source.Options{RootCAs: pool, Cache: t.TempDir()}
	t.Setenv("HOME", t.TempDir())
	if _, err := source.Open(t.Context(), host+"/some/image:1", o); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without a password: %v", err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", i.in("auth.json"))
	mustSource(t, host+"/some/image:1", 2, o)
	if _, err := source.Open(t.Context(), host+"/some/image:1", source.Options{Cache: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with an unknown certificate: %v", err)
	}
}

func TestImagesOfARegistryWithTokens(t *testing.T) {
	i := newImageTools(t)
	layout := i.makeLayout()
	certificate, pool := i.makeCertificate()
	tokens := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != registryUser || password != registryPassword {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		json.NewEncoder(w).Encode(map[string]string{"token": signToken(t, certificate, r.URL.Query().Get("scope"))})
	}))
	tokens.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	tokens.StartTLS()
	defer tokens.Close()
	realm := strings.Replace(tokens.URL, "127.0.0.1", "localhost", 1)
	host := i.serveRegistry(fmt.Sprintf("auth: {token: {realm: %q, service: test, issuer: test, rootcertbundle: %q}}\n", realm+"/token", i.in("ca.pem")), true)
	i.run("skopeo", "copy", "--dest-creds", registryUser+":"+registryPassword, "oci:"+layout+":1", "docker://"+host+"/some/image:1")
	o := source.Options{RootCAs: pool, Cache: t.TempDir(), Credentials: fixedCredential{}}
	if _, err := source.Open(t.Context(), host+"/some/image:1", o); err == nil || !strings.Contains(err.Error(), "another site") {
		t.Errorf("with a token server of another site: %v", err)
	}
	o.TokenHosts = []string{strings.TrimPrefix(realm, "https://")}
	mustSource(t, host+"/some/image:1", 2, o)
}

type fixedCredential struct{}

func (fixedCredential) Lookup(context.Context, string, string) (source.Credential, error) {
	return source.Credential{Username: registryUser, Password: registryPassword}, nil
}

// signToken makes a token for a scope such as "repository:NAME:pull,push" (distribution's token specification).
func signToken(t *testing.T, c tls.Certificate, scope string) string {
	t.Helper()
	access := []any{}
	if parts := strings.SplitN(scope, ":", 3); len(parts) == 3 {
		access = append(access, map[string]any{"type": parts[0], "name": parts[1], "actions": strings.Split(parts[2], ",")})
	}
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now().Unix()
	text := encode(map[string]any{"typ": "JWT", "alg": "RS256", "x5c": []string{base64.StdEncoding.EncodeToString(c.Certificate[0])}}) + "." +
		encode(map[string]any{"iss": "test", "sub": registryUser, "aud": "test", "exp": now + 600, "nbf": now - 60, "iat": now, "jti": "1", "access": access})
	sum := sha256.Sum256([]byte(text))
	signature, err := c.PrivateKey.(*rsa.PrivateKey).Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		t.Error(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}
