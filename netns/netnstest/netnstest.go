// Package netnstest has helpers of tests with network namespaces.
package netnstest

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// New is a network namespace that lasts as long as the test.
func New(t testing.TB) *os.File {
	t.Helper()
	f, err := netns.Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Command is the command in the namespace, which is its descriptor 3. The others follow.
func Command(cmd *exec.Cmd, namespace *os.File, others ...*os.File) *exec.Cmd {
	inside := exec.Command("nsenter", append([]string{"--net=/proc/self/fd/3"}, cmd.Args...)...)
	inside.ExtraFiles = append([]*os.File{namespace}, others...)
	return inside
}

// Shell runs a line of shell in the namespace, and returns the output.
func Shell(t testing.TB, namespace *os.File, line string, others ...*os.File) string {
	t.Helper()
	out, err := Command(exec.Command("sh", "-c", line), namespace, others...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Listen listens for TCP in the namespace.
func Listen(t testing.TB, namespace *os.File, address string) (l net.Listener) {
	t.Helper()
	err := netns.Do(namespace, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
