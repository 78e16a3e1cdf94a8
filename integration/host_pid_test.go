package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// hostProcess starts a process of a user of the host.
func hostProcess(t *testing.T, uid uint32) int {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1041")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return start(t, cmd).cmd.Process.Pid
}

// first is the number of the first process of a detached command.
func (s *sandboxes) first(name, exec string) int {
	s.t.Helper()
	var pids []int
	eventually(s.t, "the command of "+name+" runs", func() bool {
		pids = s.execs(name)[exec].Pids
		return len(pids) > 0
	})
	return pids[0]
}

// processState is the letter of a process's state, or "" if there is no such process.
func processState(pid int) string {
	_, after, _ := strings.Cut(processStat(pid), ") ")
	return after[:min(1, len(after))]
}

// TestAttackFromTheHostsPIDNamespace tries to read, trace and kill processes of the host, of
// other sandboxes, of another user inside, and the sandbox's own first process.
func TestAttackFromTheHostsPIDNamespace(t *testing.T) {
	s := newSandboxes(t)
	victims := map[string]int{"root": hostProcess(t, 0), "a user": hostProcess(t, 1000)}
	for name, kind := range map[string]string{"shared": "host", "private": "private"} {
		s.up(name, "--pid", kind)
		victims[name+"'s first process"] = s.pid(name)
		victims[name+"'s command"] = s.first(name, s.detached(name, "sleep 1042"))
	}
	for _, profile := range []string{"default", "debug"} {
		for _, user := range []string{"0", "1000"} {
			t.Run(profile+" "+user, func(t *testing.T) {
				box := "attacker-" + profile + "-" + user
				s.up(box, "--pid", "host", "--rootfs", sharedAttackRoot(t), "--seccomp", profile)
				all := map[string]int{"its own first process": s.pid(box)}
				got := s.exec("--detach", "--user", "2000", box, "sleep", "1043")
				all["another user's"] = s.first(box, strings.TrimSpace(got.stdout))
				own := strconv.Itoa(s.first(box, strings.TrimSpace(s.exec("--detach", "--user", user, box, "sleep", "1044").stdout)))
				args := []string{"--user", user, box, "attack", "reach"}
				for name, pid := range victims {
					all[name] = pid
				}
				for _, pid := range all {
					args = append(args, strconv.Itoa(pid))
				}
				if got := s.exec(args...); got != (result{}) {
					t.Errorf("of %v it reached %+v", all, got)
				}
				// A process of the same user is within reach, so the attack works.
				got = s.exec("--user", user, box, "attack", "reach", own)
				for _, want := range []string{"opened environ of", "followed root of", "read limits of", "set priority of", "stopped", "killed"} {
					if !strings.Contains(got.stdout, want+" "+own+"\n") {
						t.Errorf("the attack on a process of the same user lacks %q: %+v", want, got)
					}
				}
				if profile == "debug" && !strings.Contains(got.stdout, "traced "+own+"\n") {
					t.Errorf("the attack does not trace a process of the same user: %+v", got)
				}
				own = strconv.Itoa(s.first(box, strings.TrimSpace(s.exec("--detach", "--user", user, box, "sleep", "1045").stdout)))
				if got := s.exec("--user", user, box, "attack", "kill-all"); got.stdout != "killed some\n" {
					t.Errorf("kill -1: %+v", got)
				}
				eventually(t, "kill -1 has killed a process of the same user", func() bool { return !exists("/proc/" + own) })
				for name, pid := range all {
					if state := processState(pid); state != "S" && state != "R" {
						t.Errorf("%s, %d, is %q", name, pid, state)
					}
				}
			})
		}
	}
}

