package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// serverName is the name that the world's name server has for its server.
const serverName = "web.test"

// clientCases are clients that people use, with what they print. Each runs in one sandbox.
var clientCases = []struct{ name, script, want string }{
	{"names", `python3 -c 'import socket; print(*sorted({a[4][0] for a in socket.getaddrinfo("web.test", 80)}))'`, worldServer6 + " " + worldServer},
	{"curl", "curl -sS -4 http://web.test/hello && curl -sS -6 http://web.test/hello && curl -sS http://[" + worldServer6 + "]/hello", "hello\nhello\nhello"},
	{"git over http", "git clone -q http://web.test/repository.git by-http && cat by-http/file", "content"},
	{"git over its protocol", "git clone -q git://web.test/repository.git by-git && cat by-git/file", "content"},
	{"ssh", sshTo("4") + " && " + sshTo("6"), worldServer + "\n" + worldServer6},
	{"pip", `PYTHONPATH=/pip python3 -m pip --isolated --disable-pip-version-check install -q --no-cache-dir --index-url http://web.test/simple/ \
		--trusted-host web.test --target lib hello-pip && PYTHONPATH=lib python3 -c 'import hello_pip; print(hello_pip.word)'`, "a word of pip"},
	{"npm", `mkdir module && cd module && npm install --silent --no-audit --no-fund --registry http://web.test/npm/ hello-npm &&
		node -e 'console.log(require("hello-npm"))'`, "a word of npm"},
}

// sshTo prints the server's address of a connection.
func sshTo(family string) string {
	return "ssh -" + family + ` -i key -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=known -o LogLevel=ERROR visitor@web.test 'set -- $SSH_CONNECTION; echo $3'`
}

// Clients that people use work in a sandbox with full: each talks with a real server over a private
// network.
func TestClientsWorkOverFull(t *testing.T) {
	need(t, world(), peers())
	w := newNetworkWorld(t)
	workspace := t.TempDir()
	w.startServers(t, workspace)
	up := w.on(t, "up", "--network", "full", "--workspace", workspace, "--bind", peer("usr/lib/python3/dist-packages")+":/pip", "box")
	if up.code != 0 {
		t.Fatalf("%+v", up)
	}
	t.Cleanup(func() { w.on(t, "down", "box") })
	for _, c := range clientCases {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "npm" && !exists("/usr/bin/npm") {
				need(t, "node is not on PATH")
			}
			if got := w.on(t, "exec", "box", "sh", "-c", c.script); got.code != 0 || strings.TrimSpace(got.stdout) != c.want {
				t.Errorf("%+v", got)
			}
		})
	}
}

// startServers starts the servers of the outside. The workspace gets the client's key.
func (w *networkWorld) startServers(t *testing.T, workspace string) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "www")
	serveFiles(t, root, "", "http://"+serverName)
	w.serveNames(t, dir, "--log-facility=-")
	w.serveWeb(t, dir, root)
	w.serveGit(t, dir, root)
	w.serveSSH(t, dir, workspace)
	for _, port := range []string{"22", "53", "80", "9418"} {
		eventually(t, "port "+port+" is served", func() bool {
			return netns.Do(w.outside, func() error {
				c, err := net.Dial("tcp", net.JoinHostPort(worldServer, port))
				if err == nil {
					c.Close()
				}
				return err
			}) == nil
		})
	}
}

