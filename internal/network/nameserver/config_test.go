package nameserver

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestConfigIsReadAsTheCLibraryDoes(t *testing.T) {
	local := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
	long := strings.Repeat("a", 64) + ".example"
	many := strings.Repeat(" many.example", 2*maxSearch)
	for text, want := range map[string]Config{
		"": {local, nil, -1},
		"# search no.example\n;search no.example\nsearch a.example\tb_c-1.example. \n": {local, []string{"a.example", "b_c-1.example"}, -1},
		"search a.example\nsearch b.example\n":                                         {local, []string{"b.example"}, -1},
		"search a.example b.example\ndomain c.example d.example\n":                     {local, []string{"c.example"}, -1},
		"domain c.example\nsearch a.example\n":                                         {local, []string{"a.example"}, -1},
		"search .\n":                                                                   {local, nil, -1},
		"search a.example\nsearch .\n":                                                 {local, nil, -1},
		"search\nsearch a.example":                                                     {local, []string{"a.example"}, -1},
		"search a..b " + long + " x\x01.y é.example a.example;b a.example\r\n":         {local, []string{"a.example"}, -1},
		"search " + strings.Repeat("a.", 127) + " b.example":                           {local, []string{"b.example"}, -1},
		"search" + many: {local, strings.Fields(many)[:maxSearch], -1},
		"options ndots:2 rotate\noptions timeout:1\n": {local, nil, 2},
		"options ndots:0":                           {local, nil, 0},
		"options ndots:99":                          {local, nil, 15},
		"options ndots:-1 ndots:x ndots: ndots:1e3": {local, nil, -1},
		"nameserver 127.0.0.53\nnameserver x\nnameserver fe80::1%eth0\nnameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\n": {[]netip.AddrPort{
			netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53"), netip.MustParseAddrPort("1.1.1.1:53"),
		}, nil, -1},
	} {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadConfig(path); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("nameserver 127.0.0.53\nsearch a.example b.example\noptions ndots:2\n")
	f.Fuzz(func(t *testing.T, text string) {
		c := parseConfig(text)
		if len(c.Servers) == 0 || len(c.Servers) > maxServers || len(c.Search) > maxSearch || c.Ndots < -1 || c.Ndots > maxDots {
			t.Errorf("%+v", c)
		}
		for _, name := range c.Search {
			if strings.ContainsAny(name, " \t\n#;\x00") || name == "" || len(name) > 253 {
				t.Errorf("%q", name)
			}
		}
	})
}
