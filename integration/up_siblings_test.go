package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Two sandboxes have nothing of each other, whoever of them asks: neither
// processes nor files nor sockets nor network. Each attempt works from within
// the same sandbox, or it would prove nothing.
func TestSandboxesReachNothingOfEachOther(t *testing.T) {
	s := newSandboxes(t)
	perl := hostTool(t, "perl")
	attempts := map[string]string{
		"see its process":         `grep -ls '[c]anary' /proc/[0-9]*/cmdline`,
		"read its environment":    `grep -ls 'CANARY' /proc/[0-9]*/environ | grep .`,
		"read its /tmp":           `cat /tmp/canary`,
		"read its workspace":      `cat /workspace/canary`,
		"read its home":           `cat /home/sandbox/canary`,
		"read its /dev/shm":       `cat /dev/shm/canary`,
		"connect by TCP":          perl + ` -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerAddr => "127.0.0.1:7777")'`,
		"connect to a socket":     perl + ` -MIO::Socket::UNIX -e 'exit !IO::Socket::UNIX->new("/tmp/sock")'`,
		"connect, abstractly":     perl + ` -MIO::Socket::UNIX -e 'exit !IO::Socket::UNIX->new("\0canary")'`,
		"see its shared memory":   `grep -w 4660 /proc/sysvipc/shm`,
		"end its processes":       `kill -0 $(cat /tmp/pid)`,
		"see what is listened to": `grep -i 'canary' /proc/net/unix`,
		"see its TCP port":        `grep -i ':1E61' /proc/net/tcp`,
	}
	serve := perl + ` -MIO::Socket::INET -MIO::Socket::UNIX -e '` +
		`$ENV{X} = 1; $0 = "canary"; shmget(4660, 4096, 01666) // die $!; ` +
		`$t = IO::Socket::INET->new(LocalAddr => "127.0.0.1:7777", Listen => 5) or die $!; ` +
		`$u = IO::Socket::UNIX->new(Local => "/tmp/sock", Listen => 5) or die $!; ` +
		`$a = IO::Socket::UNIX->new(Local => "\0canary", Listen => 5) or die $!; ` +
		`open(F, ">", "/tmp/pid"); print F $$; close F; open(F, ">", "/tmp/ready"); sleep 1000'`
	dirs := map[string]string{"first": t.TempDir(), "second": t.TempDir()}
	for _, pair := range [][2]string{{"first", "second"}, {"second", "first"}} {
		owner, other := pair[0], pair[1]
		for _, name := range pair {
			s.up(name, "--workspace", dirs[name])
		}
		s.sh(owner, "for d in /tmp /workspace /home/sandbox /dev/shm; do echo secret > $d/canary; done")
		s.exec("--detach", "--env", "CANARY=x", owner, "sh", "-c", serve)
		eventually(t, "it serves", func() bool { return s.exec(owner, "test", "-e", "/tmp/ready").code == 0 })
		// The number of a process means something else elsewhere: the biggest.
		pid := s.sh(owner, "cat /tmp/pid")
		s.sh(other, "echo "+pid+"00 > /tmp/pid")
		for what, attempt := range attempts {
			for _, user := range []string{"1000", "0"} {
				if got := s.exec("--user", user, other, "sh", "-c", attempt); got.code == 0 {
					t.Errorf("%s as %s: %s: %+v", other, user, what, got)
				}
			}
			if got := s.exec(owner, "sh", "-c", attempt); got.code != 0 {
				t.Errorf("%s itself: %s: %+v", owner, what, got)
			}
		}
		if got := s.sh(owner, "cat /tmp/canary /workspace/canary"); got != "secret\nsecret\n" {
			t.Errorf("afterwards: %q", got)
		}
		for _, name := range pair {
			s.oci("down", name)
		}
		remove(t, filepath.Join(dirs[owner], "canary"))
	}
}

// Nor by what the host has of them: the ids, and where they keep their state.
func TestSandboxesShareNoIDs(t *testing.T) {
	s := newSandboxes(t)
	owners := map[string]string{}
	for i := range 3 {
		name := fmt.Sprint("box-", i)
		s.up(name)
		for _, e := range s.execsOf(name, "sleep", "1024") {
			uid, _, _ := strings.Cut(strings.TrimSpace(strings.SplitAfter(content(t, fmt.Sprintf("/proc/%d/status", e)), "Uid:")[1]), "\t")
			if other := owners[uid]; other != "" {
				t.Errorf("%s and %s run as the same user %s of the host", name, other, uid)
			}
			owners[uid] = name
		}
		got := s.exec(name, "ls", s.root, "/run/sandbox-runtime", "/var/lib/sandbox-runtime")
		if got.code == 0 || got.stdout != "" {
			t.Errorf("%s sees %+v", name, got)
		}
	}
	if len(owners) != 3 {
		t.Errorf("users: %v", owners)
	}
}

// execsOf starts a command that stays behind, and returns its processes.
func (s *sandboxes) execsOf(name string, args ...string) []int {
	s.t.Helper()
	id := strings.TrimSpace(s.exec(append([]string{"--detach", name}, args...)...).stdout)
	return s.execs(name)[id].Pids
}
