package publisher

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// kind is the kind of the worker.
const kind = "publisher"

// A Port is a published port.
type Port struct {
	// Socket is open on the host: of UDP, or one of TCP that listens.
	Socket *os.File
	IsUDP  bool
	// Number is the sandbox's port.
	Number uint16
}

// Start starts a publisher. The calling thread must be in the sandbox's network namespace. The
// publisher runs until somebody ends it, or until the process of the pidfd ends. note is that of
// [worker.Start].
func Start(pidfd *os.File, ports []Port, note func(process.ID) error) error {
	files := []*os.File{pidfd}
	var args []string
	for _, p := range ports {
		files = append(files, p.Socket)
		args = append(args, p.argument())
	}
	return worker.Start(kind, args, files, note)
}

func (p Port) argument() string {
	if p.IsUDP {
		return fmt.Sprintf("%d/udp", p.Number)
	}
	return fmt.Sprint(p.Number)
}

func parse(argument string, socket *os.File) (Port, error) {
	text, isUDP := strings.CutSuffix(argument, "/udp")
	n, err := strconv.ParseUint(text, 10, 16)
	return Port{socket, isUDP, uint16(n)}, err
}

// TakeOver does not return in a process that [Start] has started: see [worker.TakeOver].
func TakeOver() { worker.TakeOver(kind, run) }

// run is the life of the process.
func run(args []string) error {
	var counts counters
	pidfd := worker.File(0)
	for i, arg := range args {
		p, err := parse(arg, worker.File(i+1))
		if err != nil {
			return err
		}
		if err := p.serve(&counts); err != nil {
			return err
		}
	}
	for {
		if ended, err := process.AwaitExit(int(pidfd.Fd()), time.Hour); ended || err != nil {
			return err
		}
	}
}

// serve serves the port in the background.
func (p Port) serve(b *counters) error {
	defer p.Socket.Close()
	if !p.IsUDP {
		l, err := net.FileListener(p.Socket)
		if err != nil {
			return err
		}
		go serveStreams(l.(*net.TCPListener), p.Number, &b.streams) //nolint:forcetypeassert // of a TCP socket
		return nil
	}
	c, err := net.FilePacketConn(p.Socket)
	if err != nil {
		return err
	}
	go newSwitchboard(c.(*net.UDPConn), p.Number, &b.peers).serve() //nolint:forcetypeassert // of a UDP socket
	return nil
}