// serveFiles makes a file, an index of pip and a registry of npm. The files of pip and npm are at the origins.
func serveFiles(t *testing.T, root, originOfPip, originOfNpm string) {
	t.Helper()
	for _, sub := range []string{"simple/hello-pip", "npm"} {
		if err := os.MkdirAll(filepath.Join(root, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(root, "hello"), "hello\n")
	servePip(t, root, originOfPip)
	serveNpm(t, root, originOfNpm)
}

// serverOutside starts a server of the peers, or one of the host.
func (w *networkWorld) serverOutside(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	cmd := netnstest.Command(exec.Command(program, args...), w.outside)
	cmd.Env = peerEnvironment(dir)
	daemon(t, cmd, func() {})
}

// serveNames makes the world's name server that of the host's resolv.conf(5).
func (w *networkWorld) serveNames(t *testing.T, dir string, flags ...string) {
	t.Helper()
	hostResolves(t, "nameserver "+worldServer+"\n")
	w.serverOutside(t, dir, peer("usr/sbin/dnsmasq"), append([]string{"--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
		"--listen-address=" + worldServer, "--bind-interfaces", "--user=root", "--group=root", "--pid-file=",
		"--host-record=" + serverName + "," + worldServer + "," + worldServer6}, flags...)...)
}

func (w *networkWorld) serveWeb(t *testing.T, dir, root string) {
	t.Helper()
	config := filepath.Join(dir, "nginx.conf")
	writeFile(t, config, fmt.Sprintf(`user root; worker_processes 1; daemon off; pid %[1]s/nginx.pid; error_log stderr;
events {}
http {
	access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi; types { text/html html; } default_type application/json;
	server { listen %[2]s:80; listen [%[3]s]:80; root %[4]s; }
}
`, dir, worldServer, worldServer6, root))
	w.serverOutside(t, dir, peer("usr/sbin/nginx"), "-e", "stderr", "-c", config)
}

func (w *networkWorld) serveGit(t *testing.T, dir, root string) {
	t.Helper()
	line := `git init -q -b main repository && cd repository && echo content > file && git add file &&
		git -c user.name=a -c user.email=a@example.com commit -q -m first && git clone -q --bare . "$0/repository.git" && git -C "$0/repository.git" update-server-info &&
		git --exec-path`
	cmd := exec.Command("sh", "-c", line, root)
	cmd.Dir, cmd.Env = dir, append(peerEnvironment(dir), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	got := run(t, cmd)
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	w.serverOutside(t, dir, filepath.Join(strings.TrimSpace(got.stdout), "git-daemon"), "--export-all", "--reuseaddr", "--base-path="+root, root)
}

// serveSSH lets the client in with the key of the workspace.
func (w *networkWorld) serveSSH(t *testing.T, dir, workspace string) {
	t.Helper()
	for _, key := range []string{filepath.Join(dir, "host"), filepath.Join(workspace, "key")} {
		if got := run(t, exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)); got.code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	users, config := filepath.Join(dir, "passwd"), filepath.Join(dir, "sshd.conf")
	writeFile(t, users, content(t, "/etc/passwd")+"visitor:*:0:0::/:/bin/sh\nsshd:*:65534:65534::/:/bin/false\n")
	writeFile(t, config, fmt.Sprintf("ListenAddress %s\nListenAddress %s\nHostKey %s/host\nAuthorizedKeysFile %s/key.pub\n"+
		"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n", worldServer, worldServer6, dir, workspace))
	if err := os.Mkdir("/run/sshd", 0o755); err != nil { // sshd's own root directory
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove("/run/sshd") })
	w.serverOutside(t, dir, "unshare", "--mount", "sh", "-c", `"$1" mount -o bind "$0" /etc/passwd && shift && exec "$@"`,
		users, peer("bin/busybox"), peer("usr/sbin/sshd"), "-D", "-e", "-f", config)
}

// servePip makes an index with one wheel. The files are at the origin, or at the index's own if that is empty.
func servePip(t *testing.T, root, origin string) {
	t.Helper()
	const name = "hello_pip-1.0-py3-none-any.whl"
	writeFile(t, filepath.Join(root, "simple/hello-pip/index.html"), `<a href="`+origin+`/`+name+`">`+name+`</a>`)
	writeFile(t, filepath.Join(root, name), zipped(t, [][2]string{
		{"hello_pip.py", "word = 'a word of pip'\n"},
		{"hello_pip-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello-pip\nVersion: 1.0\n"},
		{"hello_pip-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"hello_pip-1.0.dist-info/RECORD", "hello_pip.py,,\nhello_pip-1.0.dist-info/METADATA,,\nhello_pip-1.0.dist-info/WHEEL,,\nhello_pip-1.0.dist-info/RECORD,,\n"},
	}))
}

// serveNpm makes a registry with one package. The files are at the origin.
func serveNpm(t *testing.T, root, origin string) {
	t.Helper()
	const about = `"name": "hello-npm", "version": "1.0.0"`
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	packed := tar.NewWriter(z)
	for _, f := range [][2]string{{"package/package.json", "{" + about + "}"}, {"package/index.js", "module.exports = 'a word of npm'\n"}} {
		err := packed.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))})
		if err == nil {
			_, err = packed.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(root, "npm/hello-npm-1.0.0.tgz"), b.String())
	writeFile(t, filepath.Join(root, "npm/hello-npm"), fmt.Sprintf(`{"name": "hello-npm", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {%s,
		"dist": {"tarball": "%s/npm/hello-npm-1.0.0.tgz", "shasum": "%x"}}}}`, about, origin, sha1.Sum(b.Bytes())))
}
