package egress

import (
	"encoding/json"
	"net"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// openRequest is a connection to the parent with a request. The client still has its end.
func openRequest(t *testing.T, r request, files ...*os.File) (parents *net.UnixConn, client *channel.Conn) {
	t.Helper()
	conn, theirs, err := descriptor.UnixPair()
	if err != nil {
		t.Fatal(err)
	}
	clientConn, err := descriptor.UnixConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	client, err = channel.OfConn(clientConn, 0)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Send(t.Context(), body, files...); err != nil {
		t.Fatal(err)
	}
	return conn, client
}

// A killed command can leave a request behind. The next command for the sandbox may be served first, so a late
// request must change nothing.
func TestARequestOfAClientThatHasGoneChangesNothing(t *testing.T) {
	socket := newSandbox(t).sockets.Streams[0]
	late, wider := Box{Key: "late", Allow: []string{"other.example"}}, Box{Key: "a", Allow: []string{"other.example"}}
	for _, r := range []request{
		{Op: opAdmit, Key: late.Key, Box: &late, Roles: []link.Role{link.Streams}},
		{Op: opChange, Key: wider.Key, Box: &wider},
		{Op: opSuspend, Key: "a"},
		{Op: opWithhold, Key: "a"},
		{Op: opDismiss, Key: "a"},
	} {
		for _, isGone := range []bool{false, true} {
			p := newHostileParent(t)
			before := p.sent
			conn, client := openRequest(t, r, []*os.File{socket}[:len(r.Roles)]...)
			if isGone {
				client.Close()
			}
			p.acked = before + 1 // in place of a worker
			p.serveClient(conn)
			client.Close()
			a := p.boxByKey("a")
			isSame := p.boxByKey(late.Key) == nil && a != nil && len(a.files) > 0 && a.grant.Allow[0] == "a.example" && p.sent == before
			if isSame != isGone {
				t.Errorf("%s: the client has gone: %v, and the boxes are the same: %v", r.Op, isGone, isSame)
			}
		}
	}
}
