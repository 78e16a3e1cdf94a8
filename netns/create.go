package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Create makes a network namespace with a loopback device that is up, and nothing else. It
// lasts as long as the file is open or a process is in it.
//
// It belongs to the caller's user namespace (network_namespaces(7)): a process with
// privileges in another one only, as root of a sandbox, cannot change it. The caller needs
// CAP_SYS_ADMIN.
func Create() (*os.File, error) {
	namespace, err := onThread(func() (*os.File, error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("unshare: %w", err)
		}
		if err := errors.Join(loopbackUp(), boundOptions(), openLowPorts()); err != nil {
			return nil, err
		}
		return currentNamespace()
	})
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return namespace, nil
}

// onThread calls f on a thread that is back in the caller's network namespace
// before it does anything else; if it can't be, it ends.
func onThread(f func() (*os.File, error)) (result *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var home *os.File
		if home, err = currentNamespace(); err != nil {
			return
		}
		defer home.Close()
		result, err = f()
		if back := enterNamespace(home); back != nil {
			err = errors.Join(err, fmt.Errorf("go back: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	<-done
	if err != nil && result != nil {
		err = errors.Join(err, result.Close())
		result = nil
	}
	return result, err
}

// enterNamespace moves the calling thread into the network namespace.
func enterNamespace(namespace *os.File) error {
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	return nil
}

// currentNamespace is the network namespace of the calling thread.
func currentNamespace() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// maxOptionMemory bounds the memory of a socket's options and control messages, in bytes.
const maxOptionMemory = "8192"

// boundOptions lowers the bound of that memory, which is charged to nobody. Before Linux
// 6.8 a namespace has no bound of its own.
func boundOptions() error { return setSysctl("net/core/optmem_max", maxOptionMemory) }

// openLowPorts lets programs without a capability listen on each port, such as 80: all ports of the
// namespace are the sandbox's own.
func openLowPorts() error { return setSysctl("net/ipv4/ip_unprivileged_port_start", "0") }

// setSysctl sets a sysctl of the calling thread's network namespace. In a container /proc/sys may be
// read-only: the kernel's value stays.
func setSysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		return nil
	}
	return err
}

func loopbackUp() error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback device: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring the loopback device up: %w", err)
	}
	return nil
}
