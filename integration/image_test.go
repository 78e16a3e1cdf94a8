package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An imageHost has images in a data directory of the test's, which root uses with a cache of the test's.
type imageHost struct {
	*sandboxes
	data string
	env  []string
}

func newImageHost(t *testing.T) *imageHost {
	t.Helper()
	dir := t.TempDir()
	return &imageHost{newSandboxes(t), filepath.Join(dir, "data"), append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))}
}

// image is a command about images.
func (h *imageHost) image(args ...string) *exec.Cmd {
	cmd := exec.Command(binary(h.t), append([]string{"--root", h.root, "--data", h.data, "image"}, args...)...)
	cmd.Env = h.env
	return cmd
}

// good runs a command that is expected to work, and returns its output without the last end of a line.
func (h *imageHost) good(args ...string) string {
	h.t.Helper()
	got := run(h.t, h.image(args...))
	if got.code != 0 {
		h.t.Fatalf("image %q: %+v", args, got)
	}
	return strings.TrimSuffix(got.stdout, "\n")
}

// bad runs a command that is expected to fail with these words, in one line.
func (h *imageHost) bad(words string, args ...string) {
	h.t.Helper()
	wantFailure(h.t, run(h.t, h.image(args...)), words)
}

func wantFailure(t testing.TB, got result, words string) {
	t.Helper()
	if got.code == 0 || !strings.Contains(got.stderr, words) || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("want %q in one line, got %+v", words, got)
	}
}

// list are the images of root.
func (h *imageHost) list() []spec.Image {
	h.t.Helper()
	return imagesIn(h.t, h.good("ls", "--json"))
}

func imagesIn(t testing.TB, lines string) (all []spec.Image) {
	t.Helper()
	for line := range strings.Lines(lines) {
		var i spec.Image
		decode(t, line, &i)
		all = append(all, i)
	}
	return all
}

// inspect describes one image.
func (h *imageHost) inspect(name string) spec.Image {
	h.t.Helper()
	var all []spec.Image
	decode(h.t, h.good("inspect", name), &all)
	if len(all) != 1 {
		h.t.Fatalf("%d images", len(all))
	}
	return all[0]
}

// tree makes a directory for an import.
func imageTree(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), os.Symlink("etc/word", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "etc/word"), text)
	return dir
}

// countBlobs stands before a registry. It counts the downloads of blobs and their bytes.
func countBlobs(t *testing.T, registry string) (host string, requests, bytes *atomic.Int64) {
	t.Helper()
	requests, bytes = new(atomic.Int64), new(atomic.Int64)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			requests.Add(1)
			w = &countingWriter{w, bytes}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), requests, bytes
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

func TestImagePull(t *testing.T) {
	i, h := newImageTools(t), newImageHost(t)
	layout := i.makeLayout()
	registry := i.serveRegistry("", false)
	name := registry + "/some/image"
	i.run("skopeo", "copy", "--dest-tls-verify=false", "oci:"+layout+":1", "docker://"+name+":1")
	digest := strings.TrimSpace(i.run("skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+name+":1"))
	got := run(t, h.image("pull", name+":1"))
	if got.code != 0 || got.stdout != name+":1\n" || strings.Count(got.stderr, ": Pull complete\n") != 2 || strings.Contains(got.stderr, "\x1b") ||
		!strings.HasSuffix(got.stderr, "\nDigest: "+digest+"\nStatus: Downloaded newer image for "+name+":1\n") {
		t.Fatalf("%+v", got)
	}
	image := h.inspect(name + ":1")
	if len(image.Layers) != 2 || image.References[0].Digest != digest {
		t.Errorf("%+v, want the digest %s", image, digest)
	}
	again := run(t, h.image("pull", name+":1"))
	if again.code != 0 || strings.Count(again.stderr, ": Already exists\n") != 2 || !strings.HasSuffix(again.stderr, "\nStatus: Image is up to date for "+name+":1\n") {
		t.Errorf("a second pull: %+v", again)
	}
	if quiet := run(t, h.image("pull", "--quiet", name+"@"+digest)); quiet.code != 0 || quiet.stdout != name+"@"+digest+"\n" || quiet.stderr != "" {
		t.Errorf("by digest: %+v", quiet)
	}
	var pulled spec.Image
	decode(t, h.good("pull", "--json", "--name", "own", name+":1"), &pulled)
	if pulled.ID != image.ID || len(pulled.References) != 3 {
		t.Errorf("%+v", pulled)
	}
	if all := h.list(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	h.bad("404", "pull", name+":2")
	h.bad("linux/amd64", "pull", "--platform", "linux/mips", name+":1")
	h.bad("reference", "pull", "Some Thing")
	if len(h.list()) != 1 {
		t.Error("the failed pulls changed the images")
	}
}

func TestImagePullOffline(t *testing.T) {
	testhost.Long(t)
	i, h := newImageTools(t), newImageHost(t)
	registry := i.serveRegistry("", false)
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry}))
	host := strings.TrimPrefix(proxy.URL, "http://")
	i.run("skopeo", "copy", "--dest-tls-verify=false", "oci:"+i.makeLayout()+":1", "docker://"+registry+"/some/image:1")
	h.good("pull", host+"/some/image:1")
	proxy.Close()
	h.good("verify", host+"/some/image:1")
	if image := h.inspect(host + "/some/image:1"); image.Damaged != "" || len(image.Layers) != 2 {
		t.Errorf("%+v", image)
	}
	h.bad("refused", "pull", host+"/some/image:1")
}

