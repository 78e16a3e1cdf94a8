package resolver

import (
	"errors"
	"net"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// kind is the kind of the worker.
const kind = "resolver"

// Start starts a resolver on two open sockets: of UDP, with [KeepWhole], and one of TCP that listens. It asks from
// the caller's network namespace. It runs until somebody ends it. note is that of [worker.Start].
func Start(packets, streams *os.File, config string, note func(process.ID) error) error {
	return worker.Start(kind, []string{config}, []*os.File{packets, streams}, note)
}

// TakeOver does not return in a process that [Start] has started: see [worker.TakeOver].
func TakeOver() { worker.TakeOver(kind, run) }

// run is the life of the process.
func run(args []string) error {
	if len(args) != 1 {
		return errors.New("the arguments are not a resolver's")
	}
	packets, err := net.FilePacketConn(worker.File(0))
	if err != nil {
		return err
	}
	streams, err := net.FileListener(worker.File(1))
	if err != nil {
		return err
	}
	udp, isUDP := packets.(*net.UDPConn)
	tcp, isTCP := streams.(*net.TCPListener)
	if !isUDP || !isTCP {
		return errors.New("the sockets are not of UDP and TCP")
	}
	return newForwarder(hostServers(args[0])).serve(udp, tcp)
}