// TestHostPIDShowsOnlyTheUsersProcesses in /proc, whose other parts are as in each sandbox.
func TestHostPIDShowsOnlyTheUsersProcesses(t *testing.T) {
	s := newSandboxes(t)
	host := mountOptions(t, "/proc")
	for _, user := range []string{"0", "1000"} {
		o := s.json("--pid", "host", "--user", user, "--", "sh", "-c", "echo $$; cd /proc; exec ls -d [0-9]*")
		self, shown, _ := strings.Cut(strings.TrimSpace(o.Stdout), "\n")
		if o.Isolation != "shared-pid" || shown != self {
			t.Errorf("user %s: isolation %q, process %s, shown %q", user, o.Isolation, self, shown)
		}
		if got := s.do("--pid", "host", "--user", user, "--rootfs", sharedAttackRoot(t), "--", "sh", "-c", throughMasks); got != (result{}) {
			t.Errorf("user %s, through masks: %+v", user, got)
		}
	}
	if o := s.json("--", "true"); o.Isolation != "full" {
		t.Errorf("without --pid: isolation %q", o.Isolation)
	}
	if now := mountOptions(t, "/proc"); now != host {
		t.Errorf("the host's /proc was %q and is %q", host, now)
	}
}

// mountOptions is the line of the host's mount at a place, without its numbers.
func mountOptions(t testing.TB, at string) (options string) {
	t.Helper()
	for line := range strings.Lines(content(t, "/proc/self/mountinfo")) {
		if f := strings.Fields(line); f[4] == at {
			options = strings.Join(f[4:], " ")
		}
	}
	return options
}

// leaveDaemon leaves a process in a session of its own, a child of no command, and prints its number.
const leaveDaemon = `setsid sh -c 'sh -c "echo \$\$ >/tmp/daemon; exec sleep 1046" >/dev/null 2>&1 &' </dev/null
until test -s /tmp/daemon; do sleep 0.02; done; cat /tmp/daemon; `

// daemonOf starts a sandbox and leaves a daemon in it.
func (s *sandboxes) daemonOf(name string, flags ...string) (pid int) {
	s.t.Helper()
	s.up(name, append([]string{"--pid", "host"}, flags...)...)
	s.detached(name, leaveDaemon+"sleep 1047")
	eventually(s.t, "the daemon runs", func() bool {
		pid, _ = strconv.Atoi(strings.TrimSpace(s.exec(name, "cat", "/tmp/daemon").stdout))
		return pid > 0
	})
	return pid
}

// gone checks that a process has ended. Its parent may not have reaped it yet.
func gone(t testing.TB, pid int) {
	t.Helper()
	if alive(pid) {
		t.Errorf("process %d is left", pid)
	}
}