func TestImagePullWithPassword(t *testing.T) {
	i, h := newImageTools(t), newImageHost(t)
	i.makeCertificate()
	writeFile(t, i.in("htpasswd"), registryUser+":"+registryHash+"\n")
	registry := i.serveRegistry(fmt.Sprintf("auth: {htpasswd: {realm: test, path: %q}}\n", i.in("htpasswd")), true)
	i.run("skopeo", "login", "--username", registryUser, "--password", registryPassword, registry)
	i.run("skopeo", "copy", "oci:"+i.makeLayout()+":1", "docker://"+registry+"/some/image:1")
	h.bad("certificate", "pull", registry+"/some/image:1")
	h.env = append(h.env, "SSL_CERT_FILE="+i.in("ca.pem"))
	h.bad("401", "pull", registry+"/some/image:1")
	h.env = append(h.env, "REGISTRY_AUTH_FILE="+i.in("auth.json"))
	h.good("pull", registry+"/some/image:1")
	if all := h.list(); len(all) != 1 || all[0].References[0].Name != registry+"/some/image:1" {
		t.Errorf("%+v", all)
	}
}

// A host that reaches registries by a proxy only: HTTPS_PROXY and NO_PROXY count, also with a password.
func TestImagePullThroughAProxy(t *testing.T) {
	testhost.Long(t)
	i, h := newImageTools(t), newImageHost(t)
	i.makeCertificate()
	registry := i.serveRegistry("", true)
	i.run("skopeo", "copy", "--dest-tls-verify=false", "oci:"+i.makeLayout()+":1", "docker://"+registry+"/some/image:1")
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth()
		if r.Method != http.MethodConnect || r.RequestURI != "registry.test:443" || user != "visitor" || password != "pass word" {
			http.Error(w, "not for visitors", http.StatusForbidden)
			return
		}
		asked.Add(1)
		tunnelTo(t, w, registry)
	}))
	t.Cleanup(proxy.Close)
	withPassword := "http://visitor:pass%20word@" + strings.TrimPrefix(proxy.URL, "http://")
	h.env = append(h.env, "SSL_CERT_FILE="+i.in("ca.pem"), "HTTPS_PROXY="+withPassword)
	h.good("pull", "registry.test/some/image:1")
	if all := h.list(); len(all) != 1 || asked.Load() == 0 {
		t.Errorf("%+v, %d tunnels", all, asked.Load())
	}
	h.bad("Forbidden", "pull", "other.test/some/image:1")
	h.env = append(h.env, "NO_PROXY=registry.test")
	h.bad("lookup registry.test", "pull", "registry.test/some/image:1")
}

// tunnelTo copies both directions between a client of CONNECT and a server.
func tunnelTo(t *testing.T, w http.ResponseWriter, address string) {
	server, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer server.Close()
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		io.Copy(server, rw)
		server.Close()
	}()
	io.Copy(c, server)
}

func TestImagePullsShareOneDownload(t *testing.T) {
	const pulls = 20
	i, h := newImageTools(t), newImageHost(t)
	registry := i.serveRegistry("", false)
	host, requests, bytes := countBlobs(t, registry)
	layout := i.makeLayout()
	i.run("skopeo", "copy", "--dest-tls-verify=false", "oci:"+layout+":1", "docker://"+registry+"/some/image:1")
	var all []*testProcess
	for range pulls {
		all = append(all, start(t, h.image("pull", "--quiet", host+"/some/image:1")))
	}
	for _, one := range all {
		if got := one.wait(); got.code != 0 || got.stderr != "" {
			t.Errorf("%+v", got)
		}
	}
	var want int64
	var manifest struct {
		Config struct{ Size int64 }
		Layers []struct{ Size int64 }
	}
	if err := json.Unmarshal([]byte(i.run("skopeo", "inspect", "--raw", "--tls-verify=false", "docker://"+registry+"/some/image:1")), &manifest); err != nil {
		t.Fatal(err)
	}
	want = manifest.Config.Size
	for _, l := range manifest.Layers {
		want += l.Size
	}
	if got := bytes.Load(); got != want || requests.Load() != 3 {
		t.Errorf("%d pulls took %d bytes in %d downloads, and one takes %d in 3", pulls, got, requests.Load(), want)
	}
	if images := h.list(); len(images) != 1 {
		t.Errorf("%+v", images)
	}
	h.good("verify")
}

// A credential helper that is not there costs a line, and a pull only where the registry wants a password.
func TestImagePullWithoutTheCredentialHelper(t *testing.T) {
	i, h := newImageTools(t), newImageHost(t)
	layout := i.makeLayout()
	h.env = append(h.env, "DOCKER_CONFIG="+i.in("docker"), "REGISTRY_AUTH_FILE=", "XDG_RUNTIME_DIR="+i.in("none"))
	if err := os.Mkdir(i.in("docker"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, i.in("docker/config.json"), `{"credsStore":"not-installed"}`)
	open := i.serveRegistry("", false)
	writeFile(t, i.in("htpasswd"), registryUser+":"+registryHash+"\n")
	closed := i.serveRegistry(fmt.Sprintf("auth: {htpasswd: {realm: test, path: %q}}\n", i.in("htpasswd")), false)
	for _, host := range []string{open, closed} {
		i.run("skopeo", "copy", "--dest-tls-verify=false", "--dest-creds", registryUser+":"+registryPassword, "oci:"+layout+":1", "docker://"+host+"/some/image:1")
	}
	const says = "docker/config.json: credential helper docker-credential-not-installed: "
	got := run(t, h.image("pull", "--quiet", open+"/some/image:1"))
	if got.code != 0 || strings.Count(got.stderr, says) != 1 || !strings.HasSuffix(got.stderr, "the pull goes on without these credentials\n") {
		t.Errorf("%+v", got)
	}
	if got := run(t, h.image("pull", "--quiet", closed+"/some/image:1")); got.code == 0 || strings.Count(got.stderr, says) != 2 || !strings.Contains(got.stderr, "401") {
		t.Errorf("%+v", got)
	}
}
