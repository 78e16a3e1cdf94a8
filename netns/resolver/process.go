package resolver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// argument and variable have this program become a resolver when it is executed.
const (
	argument = "resolver"
	variable = "_SANDBOX_RUNTIME_RESOLVER"
)

// Files of the new process.
const (
	packetFile = 3
	streamFile = 4
	gateFile   = 5
)

// nobody is the id of the user and the group "nobody". The program's file may be root's alone, so
// the process changes its ids when it runs.
const nobody = 65534

// Start starts a resolver on two open sockets: of UDP, and one of TCP that listens. It asks from
// the caller's network namespace. It runs until somebody ends it. note is called with the new
// process, which does nothing before note returns, and ends if the caller is killed before that.
func Start(packets, streams *os.File, config string, note func(process.ID) error) error {
	gate, opener, err := os.Pipe()
	if err != nil {
		return err
	}
	defer gate.Close()
	defer opener.Close()
	cmd := exec.Command("/proc/self/exe", argument, config)
	cmd.Env = []string{variable + "=1"}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{packets, streams, gate}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the resolver: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reaps it, if the caller lives longer
	id, err := process.Of(cmd.Process.Pid)
	if err == nil {
		err = note(id)
	}
	if err == nil {
		_, err = opener.Write([]byte{1})
	}
	if err != nil {
		return fmt.Errorf("start the resolver: %w", err)
	}
	return nil
}

// TakeOver does not return in a process that [Start] has started. Each program that starts a
// resolver calls TakeOver before it does anything else.
func TakeOver() {
	if len(os.Args) != 3 || os.Args[1] != argument || os.Getenv(variable) == "" {
		return
	}
	if err := run(os.Args[2]); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the life of the process.
func run(config string) error {
	if _, err := io.ReadFull(os.NewFile(gateFile, "gate"), make([]byte, 1)); err != nil {
		return err
	}
	if err := drop(); err != nil {
		return err
	}
	packets, err := net.FilePacketConn(os.NewFile(packetFile, "udp"))
	if err != nil {
		return err
	}
	streams, err := net.FileListener(os.NewFile(streamFile, "tcp"))
	if err != nil {
		return err
	}
	udp, isUDP := packets.(*net.UDPConn)
	tcp, isTCP := streams.(*net.TCPListener)
	if !isUDP || !isTCP {
		return errors.New("the sockets are not of UDP and TCP")
	}
	return forwarder{hostServers(config)}.serve(udp, tcp)
}

// drop drops all privileges, for ever.
func drop() error {
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(nobody, nobody, nobody); err != nil {
		return err
	}
	if err := syscall.Setresuid(nobody, nobody, nobody); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
