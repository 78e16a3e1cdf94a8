package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// withoutPIDNamespace has the container share the world's processes.
func withoutPIDNamespace(s *specs.Spec) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
}

// orphaning leaves a process "sleep 1000" behind whose parent has ended.
var orphaning = []string{"sh", "-c", "sh -c 'sleep 1000 & exit'; echo ready; exec sleep 2000"}

// processesOf lists the processes in the cgroup that pid is in.
func processesOf(t testing.TB, pid int) []int {
	t.Helper()
	var pids []int
	for line := range strings.Lines(content(t, filepath.Join(groupByController(t, pid, "freezer"), "cgroup.procs"))) {
		p, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, p)
	}
	return pids
}

// orphanOf waits for the process that orphaning leaves.
func orphanOf(t testing.TB, pid int) (orphan int) {
	t.Helper()
	eventually(t, "a process is left", func() bool {
		for _, p := range processesOf(t, pid) {
			command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
			if err == nil && string(command) == "sleep\x001000\x00" && parentOf(p) != 0 && !inGroup(t, pid, parentOf(p)) {
				orphan = p
			}
		}
		return orphan != 0
	})
	return orphan
}

func inGroup(t testing.TB, pid, other int) bool {
	return slices.Contains(processesOf(t, pid), other)
}

func parentOf(pid int) int {
	_, after, ok := strings.Cut(processStat(pid), ") ")
	if f := strings.Fields(after); ok && len(f) > 1 {
		parent, err := strconv.Atoi(f[1])
		if err == nil {
			return parent
		}
	}
	return 0
}

func TestKillFlagsAndSignalsAreRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sh", "-c", "trap 'exit 3' TERM; trap 'exit 4' HUP; trap 'exit 5' USR1; trap : WINCH; echo ready; while :; do sleep 0.01; done"})
		for _, row := range []struct {
			flags  int // how many of args come before the id
			args   []string
			status int
		}{
			{0, nil, 3}, {0, []string{""}, 3}, {0, []string{"15"}, 3}, {0, []string{"TERM"}, 3}, {0, []string{"SIGTERM"}, 3}, {0, []string{"sigterm"}, 3},
			{0, []string{"1"}, 4}, {0, []string{"hup"}, 4}, {0, []string{"Usr1"}, 5}, {0, []string{"9"}, 137}, {0, []string{"SIGKILL"}, 137},
			{1, []string{"--all", "TERM"}, 3}, {1, []string{"-a", "KILL"}, 137},
		} {
			p := start(t, r.command("run", "--bundle", b.dir, "c"))
			p.prints("ready\n")
			r.run("kill", "c", "0")
			r.run("kill", "c", "WINCH")
			args := slices.Insert(slices.Clone(row.args), row.flags, "c")
			r.run(append([]string{"kill"}, args...)...)
			if got := p.wait(); got.code != row.status {
				t.Errorf("%q: status %d, want %d", row.args, got.code, row.status)
			}
		}
	})
}

func TestKillRefusesAsRunc(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pid := r.started(newBundle(t, []string{"sleep", "1000"}))
		for _, row := range []struct {
			says string
			args []string
		}{
			{`unknown signal \\?"NONSENSE`, []string{"c", "NONSENSE"}},
			{`unknown signal \\?"9\.5`, []string{"c", "9.5"}},
			{`unknown signal \\?"65|invalid argument`, []string{"c", "65"}}, // ours does not ask the kernel
			{`unknown signal \\?"-1|invalid argument`, []string{"c", "-1"}},
			{"container does not exist", []string{"nobody"}},
			{"container does not exist", []string{"nobody", "NONSENSE"}},
			{"requires a minimum of 1 argument", nil},
			{"requires a maximum of 2 argument", []string{"c", "9", "9"}},
		} {
			r.shows(result{code: 1, stderr: row.says}, append([]string{"kill"}, row.args...)...)
		}
		if !alive(pid) {
			t.Error("a refused signal ended the container")
		}
		r.run("kill", "c", "KILL")
		r.waitUntil("c", "stopped")
		r.shows(result{code: 1, stderr: "container not running"}, "kill", "c", "KILL")
		r.shows(result{}, "kill", "--all", "c", "KILL")
		r.shows(result{}, "kill", "-a", "c")
	})
}

func TestKillOfACreatedContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.create(newBundle(t, []string{"sleep", "1000"}), "c")
		r.run("kill", "c", "KILL")
		r.waitUntil("c", "stopped")
		r.shows(result{code: 1, stderr: "cannot start a container that has stopped"}, "start", "c")
		r.run("delete", "c")
	})
}

// SIGKILL reaches all processes, before and after the first one's end; other
// signals only the first.
func TestKillWithoutAPIDNamespace(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, orphaning, withoutPIDNamespace)
		pid := r.started(b)
		orphan := orphanOf(t, pid)
		r.run("kill", "c", "TERM")
		r.waitUntil("c", "stopped")
		if !alive(orphan) {
			t.Error("SIGTERM reached another process than the first")
		}
		r.shows(result{code: 1, stderr: "container not running"}, "kill", "c", "TERM")
		r.run("kill", "c", "KILL")
		eventually(t, "the process left is killed", func() bool { return !alive(orphan) })
		r.run("delete", "c")

		pid = r.started(b)
		orphan = orphanOf(t, pid)
		r.run("kill", "c", "9")
		eventually(t, "all are killed", func() bool { return !alive(orphan) && !alive(pid) })
		r.run("delete", "c")
	})
}

// A container that was paused by another program can be killed, also by the
// delete that follows.
func TestKillOfAPausedContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pid := r.started(newBundle(t, []string{"sleep", "1000"}))
		freeze(t, pid)
		r.shows(result{code: 1, stderr: "cannot delete container c that is not stopped: paused"}, "delete", "c")
		r.shows(result{code: 1, stderr: "cannot start a container in the paused state"}, "start", "c")
		r.run("kill", "c", "KILL")
		r.waitUntil("c", "stopped")
		r.run("delete", "c")
	})
}

func TestDeleteInEachState(t *testing.T) {
	states := map[string]struct {
		reach func(*testing.T, *ociRuntime)
		plain result
	}{
		"unknown": {func(*testing.T, *ociRuntime) {}, result{code: 1, stderr: "container does not exist"}},
		"created": {func(t *testing.T, r *ociRuntime) { r.create(newBundle(t, []string{"sleep", "1000"}), "c") }, result{}},
		"running": {func(t *testing.T, r *ociRuntime) { r.started(newBundle(t, []string{"sleep", "1000"})) },
			result{code: 1, stderr: "cannot delete container c that is not stopped: running"}},
		"paused": {func(t *testing.T, r *ociRuntime) { freeze(t, r.started(newBundle(t, []string{"sleep", "1000"}))) },
			result{code: 1, stderr: "cannot delete container c that is not stopped: paused"}},
		"stopped": {func(t *testing.T, r *ociRuntime) { stopped(r, newBundle(t, []string{"sleep", "1000"})) }, result{}},
		"stopped with a process left": {func(t *testing.T, r *ociRuntime) {
			pid := r.started(newBundle(t, orphaning, withoutPIDNamespace))
			orphanOf(t, pid)
			r.run("kill", "c", "TERM")
			r.waitUntil("c", "stopped")
		}, result{}},
	}
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			likeRunc(t, func(t *testing.T, r *ociRuntime) {
				state.reach(t, r)
				r.shows(state.plain, "delete", "c")
				if state.plain.code != 0 {
					r.shows(result{}, "delete", "-f", "c")
				} else {
					state.reach(t, r)
					r.shows(result{}, "delete", "--force", "c")
				}
				if ids := r.ids(); len(ids) != 0 {
					t.Errorf("left: %q", ids)
				}
			})
		})
	}
}

