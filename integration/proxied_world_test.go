package integration

import (
	"crypto/tls"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Names of servers outside. All but the last have the address of the server.
const (
	archiveName   = "archives.test" // of modules of Go
	forbiddenName = "forbidden.test"
	// forbiddenServer is the address of forbiddenName.
	forbiddenServer = "9.9.9.10"
)

// clientNames are the names that the clients of the tests need.
var clientNames = []string{serverName, "pypi.test", "files.pypi.test", "npm.test", "files.npm.test", "modules.test", archiveName, "deb.test", "db.test"}

// clientRules allow what the clients of the tests need, and no more.
var clientRules = []string{
	serverName, serverName + ":7", serverName + ":22", "pypi.test:443", "files.pypi.test:443", "npm.test:443", "files.npm.test:443",
	"modules.test:443", archiveName + ":443", "deb.test", "db.test:5432",
}

// A proxiedWorld is a host, and an outside whose servers use TLS and record the arrivals.
type proxiedWorld struct {
	*networkWorld
	dir         string // of the servers
	www         string // the files of the servers
	workspace   string // has the client's key of SSH
	trusted     string // the file of the authority
	authority   *authority
	certificate tls.Certificate
	arrivals    *arrivals
}

// newProxiedWorld starts the servers. The client's key is in the workspace.
func newProxiedWorld(t *testing.T) *proxiedWorld {
	t.Helper()
	w := &proxiedWorld{networkWorld: newNetworkWorld(t), dir: t.TempDir(), workspace: t.TempDir()}
	w.authority = newAuthority(t)
	w.www, w.trusted = filepath.Join(w.dir, "www"), filepath.Join(w.dir, "trusted.crt")
	w.certificate = w.authority.issue(t, append(slices.Clone(clientNames), forbiddenName)...)
	writeFile(t, w.trusted, w.authority.trusted())
	netnstest.Shell(t, w.outside, "ip address add "+forbiddenServer+"/24 dev lan")
	w.startAll(t)
	return w
}

func (w *proxiedWorld) startAll(t *testing.T) {
	t.Helper()
	serveFiles(t, w.www, "https://files.pypi.test", "https://files.npm.test")
	serveGo(t, w.www)
	serveApt(t, w.www)
	queries := filepath.Join(w.dir, "queries")
	w.arrivals = w.recordArrivals(t, queries)
	flags := []string{"--log-queries", "--log-facility=" + queries, "--host-record=" + forbiddenName + "," + forbiddenServer}
	for _, name := range clientNames[1:] {
		flags = append(flags, "--host-record="+name+","+worldServer+","+worldServer6)
	}
	w.serveNames(t, w.dir, flags...)
	w.serveGit(t, w.dir, w.www)
	w.serveSSH(t, w.dir, w.workspace)
	w.servePostgres(t, worldServer, worldServer6)
	w.serveWords(t, worldServer+":7")
	w.serveHTTP(t, worldServer+":80", "["+worldServer6+"]:80", worldServer+":8080", forbiddenServer+":80")
	w.serveHTTPS(t, worldServer+":443", "["+worldServer6+"]:443", worldServer+":8443", forbiddenServer+":443")
	for _, port := range []string{"22", "53"} {
		w.answers(t, worldServer+":"+port)
	}
	if postgresPrograms() != "" {
		w.answers(t, worldServer+":5432")
	}
}

// permitted lists the arrivals that rules for names permit.
func permitted(rules []string) []string {
	all := []string{worldServer + " udp 53", worldServer + " tcp 53"}
	for _, rule := range rules {
		name, port, hasPort := strings.Cut(rule, ":")
		ports := []string{port}
		if !hasPort {
			ports = []string{"80", "443"}
		}
		for _, port := range ports {
			all = append(all, worldServer+" tcp "+port, worldServer6+" tcp "+port)
		}
		all = append(all, "dns "+name, "tls "+name, "http "+name)
	}
	return all
}

// outsideSees holds that only arrivals have come that the rules permit, and that the wanted ones have come. The
// wanted ones show that the record works.
func (w *proxiedWorld) outsideSees(t *testing.T, rules []string, wanted ...string) {
	t.Helper()
	all, permitted := w.arrivals.all(t), permitted(rules)
	for _, a := range all {
		if !slices.Contains(permitted, a) {
			t.Errorf("%q has arrived outside", a)
		}
	}
	for _, a := range wanted {
		if !slices.Contains(all, a) {
			t.Errorf("%q has not arrived outside, only %q", a, all)
		}
	}
}

// flags are those of a sandbox with the rules, and with all that the clients need.
func (w *proxiedWorld) flags(t *testing.T, rules []string) []string {
	t.Helper()
	flags := []string{
		"--workspace", w.workspace, "--bind", w.trusted + ":" + trustedInside, "--bind", peer("usr/lib/python3/dist-packages") + ":/pip",
		"--bind", goRoot(t) + ":/go", "--bind", w.www + ":" + w.www,
	}
	for _, r := range rules {
		flags = append(flags, "--allow", r)
	}
	return flags
}

// trustedInside is the file of the authorities that programs trust on Debian.
const trustedInside = "/etc/ssl/certs/ca-certificates.crt"

// atOnce is how much longer a failure may take than a success. A client without an answer to its query waits for
// five seconds (resolv.conf(5)), and without an answer to its connection for longer.
const atOnce = 4 * time.Second

// timed returns how long a function takes.
func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}
