// Package takeover makes this program the processes that a launcher starts from it: the builder of images, the follower
// of a router, the resolver, the process that serves published ports, and the two of the proxied network. The packages
// that start these processes import it. The processes of libcontainer are those of package internal/container.
package takeover

import (
	"github.com/sandbox-runtime/sandbox-runtime/images/builder"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/gateway"
	"github.com/sandbox-runtime/sandbox-runtime/netns/publisher"
	"github.com/sandbox-runtime/sandbox-runtime/netns/resolver"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
)

// init does not return in these processes.
func init() {
	builder.TakeOver()
	router.TakeOver()
	resolver.TakeOver()
	publisher.TakeOver()
	egress.TakeOver()
	gateway.TakeOver()
}
