package integration

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// activated calls the runtime as a service manager would that hands it the
// files as sd_listen_fds(3) describes. LISTEN_PID can be known only to the
// process itself.
func (r *ociRuntime) activated(files []*os.File, listen string, args ...string) *exec.Cmd {
	script := "LISTEN_PID=${PID_OF_ANOTHER:-$$} LISTEN_FDS=" + listen + ` LISTEN_FDNAMES=a:b exec "$@"`
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, r.command(args...).Args...)...)
	cmd.ExtraFiles = files
	return cmd
}

func TestListenFDsReachTheContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		// 3 and more, as far as there are any; one beyond is ls's own.
		const show = "echo $(env | grep LISTEN | sort) fds $(ls /proc/self/fd); for fd in 3 4; do test ! -e /proc/self/fd/$fd || cat /dev/fd/$fd; done"
		b := newBundle(t, []string{"sh", "-c", show})
		for _, row := range []struct {
			listen, pid string
			flags       []string
			want        string
		}{
			{"1", "", nil, "LISTEN_FDS=1 LISTEN_PID=1 fds 0 1 2 3 4\nfirst\n"},
			{"2", "", nil, "LISTEN_FDS=2 LISTEN_PID=1 fds 0 1 2 3 4 5\nfirst\nsecond\n"},
			{"1", "", []string{"--preserve-fds=1"}, "LISTEN_FDS=1 LISTEN_PID=1 fds 0 1 2 3 4 5\nfirst\nsecond\n"},
			{"1", "1", nil, "fds 0 1 2 3\n"}, // meant for another process
			{"x", "", nil, "fds 0 1 2 3\n"},
			{"0", "", []string{"--preserve-fds=1"}, "fds 0 1 2 3 4\nfirst\n"},
		} {
			args := append(append([]string{"run", "--bundle", b.dir}, row.flags...), "c")
			cmd := r.activated([]*os.File{filled(t, "first"), filled(t, "second")}, row.listen, args...)
			cmd.Env = append(os.Environ(), "PID_OF_ANOTHER="+row.pid)
			r.compare(run(t, cmd), result{stdout: row.want}, append([]string{row.listen, row.pid}, args...))
		}
	})
}

// A service manager's files are the container's first process's, no exec's.
func TestListenFDsAreNotForExec(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		cmd := r.activated([]*os.File{filled(t, "first")}, "1", "exec", "c", "sh", "-c", "echo $LISTEN_FDS fds $(ls /proc/self/fd)")
		r.compare(run(t, cmd), result{stdout: "fds 0 1 2 3\n"}, cmd.Args)
	})
}

// With --no-pivot the old root stays below the container's. That is what makes
// it the weaker wall: who may undo mounts there uncovers it.
func TestNoPivotKeepsTheOldRootBelow(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		root := newBusyboxRoot(t)
		b := newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) { s.Root.Path = root })
		for _, flags := range [][]string{nil, {"--no-pivot"}} {
			pid := r.create(b, "c", flags...)
			r.run("start", "c")
			r.awaitProgram(pid)
			if got := r.run("exec", "c", "ls", "/bin/busybox").stdout; got != "/bin/busybox\n" {
				t.Errorf("%v: the root holds %q", flags, got)
			}
			// Who joins a mount namespace gets its topmost root.
			inside := func(args ...string) result {
				return run(t, exec.Command(peer("bin/busybox"), append([]string{"nsenter", "-m", "-t", strconv.Itoa(pid)}, args...)...))
			}
			inside("/bin/umount", "-l", "/")
			if got := inside("/bin/ls", "-d", root); (got.code == 0) != (flags != nil) {
				t.Errorf("%v: in the old root: %+v", flags, got)
			}
			r.run("delete", "--force", "c")
		}
	})
}
