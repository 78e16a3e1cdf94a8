package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// attack does what testdata/attack.c does with the arguments, in the host's own root.
func (s *sandboxes) attack(flags []string, args ...string) *exec.Cmd {
	s.t.Helper()
	program, err := attackProgram()
	if err != nil {
		s.t.Fatal(err)
	}
	command := append([]string{"do", "-i", "--bind", program + ":/mnt/attack"}, flags...)
	return s.command(append(append(command, "--", "/mnt/attack"), args...)...)
}

// holding starts an attack that holds something once it has printed this. The
// returned function has it end.
func (s *sandboxes) holding(text string, flags []string, args ...string) (end func()) {
	s.t.Helper()
	cmd := s.attack(flags, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	r := start(s.t, cmd)
	end = func() {
		_ = in.Close()
		if !r.ended() {
			_ = r.cmd.Process.Signal(syscall.SIGTERM)
		}
		r.wait()
	}
	s.t.Cleanup(end) // a sandbox whose starter is killed leaves a cgroup
	r.prints(text)
	return end
}

// answers are lines of a name and an error's number each.
func answers(pairs ...any) string {
	var text strings.Builder
	for pair := range slices.Chunk(pairs, 2) {
		number, _ := pair[1].(unix.Errno)
		fmt.Fprintf(&text, "%s %d\n", pair[0], int(number))
	}
	return text.String()
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

// A handful of each is tried: many filters stop a kernel.
func TestAttackOnSharedQuotas(t *testing.T) {
	s := newSandboxes(t)
	const absent = unix.ENOPROTOOPT
	want := answers("aio", unix.ENOSYS, "lease", unix.EINVAL, "notify", unix.EINVAL,
		"attribute", 0, "long-attribute", unix.E2BIG, "attribute-at", unix.ENOSYS,
		"socket-filter", absent, "socket-filter", absent, "socket-filter", absent,
		"group-filter", absent, "socket-program", absent, "group-program", absent, "buffer", 0,
		"filter", unix.EINVAL, "filter-by-prctl", unix.EINVAL)
	for _, profile := range []string{"default", "strict", "debug"} {
		got := run(t, s.attack([]string{"--workspace", workspace(t), "--seccomp", profile}, "quota", "/workspace"))
		if got.code != 0 || got.stdout != want {
			t.Errorf("--seccomp %s: %+v", profile, got)
		}
	}
	program, err := attackProgram()
	if err != nil {
		t.Fatal(err)
	}
	bare := run(t, exec.Command(program, "quota", t.TempDir()))
	for _, name := range []string{"lease", "socket-filter", "filter", "filter-by-prctl"} {
		if !strings.Contains(bare.stdout, answers(name, 0)) {
			t.Errorf("the host refuses %s: %+v", name, bare)
		}
	}
}

// A profile that allows seccomp lets commands load filters.
func TestAProfileOfOnesOwnGivesFilters(t *testing.T) {
	s := newSandboxes(t)
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
	got := run(t, s.attack([]string{"--workspace", workspace(t), "--seccomp", file}, "quota", "/workspace"))
	for _, want := range []string{answers("aio", unix.ENOSYS), answers("filter", 0, "filter-by-prctl", 0)} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it does not say %q: %+v", want, got)
		}
	}
}

// A sandbox that holds all terminals it can get leaves others to the host and to
// another sandbox.
func TestAttackOnTerminals(t *testing.T) {
	s := newSandboxes(t)
	end := s.holding(answers("64", unix.ENOSPC), nil, "terminals")
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Errorf("the host gets no terminal: %v", err)
	} else {
		unix.Close(fd)
	}
	if got := s.do("--", "sh", "-c", "exec 3<>/dev/ptmx && echo opened"); got.stdout != "opened\n" {
		t.Errorf("another sandbox gets no terminal: %+v", got)
	}
	end()
}

// A task keeps up to three numbers of processes in use. All sandboxes together must leave half of
// the host's numbers even so.
func TestAttackOnNumbersOfProcesses(t *testing.T) {
	s := newSandboxes(t)
	s.holding("numbers\n", []string{"--pids", "64"}, "numbers", "60")
	tasks, numbers := tasksAndNumbers(t, "/mnt/attack\x00numbers\x00")
	if tasks < 61 || numbers < 3*60 {
		t.Errorf("%d tasks keep %d numbers: the attack does not work", tasks, numbers)
	}
	files, err := filepath.Glob("/sys/fs/cgroup/pids/sandbox-runtime/pids.max")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		files = []string{"/sys/fs/cgroup/sandbox-runtime/pids.max"}
	}
	limit, most := fileNumber(t, files[0]), fileNumber(t, "/proc/sys/kernel/pid_max")
	if limit*numbers/tasks > most/2 {
		t.Errorf("%d tasks of sandboxes can keep %d of %d numbers", limit, limit*numbers/tasks, most)
	}
}

