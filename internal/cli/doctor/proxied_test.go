package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

func TestTheLackOfTPROXYIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		has           bool
		err           error
		network, tell string
	}{
		"with TPROXY":       {true, nil, "ok       the proxied network\n", "ok       TPROXY in nftables\n"},
		"without":           {false, nil, "ok       the proxied network\n", "refuses more than 64 allowed ports, and --observe; the allowed ports are lost to the sandbox's own servers. To get it: modprobe nft_tproxy"},
		"without nftables":  {false, fmt.Errorf("x: %w", errors.ErrUnsupported), "--network proxied fails", "warn     TPROXY in nftables: not tried"},
		"without the right": {false, fmt.Errorf("x: %w", fs.ErrPermission), "To get it: run it as root", "warn     TPROXY in nftables: not tried"},
	} {
		var b strings.Builder
		for _, f := range findProxied(c.has, c.err) {
			reportFeature(f).write(&b)
		}
		if lines := strings.SplitAfter(b.String(), "\n"); len(lines) != 3 || !strings.Contains(lines[0], c.network) || !strings.Contains(lines[1], c.tell) {
			t.Errorf("%s: %s", name, b.String())
		}
	}
}
