package launcher

import (
	"fmt"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// A network is a sandbox's network namespace. It is made beside the steps before its use:
// the kernel takes about as long for it as for all the mounts.
type network func() (*os.File, error)

func startNetwork() network {
	made := sync.OnceValues(netns.Create)
	go func() { _, _ = made() }() // the caller gets the error
	return made
}

// path leads to the namespace until it is closed, for every process of root's.
func (n network) path() (string, error) {
	namespace, err := n()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd()), nil
}

// close lets go of the namespace, which then lasts as long as the sandbox.
func (n network) close() {
	if namespace, err := n(); err == nil {
		namespace.Close()
	}
}