// --force says that an id needs not be there. It does not say that the rest of a container could be removed.
func TestAForcedDeleteThatRemovesNothingFails(t *testing.T) {
	r := ours(t)
	others := filepath.Join(r.root, "c", "others")
	if err := os.MkdirAll(others, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := run(t, r.command("delete", "--force", "c")); got.code != 1 || !strings.Contains(got.stderr, "c holds others, which is no container's") {
		t.Errorf("%+v", got)
	}
	if err := os.Remove(others); err != nil {
		t.Fatal(err)
	}
	if got := run(t, r.command("delete", "--force", "c")); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// A killed process that waits for the disk ends only when that has answered.
func TestDeleteWaitsForTheDisk(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	dir := t.TempDir()
	var device specs.LinuxThrottleDevice
	device.Major, device.Minor = v2disk(t, dir)
	device.Rate = 512 << 10
	const writing = "while :; do dd if=/dev/zero of=/tmp/file bs=1M count=100 oflag=direct; done & exec sleep 1000"
	b := newBundle(t, []string{"sh", "-c", writing}, withoutPIDNamespace, func(s *specs.Spec) {
		s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{ThrottleWriteBpsDevice: []specs.LinuxThrottleDevice{device}}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp", Source: dir, Options: []string{"rbind", "rw"}})
	})
	r.started(b)
	file := filepath.Join(dir, "file")
	eventually(t, "it waits to write more", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	r.run("delete", "--force", "c")
}

func TestRunKeepsWhatItIsToldTo(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sh", "-c", "exit 7"})
		r.shows(result{code: 7}, "run", "--bundle", b.dir, "c")
		r.shows(result{code: 1, stderr: "container does not exist"}, "state", "c")
		r.shows(result{code: 7}, "run", "--keep", "-b", b.dir, "c")
		if got := r.state("c").Status; got != "stopped" {
			t.Errorf("status %s", got)
		}
		r.shows(result{code: 1, stderr: "NAME run failed: container with given ID already exists"}, "run", "-b", b.dir, "c")
		r.run("delete", "c")
	})
}

// The runtime adopts what the container orphans, unless told not to: who
// started the runtime and is the subreaper gets it then.
func TestRunIsTheSubreaperUnlessToldNotTo(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, orphaning, withoutPIDNamespace)
		for _, flags := range [][]string{nil, {"--no-subreaper"}} {
			pidFile := filepath.Join(t.TempDir(), "pid")
			p := start(t, r.command(append(append([]string{"run", "--bundle", b.dir, "--pid-file", pidFile}, flags...), "c")...))
			p.prints("ready\n")
			pid := pidIn(t, pidFile)
			if adopted := parentOf(orphanOf(t, pid)) == p.cmd.Process.Pid; adopted != (flags == nil) {
				t.Errorf("%v: adopted: %v", flags, adopted)
			}
			r.run("kill", "c", "KILL")
			if got := p.wait(); got.code != 137 {
				t.Errorf("%v: %+v", flags, got)
			}
		}
	})
}

// pidIn waits for a pid file: in the foreground it comes after the program's start.
func pidIn(t testing.TB, file string) (pid int) {
	t.Helper()
	eventually(t, file+" is there", func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
	pid, err := strconv.Atoi(content(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestCreateAndRunHandOverAPidfd(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sleep", "1000"})
		socket := listenForFDs(t)
		pid := r.create(b, "c", "--pidfd-socket", socket.path)
		if got := socket.receivePidfd(t); got != pid {
			t.Errorf("create: pidfd of %d, pid %d", got, pid)
		}
		r.run("delete", "c")
		r.run("run", "--detach", "--bundle", b.dir, "--pidfd-socket", socket.path, "c")
		if got, want := socket.receivePidfd(t), r.state("c").PID; got != want {
			t.Errorf("run: pidfd of %d, pid %d", got, want)
		}
		r.run("delete", "--force", "c")
		r.shows(result{code: 1, stderr: "/nowhere"}, "create", "--bundle", b.dir, "--pidfd-socket", "/nowhere", "c")
	})
}

// The container's processes get a session keyring of their own, without which
// they would see the keys of who started the runtime.
func TestNoNewKeyringKeepsTheCallers(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"grep", "-oE", "_ses[.][^:]*", "/proc/keys"}, func(s *specs.Spec) { s.Linux.MaskedPaths = nil })
		for id, flags := range map[string][]string{"own-" + filepath.Base(r.program): nil, "callers-" + filepath.Base(r.program): {"--no-new-keyring"}} {
			got := run(t, r.command(append(append([]string{"run", "--bundle", b.dir}, flags...), id)...))
			if own := strings.Contains(got.stdout, "_ses."+id+"\n"); own != (flags == nil) {
				t.Errorf("%v: sees the keyrings %q", flags, got.stdout)
			}
		}
	})
}
