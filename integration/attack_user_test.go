package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// notUsers are strings that some parser takes for a user it is not: for root,
// or for "leave it as it is". FuzzExecUser of the program looks for more.
var notUsers = []string{
	"-1", "-1:0", "0:-1", "4294967295", "4294967295:0", "0:4294967295", "4294967296", "4294968296", "18446744073709551616",
	"18446744073709551615", "99999999999999999999999", "-0", "-4294967296", "+0", "+1000", " 0", "0 ", "\t0", "1000\n0", "1000 0",
	"0x0", "0x3e8", "0b1", "0o17", "1e3", "1_000", "1000.0", "user", ":", ":0", "1000:", "1000:0:0",
	"1000;0", "1000,0", "1000/0", "۱۰۰۰", "１０００", "${UID}", "", "%d", "NaN",
}

// crun's CVE-2026-30892: a string as --user that is taken for another user.
func TestAttackByTheNameOfAUser(t *testing.T) {
	leavesNothing(t)
	r, _ := sleeper(t)
	for _, user := range append([]string{"root", "nobody", "1000:root"}, notUsers...) {
		if user == "" {
			continue // is no user given; Docker's shim never does
		}
		got := run(t, r.command("exec", "--user", user, "c", "id", "-u"))
		if got.code != 255 || got.stdout != "" {
			t.Errorf("%q: %+v", user, got)
		}
	}
	for user, want := range map[string]string{
		"0": "0 0", "1000": "1000 0", "1000:1001": "1000 1001", "007": "7 0", "00:00": "0 0", "65535:65536": "65535 65536",
		"4294967294:4294967294": "4294967294 4294967294",
	} {
		got := run(t, r.command("exec", "--user", user, "c", "sh", "-c", "echo $(id -u) $(id -g)"))
		if got.stdout != want+"\n" {
			t.Errorf("%q: %+v, want %s", user, got, want)
		}
	}
}

func TestAttackByTheNumberOfAUser(t *testing.T) {
	r, b := sleeper(t)
	const unchanged = 1<<32 - 1 // to setresuid(2)
	for i, change := range []func(*specs.Process){
		func(p *specs.Process) { p.User.UID = unchanged },
		func(p *specs.Process) { p.User.GID = unchanged },
		func(p *specs.Process) { p.User.UID, p.User.GID = unchanged, unchanged },
		func(p *specs.Process) { p.User.AdditionalGids = []uint32{unchanged} },
	} {
		process := processFile(t, b, []string{"id"}, change)
		if got := run(t, r.command("exec", "--process", process, "c")); got.code == 0 || got.stdout != "" {
			t.Errorf("%d by a file: %+v", i, got)
		}
		other := newBundle(t, []string{"id"}, func(s *specs.Spec) { change(s.Process) })
		if got := run(t, r.command("run", "--bundle", other.dir, "other")); got.code == 0 || got.stdout != "" {
			t.Errorf("%d by a bundle: %+v", i, got)
		}
	}
	if got := run(t, r.command("exec", "--additional-gids", fmt.Sprint(unchanged), "c", "id")); got.code == 0 || got.stdout != "" {
		t.Errorf("by --additional-gids: %+v", got)
	}
}

func TestAttackByTheNameOfAUserOfDo(t *testing.T) {
	s := newSandboxes(t)
	for _, user := range notUsers {
		if got := s.do("--user="+user, "--", "id", "-u"); got.code != 125 || got.stdout != "" {
			t.Errorf("%q: %+v", user, got)
		}
	}
	// Names are those of the sandbox, and give no capabilities.
	for user, want := range map[string]string{"65534": "65534 65534", "1000": "1000 1000", "root": "0 0", "nobody": "65534 65534", "1000:root": "1000 0"} {
		got := s.do("--user", user, "--", "sh", "-c", "echo $(id -u) $(id -g); grep CapEff /proc/self/status")
		if got.stdout != want+"\nCapEff:\t0000000000000000\n" {
			t.Errorf("%q: %+v", user, got)
		}
	}
	// PID 1's own id, and those beyond the range.
	for _, user := range []string{"65535", "0:65535", "65536", strconv.Itoa(1 << 31)} {
		if got := s.do("--user", user, "--", "id", "-u"); got.code != 125 || strings.Contains(got.stdout, "uid") {
			t.Errorf("%q: %+v", user, got)
		}
	}
}
