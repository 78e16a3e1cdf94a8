package launcher

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A sandbox of the pool shows a socket as a cold one does. Nobody listens on the socket, so a command
// that may connect gets "Connection refused".
func TestSocketsAreBoundInClaimedSandboxes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(l.Close(), os.Chmod(path, 0o600), os.Chown(path, 4321, 4321)); err != nil {
		t.Fatal(err)
	}
	config := spec.Config{Binds: []spec.Bind{{Source: path, Target: "/srv/data/s"}}}
	for _, sb := range []*Sandbox{
		claimed1(t, newPooledLauncher(t, 1), inMemory("", config)),
		createUp(t, newTestLauncher(t), "", config),
	} {
		const line = `perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Peer => "/srv/data/s") ? print "connected" : print $!'`
		r, out := sh(t, sb, line)
		if out.stdout != "Connection refused" || !strings.Contains(strings.Join(r.Notes, "\n"), "is a socket") {
			t.Errorf("%+v, notes %q", out, r.Notes)
		}
	}
}
