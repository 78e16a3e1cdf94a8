package router

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Distributions filter reverse paths: systemd loosely (2), others strictly (1). The answers to sandboxes pass.
func TestSandboxesWorkWithAFilterOfReversePaths(t *testing.T) {
	for _, value := range []string{"0", "1", "2"} {
		w := newWorld(t)
		netnstest.Shell(t, w.host, "for d in all default wan; do echo "+value+" >/proc/sys/net/ipv4/conf/$d/rp_filter; done")
		before := hostState(t, w)
		serve(t, w.internet, "0.0.0.0:80")
		one := w.attach(t, Member{Link: "s-one", Number: 1})
		if got, err := exchangeWithin(one, "tcp", internetIPv4+":80", patience); err != nil {
			t.Errorf("rp_filter %s: %s %v", value, got, err)
		}
		w.detach(t, nil, "s-one")
		if after := hostState(t, w); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	}
}

// The filter can be switched on while a sandbox runs.
func TestARunningSandboxFollowsTheFilterOfReversePaths(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	netnstest.Shell(t, w.host, "echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter")
	reaches(t, one, internetIPv4+":80", hostIPv4)
}