func TestHostPIDSandboxEndsWithAllProcesses(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, s *sandboxes){
		"a command's end": func(t *testing.T, s *sandboxes) {
			s.up("box", "--pid", "host")
			pid, _ := strconv.Atoi(strings.TrimSpace(s.sh("box", leaveDaemon)))
			gone(t, pid)
		},
		"the end of do": func(t *testing.T, s *sandboxes) {
			pid, _ := strconv.Atoi(strings.TrimSpace(s.do("--pid", "host", "--", "sh", "-c", leaveDaemon).stdout))
			gone(t, pid)
		},
		"a timeout": func(t *testing.T, s *sandboxes) {
			inLongerTime(t, 1e9, func(timeout string) bool {
				o := s.json("--pid", "host", "--timeout", timeout, "--", "sh", "-c", leaveDaemon+"sleep 1048")
				pid, _ := strconv.Atoi(strings.TrimSpace(o.Stdout))
				if pid == 0 {
					return false
				}
				gone(t, pid)
				return o.Status == "timed_out"
			})
		},
		"down": func(t *testing.T, s *sandboxes) {
			pid := s.daemonOf("box")
			if parent := parentOf(pid); parent != s.pid("box") {
				t.Errorf("the orphan's parent is %d, and the first process is %d", parent, s.pid("box"))
			}
			s.downIfUp("box")
			gone(t, pid)
		},
		"down after signals of the host's root": func(t *testing.T, s *sandboxes) {
			pid, first := s.daemonOf("box"), 0
			for _, signal := range []string{"HUP", "TERM", "USR1", "TSTP", "34"} {
				first = s.pid("box")
				if got := s.oci("kill", "box", signal); got.code != 0 {
					t.Errorf("kill %s: %+v", signal, got)
				}
			}
			if got := s.sh("box", "echo up"); got != "up\n" || s.pid("box") != first {
				t.Errorf("after the signals: %q", got)
			}
			s.downIfUp("box")
			gone(t, pid)
		},
		"down of a paused one": func(t *testing.T, s *sandboxes) {
			pid := s.daemonOf("box")
			for _, command := range []string{"pause", "resume", "pause"} {
				if got := s.oci(command, "box"); got.code != 0 {
					t.Errorf("%s: %+v", command, got)
				}
			}
			s.downIfUp("box")
			gone(t, pid)
		},
		"prune after its first process was killed": func(t *testing.T, s *sandboxes) {
			pid := s.daemonOf("box")
			killAndWait(t, s.pid("box"))
			if processState(pid) == "" {
				t.Error("the daemon ended with the first process: the test shows nothing")
			}
			if got := run(t, s.command("prune")); got.code != 0 {
				t.Errorf("prune: %+v", got)
			}
			gone(t, pid)
		},
		"up after its first process was killed": func(t *testing.T, s *sandboxes) {
			pid := s.daemonOf("box")
			killAndWait(t, s.pid("box"))
			s.up("box", "--pid", "host")
			gone(t, pid)
		},
		"a killed do": func(t *testing.T, s *sandboxes) {
			pid := killDo(t, s, false)
			eventually(t, "the daemon has ended", func() bool { return processState(pid) == "" })
		},
		"prune after do and its first process were killed": func(t *testing.T, s *sandboxes) {
			pid := killDo(t, s, true)
			if processState(pid) == "" {
				t.Error("the daemon ended with the first process: the test shows nothing")
			}
			if got := run(t, s.command("prune")); got.code != 0 {
				t.Errorf("prune: %+v", got)
			}
			gone(t, pid)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandboxes(t)
			t.Cleanup(func() { run(t, s.command("prune")) }) // of the killed ones
			test(t, s)
		})
	}
}

// killDo kills a do that has left a daemon, and with first also the sandbox's first process
// before that. It returns the daemon.
func killDo(t *testing.T, s *sandboxes, first bool) (daemonPID int) {
	t.Helper()
	p := start(t, s.command("do", "--pid", "host", "--", "sh", "-c", leaveDaemon+"sleep 1049"))
	eventually(t, "the daemon runs", func() bool {
		daemonPID, _ = strconv.Atoi(strings.TrimSpace(p.stdout()))
		return daemonPID > 0
	})
	kill(t, p.cmd.Process.Pid, syscall.SIGSTOP)
	if first {
		kill(t, parentOf(daemonPID), syscall.SIGKILL)
	}
	p.kill()
	return daemonPID
}

// The sandbox's user would be a user of the host, and could kill that user's processes.
func TestHostPIDRefusesAUserOfTheHost(t *testing.T) {
	need(t, world())
	s := newSandboxes(t)
	dir := t.TempDir()
	for _, sub := range []string{"lower", "data", "work", "there"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own(t, dir+"/data", 4242)
	mountUntilEnd(t, "overlay", dir+"/there", "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/data,workdir=%[1]s/work", dir))
	own(t, dir+"/there", 4242)
	if got := s.do("--workspace", dir+"/there", "--", "true"); got.code != 0 {
		t.Fatalf("without --pid: %+v", got)
	}
	if got := s.do("--pid", "host", "--workspace", dir+"/there", "--", "true"); got.code != 125 || !strings.Contains(got.stderr, "user 4242 of the host") {
		t.Errorf("%+v", got)
	}
}
