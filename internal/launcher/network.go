package launcher

import (
	"fmt"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// A network is a sandbox's network namespace. It is made beside the steps before its use:
// the kernel takes about as long for it as for all the mounts.
type network struct {
	made      chan struct{}
	namespace *os.File
	err       error
}

func startNetwork() *network {
	n := &network{made: make(chan struct{})}
	go func() {
		defer close(n.made)
		n.namespace, n.err = netns.Create()
	}()
	return n
}

// path leads to the namespace until it is closed, for every process of root's.
func (n *network) path() (string, error) {
	<-n.made
	if n.err != nil {
		return "", n.err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.namespace.Fd()), nil
}

// close lets go of the namespace, which then lasts as long as the sandbox.
func (n *network) close() {
	<-n.made
	if n.err == nil {
		n.namespace.Close()
	}
}
