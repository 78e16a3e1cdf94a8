package launcher

import (
	"fmt"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// A network returns a sandbox's network namespace. A goroutine makes the namespace while the
// launcher does other steps: the kernel takes about as long for it as for all the mounts.
type network func() (*os.File, error)

func startNetwork() network {
	made := sync.OnceValues(netns.Create)
	go func() { _, _ = made() }() // the caller gets the error
	return made
}

// path returns a path of the namespace. Each process of root can use the path until close.
func (n network) path() (string, error) {
	namespace, err := n()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.Fd()), nil
}

// close closes the namespace's file. The namespace then lasts as long as the sandbox.
func (n network) close() {
	if namespace, err := n(); err == nil {
		namespace.Close()
	}
}
