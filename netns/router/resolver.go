package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/resolver"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

var resolverAddress = netip.AddrPortFrom(netip.MustParseAddr(spec.NameServer), 53)

// resolverFile names the resolver's process.
func (r Router) resolverFile() string { return filepath.Join(r.Dir, "resolver") }

// readJSON reads a file of [statedir.ReplaceJSON].
func readJSON[T any](file string) (value T, err error) {
	text, err := statedir.ReadOwn(file)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	return value, err
}

// repairResolver starts a resolver unless one runs.
func (o *lockedRouter) repairResolver() error {
	id, err := readJSON[process.ID](o.router.resolverFile())
	if err == nil && id.Lives() {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the resolver's process: %w", err)
	}
	packets, streams, err := listenInside(o.namespace)
	if err != nil {
		return fmt.Errorf("the resolver's sockets: %w", err)
	}
	defer packets.Close()
	defer streams.Close()
	return resolver.Start(packets, streams, o.router.Resolv, func(id process.ID) error {
		return statedir.ReplaceJSON(o.router.resolverFile(), id)
	})
}

// listenInside opens the resolver's sockets in the router.
func listenInside(namespace *os.File) (packets, streams *os.File, err error) {
	err = netns.Do(namespace, func() error {
		if packets, err = listenForQueries(); err != nil {
			return err
		}
		if streams, err = fileOf(net.ListenTCP("tcp", net.TCPAddrFromAddrPort(resolverAddress))); err != nil {
			packets.Close()
		}
		return err
	})
	return packets, streams, err
}

// listenForQueries opens the socket for queries over UDP in the network namespace of the calling thread. Sandboxes can send
// queries as soon as the socket is bound, so it gets its options before.
func listenForQueries() (*os.File, error) {
	configure := func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(resolver.KeepWhole(int(fd)),
				os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queryBuffer)))
		})
		return errors.Join(err, failed)
	}
	listen := net.ListenConfig{Control: configure}
	c, err := listen.ListenPacket(context.Background(), "udp", resolverAddress.String())
	if err != nil {
		return nil, err
	}
	return fileOf(c.(*net.UDPConn), nil) //nolint:forcetypeassert // of UDP
}

// A listener is a socket of package net, for UDP or TCP.
type listener interface {
	File() (*os.File, error)
	Close() error
}

// fileOf turns the socket of a successful call of package net into a file.
func fileOf(socket listener, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	f, err := socket.File()
	if err = errors.Join(err, socket.Close()); err != nil && f != nil {
		f.Close()
	}
	return f, err
}

// endProcesses ends the router's own processes, whose files keep its namespace.
func (r Router) endProcesses() (err error) {
	for _, file := range []string{r.resolverFile(), r.followerFile()} {
		if failed := endProcess(file); failed != nil {
			err = errors.Join(err, fmt.Errorf("end the %s: %w", filepath.Base(file), failed))
		}
	}
	return err
}

// endTime bounds the wait for the end of a killed process.
const endTime = 5 * time.Second

// endProcess ends the process of a file, if there is one, and removes the file.
func endProcess(file string) error {
	id, err := readJSON[process.ID](file)
	if erase.IgnoreMissing(err) != nil {
		return err
	}
	if err == nil && id.Lives() {
		if err := id.End(endTime); err != nil {
			return err
		}
	}
	return statedir.RemoveJSON(file)
}
