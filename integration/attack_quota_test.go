package integration

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

//go:embed testdata/quota.py
var quotaScript string

// quotaScript tries a handful of each: many filters stop a kernel.
func TestAttackOnSharedQuotas(t *testing.T) {
	s := newSandboxes(t)
	python := hostTool(t, "python3")
	const refused = "aio ENOSYS\nlease EINVAL\nnotify EINVAL\n" +
		"socket filter ENOPROTOOPT\nsocket filter ENOPROTOOPT\nsocket filter ENOPROTOOPT\n" +
		"group filter ENOPROTOOPT\nsocket program ENOPROTOOPT\ngroup program ENOPROTOOPT\nbuffer taken\n" +
		"filter EINVAL\nfilter by prctl EINVAL\n"
	for _, profile := range []string{"default", "strict", "debug"} {

		got := s.do("--workspace", workspace(t), "--seccomp", profile, "--", "python3", "-c", quotaScript, "/workspace")
		if got.code != 0 || got.stdout != refused {
			t.Errorf("--seccomp %s: %+v", profile, got)
		}
	}
	bare := run(t, exec.Command(python, "-c", quotaScript, t.TempDir()))
	for _, want := range []string{"lease taken\n", "socket filter taken\n", "filter taken\n", "filter by prctl taken\n"} {
		if !strings.Contains(bare.stdout, want) {
			t.Errorf("on the host it should say %q: %+v", want, bare)
		}
	}
}

// Who allows seccomp in a profile has commands load filters.
func TestAProfileOfOnesOwnGivesFilters(t *testing.T) {
	s := newSandboxes(t)
	hostTool(t, "python3")
	var profile specs.LinuxSeccomp
	if err := json.Unmarshal([]byte(content(t, "../seccomp/testdata/default.json")), &profile); err != nil {
		t.Fatal(err)
	}
	for i, rule := range profile.Syscalls {
		if slices.Contains(rule.Names, "seccomp") {
			profile.Syscalls[i] = specs.LinuxSyscall{Names: []string{"seccomp"}, Action: specs.ActAllow}
		}
	}
	text, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got := s.do("--workspace", workspace(t), "--seccomp", file, "--", "python3", "-c", quotaScript, "/workspace")
	for _, want := range []string{"aio ENOSYS\n", "filter taken\n", "filter by prctl taken\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it does not say %q: %+v", want, got)
		}
	}
}

// workspace is a directory that the sandbox's user may write to.
func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

const holdTerminals = `
import errno, os, sys
held = []
try:
    while len(held) < 4096:
        held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as e:
    print(len(held), errno.errorcode[e.errno], flush=True)
sys.stdin.read()
`

// A sandbox that holds all terminals it can get leaves others to the host and to
// another sandbox.
func TestAttackOnTerminals(t *testing.T) {
	s := newSandboxes(t)
	hostTool(t, "python3")
	cmd := s.command("do", "--", "python3", "-c", holdTerminals)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	holder := start(t, cmd)
	holder.prints("64 ENOSPC\n")
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Errorf("the host gets no terminal: %v", err)
	} else {
		unix.Close(fd)
	}
	if got := s.do("--", "python3", "-c", `open("/dev/ptmx", "rb+", 0); print("opened")`); got.stdout != "opened\n" {
		t.Errorf("another sandbox gets no terminal: %+v", got)
	}
	in.Close()
	holder.wait()
}

const lockDevices = `
import fcntl, os, sys
for name in sys.argv[1:]:
    fd = os.open(name, os.O_RDWR | os.O_NOCTTY if name != "/dev/tty" else os.O_PATH)
    if name != "/dev/tty":
        fcntl.flock(fd, fcntl.LOCK_EX)
    os.utime(name, (1, 1))
print("locked", flush=True)
sys.stdin.read()
`

