package oci

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestCapabilitiesOfExecAreNotInherited(t *testing.T) {
	p := &specs.Process{}
	addCapabilities(p, []string{"CAP_NET_RAW"})
	if c := p.Capabilities; len(c.Inheritable)+len(c.Ambient) != 0 || len(c.Effective) != 1 {
		t.Errorf("%+v", c)
	}
}

func TestParseSubCgroups(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"a/b"}, "=a/b "},
		{[]string{"cpu,memory:x", "pids:y"}, "cpu=x memory=x pids=y "},
		{[]string{"a", "b"}, "error"},
		{[]string{":a"}, "error"},
		{[]string{"cpu:a", "cpu:b"}, "error"},
	} {
		paths, err := parseSubCgroups(c.args)
		got := ""
		for _, k := range []string{"", "cpu", "memory", "pids"} {
			if v, ok := paths[k]; ok {
				got += k + "=" + v + " "
			}
		}
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}

// No text gives another id than the one that it spells (crun's CVE-2026-30892).
func FuzzExecUser(f *testing.F) {
	for _, s := range []string{"0", "1000", "1:2", "-1", "4294967295", "4294967296", "0x0", "00", "+0", " 0", "1:", ":", "", "1:2:3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u := specs.User{UID: 77, GID: 88}
		if err := setUser(&u, s, nil); err != nil || s == "" {
			return
		}
		uid, gid, hasGID := strings.Cut(s, ":")
		if !spells(uid, u.UID) || hasGID && !spells(gid, u.GID) || !hasGID && u.GID != 88 {
			t.Errorf("%q became %d:%d", s, u.UID, u.GID)
		}
	})
}

func spells(s string, id uint32) bool {
	return id != math.MaxUint32 && s != "" && strings.TrimLeft(s, "0") == strings.TrimLeft(strconv.FormatUint(uint64(id), 10), "0")
}
