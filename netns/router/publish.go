package router

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/publisher"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Publish opens published ports of the sandbox with this link, in place of earlier ones. The sandbox need not be
// connected. The ports close when the sandbox's PID 1 ends, and with Detach. Publish without ports only closes the
// earlier ones.
func (r Router) Publish(ctx context.Context, sandbox *os.File, init process.ID, link string, ports []spec.PublishedPort) error {
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.endPublisher(link); err != nil || len(ports) == 0 {
		return err
	}
	pidfd, err := init.Open()
	if err != nil {
		return err
	}
	defer pidfd.Close()
	var open []publisher.Port
	defer func() {
		for _, p := range open {
			p.Socket.Close()
		}
	}()
	for _, p := range ports {
		socket, err := listenOutside(p)
		if err != nil {
			return fmt.Errorf("--publish %s: %w", p, err)
		}
		open = append(open, publisher.Port{Socket: socket, IsUDP: p.IsUDP, Number: p.Port})
	}
	return netns.Do(sandbox, func() error {
		return publisher.Start(pidfd, open, func(id process.ID) error {
			return statedir.ReplaceJSON(r.publisherFile(link), id)
		})
	})
}

// listenOutside opens the host's socket of a published port.
func listenOutside(p spec.PublishedPort) (*os.File, error) {
	family := "4"
	if p.Host.Addr().Is6() {
		family = "6"
	}
	if p.IsUDP {
		return fileOf(net.ListenUDP("udp"+family, net.UDPAddrFromAddrPort(p.Host)))
	}
	return fileOf(net.ListenTCP("tcp"+family, net.TCPAddrFromAddrPort(p.Host)))
}

const publisherPrefix = "publisher-"

// publisherFile names the process that serves the published ports of the sandbox with this link.
func (r Router) publisherFile(link string) string { return filepath.Join(r.Dir, publisherPrefix+link) }

// HasPublisher says that the sandbox with this link has published ports, or had some.
func (r Router) HasPublisher(link string) bool { return statedir.Exists(r.publisherFile(link)) }

// endPublisher ends the publisher of a link, if there is one.
func (r Router) endPublisher(link string) error {
	if err := endProcess(r.publisherFile(link)); err != nil {
		return fmt.Errorf("end the publisher: %w", err)
	}
	return nil
}

// endPublishers ends the publishers of the links that are not live.
func (r Router) endPublishers(isLive func(link string) (bool, error)) error {
	return eachStaleFile(r.Dir, publisherPrefix, isLive, func(_, link string) error { return r.endPublisher(link) })
}

// eachStaleFile calls f with the path and the link of each file of a link that is not live. The name of such a file in the
// directory is the prefix and the link. The file can be a draft.
func eachStaleFile(dir, prefix string, isLive func(link string) (bool, error), f func(path, link string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, hasPrefix := strings.CutPrefix(e.Name(), prefix)
		if !hasPrefix {
			continue
		}
		link := strings.TrimSuffix(name, draft.Suffix)
		live, err := isLive(link)
		if err == nil && !live {
			err = f(filepath.Join(dir, e.Name()), link)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
