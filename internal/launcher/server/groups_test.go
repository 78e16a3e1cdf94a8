package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A peer's groups are those of the process that connected, however many.
func TestGroupsOfAPeer(t *testing.T) {
	testhost.NeedRoot(t, "to have groups")
	for _, count := range []int{0, 3, 64, 65, 500} {
		var have []int
		want := []uint32{uint32(os.Getegid())}
		for i := range count {
			have = append(have, 2000+i)
			want = append(want, uint32(2000+i))
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		connected := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the groups are the thread's
			err := unix.Setgroups(have)
			if err == nil {
				err = connectRaw(l.Addr().String())
			}
			connected <- err
		}()
		conn, err := l.AcceptUnix()
		if err := errors.Join(err, <-connected); err != nil {
			t.Fatal(err)
		}
		uid, groups, err := peerOf(conn)
		if err != nil || uid != 0 || !slices.Equal(groups, want) {
			t.Errorf("%d groups: uid %d, %v, %v", count, uid, groups, err)
		}
		conn.Close()
		l.Close()
	}
}

func connectRaw(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}