// A lock on a device inside, and a change of its times, do not reach the host.
func TestAttackOnTheHostsDevices(t *testing.T) {
	s := newSandboxes(t)
	hostTool(t, "python3")
	var names []string
	before := map[string]unix.Stat_t{}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		path := "/dev/" + name
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		names, before[path] = append(names, path), st
	}
	// As root inside, which owns the nodes.
	cmd := s.command(append([]string{"do", "--user", "0", "--", "python3", "-c", lockDevices}, names...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	holder := start(t, cmd)
	holder.prints("locked\n")
	for _, path := range names {
		var after unix.Stat_t
		if err := unix.Stat(path, &after); err != nil {
			t.Fatal(err)
		}
		if after.Mtim.Sec == 1 || after.Ino != before[path].Ino {
			t.Errorf("%s of the host was touched", path)
		}
		if path == "/dev/tty" {
			continue // the tests have none
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		// Others may hold a lock for a moment.
		eventually(t, path+" of the host can be locked", func() bool {
			return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil
		})
		unix.Close(fd)
	}
	in.Close()
	holder.wait()
}

// Also what a command has that was given no stdin: the node of its own /dev.
func TestACommandWithoutStdinHasTheSandboxsNull(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	id := strings.TrimSpace(s.exec("--detach", "box", "sh", "-c", `[ "$(stat -Lc %d:%i /dev/fd/0)" = "$(stat -c %d:%i /dev/null)" ]`).stdout)
	if id == "" {
		t.Fatal("no detached command")
	}
	if got := run(t, s.command("attach", "box", id)); got.code != 0 {
		t.Errorf("stdin is another node than /dev/null: %+v", got)
	}
}

const setAttributes = `
import errno, os
open("/workspace/file", "w").close()
for name in ["capability", "ima", "evm", "apparmor", "SMACK64", "anything"]:
    try:
        os.setxattr("/workspace/file", "security." + name, b"x" * 20)
        print(name, "set")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
`

// The host's security modules and its kernel believe these attributes. One is left
// out: where SELinux has no policy, each owner of a file can set security.selinux.
func TestAttackBySecurityAttributes(t *testing.T) {
	s := newSandboxes(t)
	hostTool(t, "python3")
	for _, user := range []string{"1000", "0"} {
		dir := workspace(t)
		got := s.do("--user", user, "--workspace", dir, "--", "python3", "-c", setAttributes)
		if got.code != 0 || strings.Contains(got.stdout, "set") || strings.Count(got.stdout, "\n") != 6 {
			t.Errorf("--user %s: %+v", user, got)
		}
		names := make([]byte, 1<<10)
		n, err := unix.Listxattr(filepath.Join(dir, "file"), names)
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.SplitSeq(strings.Trim(string(names[:n]), "\x00"), "\x00") {
			if strings.HasPrefix(name, "security.") && name != "security.selinux" {
				t.Errorf("--user %s left %s", user, name)
			}
		}
	}
}

// What counts the host's files and locks is masked.
func TestInsideTheHostsLocksAreNotReadable(t *testing.T) {
	s := newSandboxes(t)
	for _, path := range []string{"/proc/locks", "/proc/diskstats"} {
		if got := s.do("--", "cat", path); got.code != 0 || got.stdout != "" {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := s.do("--", "ls", "-A", "/proc/fs"); got.code != 0 || got.stdout != "" {
		t.Errorf("/proc/fs: %+v", got)
	}
	if got := s.do("--", "sh", "-c", "grep -c ^cpu0 /proc/stat"); got.stdout != fmt.Sprintln(1) {
		t.Errorf("/proc/stat: %+v", got)
	}
}

const lockShared = `
import fcntl, os, sys
fcntl.flock(os.open("/usr/bin/env", os.O_RDONLY), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
`

// docs/adr/0012-usr-stays-a-bind.md: the host's files below /usr are shared, and an
// overlay has files of its own.
func TestAnOverlayHasLocksOfItsOwn(t *testing.T) {
	s := newSandboxes(t)
	hostTool(t, "python3")
	f, err := os.Open("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct {
		flags []string
		free  bool
	}{{[]string{"--overlay", "/usr"}, true}, {nil, false}} {
		cmd := s.command(append(append([]string{"do"}, c.flags...), "--", "python3", "-c", lockShared)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		holder := start(t, cmd)
		holder.prints("locked\n")
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if (err == nil) != c.free {
			t.Errorf("do %q holds a lock, and the host's is answered with %v", c.flags, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
			t.Error(err)
		}
		in.Close()
		holder.wait()
	}
}
