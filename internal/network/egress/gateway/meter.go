package gateway

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// meter counts the bytes of all open connections. It sees slow connections and the bytes that the proxy
// does not copy.
func (b *box) meter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	var count link.Counts
	for c := range b.open {
		count.Add(c.meterLocked())
	}
	b.spendLocked(count)
}

// meterFunction counts the bytes of the connection after each copy: a fast connection must not pass the bound
// between two calls of box.meter. It is nil if the bytes of the box have no bound.
func (c *connection) meterFunction() func() error {
	b := c.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.grant.Bytes == 0 {
		return nil
	}
	return func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.spendLocked(c.meterLocked())
		if b.isSpentLocked() {
			return errors.New(b.spentLocked())
		}
		return nil
	}
}

// spendLocked adds the bytes of open connections to those of the box, and ends the connections if the bytes
// are used up.
func (b *box) spendLocked(count link.Counts) {
	if count == (link.Counts{}) {
		return
	}
	b.used.Add(count)
	_ = b.gateway.report(link.Report{Kind: link.KindEvent, Number: b.number, Counts: count}) // without a parent the process ends
	if b.isSpentLocked() {
		for c := range b.open {
			c.end()
		}
	}
}

// hasEnded says whether no more bytes can come from the client or go there.
func (c *connection) hasEnded() bool {
	info, err := c.kernelInfo()
	return err != nil || info.State == unix.BPF_TCP_CLOSE
}

// kernelInfo has the kernel's view of the connection with the client (tcp(7), TCP_INFO).
func (c *connection) kernelInfo() (info *unix.TCPInfo, err error) {
	err = descriptor.Use(c.client, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	return info, err
}

// meterLocked returns the bytes since the last call, as the kernel knows them. Bytes for the sandbox count as
// soon as they are in the socket.
func (c *connection) meterLocked() link.Counts {
	var all link.Counts
	if info, err := c.kernelInfo(); err == nil { // a closed connection has no more bytes
		all = link.Counts{Sent: info.Bytes_received, Received: info.Bytes_sent - info.Bytes_retrans + uint64(info.Notsent_bytes)}
	}
	return c.countUpToLocked(all)
}

// countUpToLocked returns the bytes that are not counted yet.
func (c *connection) countUpToLocked(all link.Counts) link.Counts {
	more := link.Counts{Sent: all.Sent - min(c.counted.Sent, all.Sent), Received: all.Received - min(c.counted.Received, all.Received)}
	c.counted.Add(more)
	return more
}
