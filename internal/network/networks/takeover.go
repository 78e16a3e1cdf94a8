package networks

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/gateway"
	"github.com/sandbox-runtime/sandbox-runtime/netns/publisher"
	"github.com/sandbox-runtime/sandbox-runtime/netns/resolver"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
)

// init does not return in the processes of networks: the follower of a router, the resolver, the one that serves
// published ports, and the two of the proxied network. They are started from this program.
func init() {
	router.TakeOver()
	resolver.TakeOver()
	publisher.TakeOver()
	egress.TakeOver()
	gateway.TakeOver()
}
