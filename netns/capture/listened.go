package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// listenedSet has the ports of the listeners, without TPROXY.
func listenedSet() *nftables.Set {
	return &nftables.Set{Table: table(), Name: "listened", ID: listenedID, KeyType: nftables.TypeInetService}
}

// captureAtPorts opens a listener at all addresses for each port and family. All addresses are local, so
// no rule has to lead a connection there. The rules come before the listeners: so no connection to an
// own address reaches a listener.
func (in *editor) captureAtPorts(l *Listeners, families []family, ports []spec.PortRange) error {
	numbers, err := single(ports)
	if err != nil {
		return err
	}
	if err := closeAll(&l.Streams); err != nil {
		return err
	}
	in.newTable()
	if err := in.filter.AddSet(listenedSet(), portElements(numbers)); err != nil {
		return operation("write the ports", err)
	}
	var captures []rule
	for _, f := range families {
		captures = append(captures, f.matchLocal(f.dest, false, isListened(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})...), f.matchLocal(f.dest, false, accept()))
	}
	if err := in.writeRules(families, append(captures, isListened(accept()))); err != nil {
		return err
	}
	return netns.Do(in.namespace, func() error {
		for _, port := range numbers {
			err := l.listenForStreams(families, func(f family) netip.AddrPort { return netip.AddrPortFrom(f.anywhere(), port) })
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// isListened matches TCP packets to the port of a listener.
func isListened(then ...expr.Any) rule {
	set := listenedSet()
	return append(append(hasProtocol(unix.IPPROTO_TCP),
		loadTransport(2, 2),
		&expr.Lookup{SourceRegister: scratch, SetName: set.Name, SetID: set.ID}), then...)
}

// single lists the ports of ranges that are sorted. Port 53 is missing: its sockets are there anyway.
func single(ports []spec.PortRange) (numbers []uint16, err error) {
	count := 0
	for _, r := range ports {
		count += int(r.Last) - int(r.First) + 1
	}
	if contains(ports, dnsPort) {
		count--
	}
	if count > MaxPorts {
		return nil, fmt.Errorf("%w: without TPROXY at most %d ports can be captured, and these are %d; load the kernel module nft_tproxy, or allow fewer ports",
			errors.ErrUnsupported, MaxPorts, count)
	}
	for _, r := range ports {
		for port := int(r.First); port <= int(r.Last); port++ {
			if port != dnsPort {
				numbers = append(numbers, uint16(port))
			}
		}
	}
	return numbers, nil
}

func portElements(numbers []uint16) (elements []nftables.SetElement) {
	for _, port := range numbers {
		elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, port)})
	}
	return elements
}

// checkPorts returns nil if the listeners have exactly these ports.
func (in *editor) checkPorts(ports []spec.PortRange) error {
	set := listenedSet()
	_, err := in.filter.GetSetByName(set.Table, set.Name)
	if errors.Is(err, unix.ENOENT) {
		return errors.New("the namespace captures nothing; open the capture first")
	}
	if err != nil {
		return operation("read nftables", err)
	}
	elements, err := in.filter.GetSetElements(set)
	if err != nil {
		return operation("read nftables", err)
	}
	wanted, err := single(ports)
	if err != nil {
		return err
	}
	var present []uint16
	for _, e := range elements {
		present = append(present, binary.BigEndian.Uint16(e.Key))
	}
	slices.Sort(present)
	if !slices.Equal(present, wanted) {
		return ErrReopen
	}
	return nil
}
