package networks

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/egress"
	"github.com/sandbox-runtime/sandbox-runtime/internal/egress/gateway"
)

// init does not return in the two processes of the proxied network. They are started from this program.
func init() {
	egress.TakeOver()
	gateway.TakeOver()
}
