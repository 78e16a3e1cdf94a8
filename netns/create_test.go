package netns

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func needRoot(t *testing.T) {
	t.Helper()
	testhost.NeedRoot(t, "network namespaces are made")
}

func create(t *testing.T) *os.File {
	t.Helper()
	needRoot(t)
	f, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// nsenter runs a line of shell in the namespace.
func nsenter(t *testing.T, namespace *os.File, line string) string {
	t.Helper()
	cmd := exec.Command("nsenter", "--net=/proc/self/fd/3", "sh", "-c", line)
	cmd.ExtraFiles = []*os.File{namespace}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestOnlyALoopbackDeviceIsThereAndUp(t *testing.T) {
	f := create(t)
	if got := nsenter(t, f, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"); got != "lo" {
		t.Errorf("devices %q", got)
	}
	// Local addresses are there once the device is up.
	if got := nsenter(t, f, "cat /proc/net/fib_trie"); !strings.Contains(got, "127.0.0.1") {
		t.Errorf("no address on it: %q", got)
	}
	if got := nsenter(t, f, "tail -n +2 /proc/net/route"); got != "" {
		t.Errorf("a route: %q", got)
	}
}

// What sockets keep of options is charged to nobody.
func TestOptionsOfSocketsAreBounded(t *testing.T) {
	const file = "/proc/sys/net/core/optmem_max"
	if reason := testhost.LinuxBefore(t, 6, 8); reason != "" {
		t.Skip(reason)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	namespace := create(t)
	inside, err := onThread(func() (*os.File, error) {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, err
		}
		return os.Open(file)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if text, err := io.ReadAll(inside); err != nil || string(text) != maxOptionMemory+"\n" {
		t.Errorf("inside it is %q, %v", text, err)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("on the host it was %q and is %q, %v", before, after, err)
	}
}

// A program without capabilities can listen on a low port, such as that of a web server.
func TestLowPortsNeedNoCapability(t *testing.T) {
	namespace := create(t)
	const file = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
	inside, err := onThread(func() (*os.File, error) {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, err
		}
		return os.Open(file)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if text, err := io.ReadAll(inside); err != nil || string(text) != "0\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestEachIsAnother(t *testing.T) {
	inode := func(f *os.File) uint64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	a, b := create(t), create(t)
	here, err := currentNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if inode(a) == inode(b) || inode(a) == inode(here) {
		t.Errorf("the same: %d, %d, here %d", inode(a), inode(b), inode(here))
	}
}

func TestNobodyElseIsMoved(t *testing.T) {
	needRoot(t)
	want, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 4 {
				f, err := Create()
				if err != nil {
					t.Error(err)
					return
				}
				f.Close()
			}
		})
	}
	group.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		got, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
		if err == nil && got != want {
			t.Errorf("thread %s is in %s", task.Name(), got)
		}
	}
	if _, err := net.Interfaces(); err != nil {
		t.Error(err)
	}
}
