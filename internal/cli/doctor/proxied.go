package doctor

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/netns/capture"
)

// proxiedFeatures are the part of the table of features that package capture finds out.
func proxiedFeatures() []kernel.Info {
	return []kernel.Info{
		{
			Name: "proxied_network", Group: "network", Title: "the proxied network", Since: kernel.Version{Major: 4, Minor: 9}, Need: kernel.Useful,
			Lost: "--network proxied fails: its packet filter is a table of the family inet that refuses connections",
			Get:  "modprobe nf_tables nft_reject_inet; a kernel with CONFIG_NF_TABLES_INET and CONFIG_NFT_REJECT_INET",
		}, {
			Name: "tproxy", Group: "network", Title: "TPROXY in nftables", Since: kernel.Version{Major: 4, Minor: 19}, Need: kernel.Useful,
			Lost: fmt.Sprintf("--network proxied refuses more than %d allowed ports, and --observe; "+
				"the allowed ports are lost to the sandbox's own servers", capture.MaxPorts),
			Get: "modprobe nft_tproxy; a kernel with CONFIG_NFT_TPROXY",
		},
	}
}

// examineProxied makes a network namespace that captures connections.
func examineProxied() []kernel.Finding { return findProxied(capture.HasTPROXY()) }

func findProxied(hasTPROXY bool, err error) []kernel.Finding {
	infos := proxiedFeatures()
	network, tproxy := kernel.Finding{Info: infos[0]}, kernel.Finding{Info: infos[1]}
	switch {
	case err == nil && !hasTPROXY:
		tproxy.Err = &kernel.NotSupportedError{Info: tproxy.Info, Cause: errors.New("the kernel refuses such a rule"), Fix: tproxy.Get}
	case err == nil:
	case errors.Is(err, errors.ErrUnsupported):
		network.Err = &kernel.NotSupportedError{Info: network.Info, Cause: err, Fix: network.Get}
		tproxy.Err = fmt.Errorf("%s: not tried: the host lacks %s", tproxy.Title, network.Title)
	default:
		fix := network.Get
		if errors.Is(err, fs.ErrPermission) {
			fix = "run it as root; in a container, start that one with --privileged"
		}
		network.Err = &kernel.NotSupportedError{Info: network.Info, Cause: err, Fix: fix}
		tproxy.Err = fmt.Errorf("%s: not tried: %w", tproxy.Title, err)
	}
	return []kernel.Finding{network, tproxy}
}
