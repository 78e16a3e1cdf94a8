package router

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Each host lets its own packets pass and not those of sandboxes. The fix helps.
func TestDetoursAreFound(t *testing.T) {
	for name, c := range map[string]struct{ line, fault, fix string }{
		"none": {},
		"a rule for the host's own packets": {
			"ip route add default via 9.7.7.9 table 7 && ip rule add iif lo to 200.0.0.0/8 table 7", "those of the host by near", `iif sr-`,
		},
		"forwarding is off":         {"echo 0 >/proc/sys/net/ipv4/conf/near/forwarding", "near do not pass: its forwarding is off", "doctor --repair"},
		"a filter of reverse paths": {"echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter", "drops answers that come in through wan", "doctor --repair"},
		"a table before main":       {"ip route add default via 9.7.7.9 table 7 && ip rule add iif wan table 7", "wan leave by near", "ip rule add to "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addCard(t, "near", "9.7.7.")
			w.attach(t, Member{Link: "s-one", Number: 0})
			if c.fix == "doctor --repair" {
				endFollower(t, w)
			}
			if c.line != "" {
				netnstest.Shell(t, w.host, c.line)
			}
			found := w.detours(t)
			if c.fault == "" {
				if len(found) > 0 {
					t.Errorf("%+v", found)
				}
				return
			}
			i := slices.IndexFunc(found, func(d Detour) bool { return strings.Contains(d.Fault, c.fault) && strings.Contains(d.Fix, c.fix) })
			if i < 0 {
				t.Fatalf("%+v", found)
			}
			w.repair(t, found[i].Fix)
			if found = w.detours(t); len(found) > 0 {
				t.Errorf("after the fix: %+v", found)
			}
		})
	}
}

func (w *world) detours(t *testing.T) (found []Detour) {
	t.Helper()
	if err := w.doOnHost(func() (err error) { found, err = w.router.Detours(); return err }); err != nil {
		t.Fatal(err)
	}
	return found
}

// repair takes the way out of the text.
func (w *world) repair(t *testing.T, text string) {
	t.Helper()
	switch {
	case text == "doctor --repair":
		if err := w.doOnHost(func() error { return w.router.Repair(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	case strings.HasPrefix(text, "ip rule add"):
		netnstest.Shell(t, w.host, text)
	default: // the same rule for the router's device
		netnstest.Shell(t, w.host, "ip rule add iif "+w.router.hostLink()+" to 200.0.0.0/8 table 7")
	}
}

func endFollower(t *testing.T, w *world) {
	t.Helper()
	id, err := readJSON[process.ID](w.router.followerFile())
	if err == nil {
		err = id.End(patience)
	}
	if err != nil {
		t.Fatal(err)
	}
}