// tasksAndNumbers counts the processes whose arguments begin so, and the numbers of processes that
// they keep in use.
func tasksAndNumbers(t *testing.T, arguments string) (tasks, numbers int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	inUse := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), arguments) {
			continue // other processes end meanwhile
		}
		dir := filepath.Dir(file)
		_, fields, _ := strings.Cut(content(t, filepath.Join(dir, "stat")), ") ") // state, parent, group, session
		words := strings.Fields(fields)
		tasks++
		inUse[filepath.Base(dir)], inUse[words[2]], inUse[words[3]] = true, true, true
	}
	return tasks, len(inUse)
}

// fileNumber is the content of a file that is one number.
func fileNumber(t *testing.T, file string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(content(t, file)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A lock on a device inside, and a change of its times, do not reach the host.
func TestAttackOnTheHostsDevices(t *testing.T) {
	s := newSandboxes(t)
	paths := []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
	// As root inside, which owns the nodes.
	end := s.holding("locked\n", []string{"--user", "0"}, append([]string{"lock"}, paths...)...)
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Mtim.Sec == 1 {
			t.Errorf("%s of the host has other times", path)
		}
		canBeLocked(t, path)
	}
	end()
}

// canBeLocked holds that nobody has a lock on a file of the host. A program of the host may
// have one for a moment.
func canBeLocked(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	eventually(t, path+" of the host can be locked", func() bool {
		return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil
	})
	eventually(t, path+" of the host has no record lock", func() bool {
		record := unix.Flock_t{Type: unix.F_WRLCK}
		err := unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &record)
		return err == nil && record.Type == unix.F_UNLCK
	})
}

// Locks on the programs and libraries of the host delay no program outside, and no other
// sandbox.
func TestAttackOnTheHostsFilesByLocks(t *testing.T) {
	s := newSandboxes(t)
	var paths []string
	for _, path := range []string{"/usr/bin/env", "/etc/ld.so.cache", "/etc/services"} {
		if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
			paths = append(paths, path)
		}
	}
	args := append([]string{"lock"}, paths...)
	end := s.holding("locked\n", nil, args...)
	for _, path := range paths {
		canBeLocked(t, path)
	}
	end2 := s.holding("locked\n", nil, args...)
	end2()
	end()
}

// A command that was given no stdin has the node of the sandbox, too.
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

// docs/adr/0016: an overlay has inodes of its own, the user's and that of the host's root. A
// bind shares those of the host.
func TestAnOverlayHasLocksOfItsOwn(t *testing.T) {
	s := newSandboxes(t)
	const path = "/usr/bin/env"
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct {
		flags  []string
		inside string
		free   bool
	}{{[]string{"--overlay", "/usr"}, path, true}, {nil, path, true}, {[]string{"--bind", "/usr:/mnt"}, "/mnt/bin/env", false}} {
		end := s.holding("locked\n", c.flags, "lock", c.inside)
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); (err == nil) != c.free {
			t.Errorf("do %q holds a lock, and the host's is answered with %v", c.flags, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
			t.Error(err)
		}
		end()
	}
}

// The host's security modules and its kernel believe these attributes. A sandbox can
// set no more of them than each user of the host can: kernels with SELinux and no
// policy let owners of files set some.
func TestAttackBySecurityAttributes(t *testing.T) {
	s := newSandboxes(t)
	program, err := attackProgram()
	if err != nil {
		t.Fatal(err)
	}
	dir := openFolder(t)
	own := filepath.Join(dir, "attack") // the other is where only root gets
	if err := errors.Join(os.Chown(dir, 1000, 1000), ocibundle.CopyProgram(program, own)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(own, "attributes", filepath.Join(dir, "file"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	want := run(t, cmd)
	for _, name := range []string{"security.capability", "security.ima", "security.evm"} {
		if !strings.Contains(want.stdout, answers(name, unix.EPERM)) {
			t.Errorf("a user of the host is not refused %s: %+v", name, want)
		}
	}
	for _, user := range []string{"1000", "0"} {
		got := run(t, s.attack([]string{"--user", user, "--workspace", workspace(t)}, "attributes", "/workspace/file"))
		if got.code != 0 || got.stdout != want.stdout {
			t.Errorf("--user %s: %+v, a user of the host: %+v", user, got, want)
		}
	}
}

// Files about the host's disks, locks, file systems and load are masked.
func TestInsideTheHostsLocksAreNotReadable(t *testing.T) {
	s := newSandboxes(t)
	for _, path := range []string{"/proc/locks", "/proc/diskstats", "/proc/partitions", "/proc/swaps"} {
		if got := s.do("--", "cat", path); got.code != 0 || got.stdout != "" {
			t.Errorf("%s: %+v", path, got)
		}
	}
	for _, dir := range []string{"/proc/fs", "/proc/pressure"} {
		if got := s.do("--", "ls", "-A", dir); got.stdout != "" {
			t.Errorf("%s: %+v", dir, got)
		}
	}
	if got := s.do("--", "sh", "-c", "grep -c '^cpu0 ' /proc/stat"); got.stdout != "1\n" {
		t.Errorf("/proc/stat: %+v", got)
	}
}
