package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInsideThereAreNoPrivileges(t *testing.T) {
	s := newSandboxes(t)
	for _, user := range []string{"1000", "0"} {
		got := s.do("--user", user, "--", "sh", "-c", "id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t'")
		want := user + "\nCapInh:0000000000000000\nCapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\nCapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n"
		if got.stdout != want {
			t.Errorf("--user %s: %+v", user, got)
		}
	}
}

func TestInsideThereIsOnlyALoopbackDevice(t *testing.T) {
	s := newSandboxes(t)
	got := s.do("--", "sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; cat /proc/net/route | tail -n +2")
	if got.code != 0 || got.stdout != "lo\n" {
		t.Errorf("got %+v", got)
	}
	bash := hostTool(t, "bash")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connect := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d && echo connected", l.Addr().(*net.TCPAddr).Port)
	if got := s.do("--local", "--", bash, "-c", connect); got.stdout != "connected\n" {
		t.Fatalf("the host itself does not reach its port: %+v", got)
	}
	if got := s.do("--", bash, "-c", connect); got.code == 0 || got.stdout != "" {
		t.Errorf("reached the host's port: %+v", got)
	}
	if got := s.do("--", bash, "-c", "exec 3<>/dev/tcp/192.0.2.1/80 && echo connected"); got.code == 0 || !strings.Contains(got.stderr, "unreachable") {
		t.Errorf("a route to the outside: %+v", got)
	}
}

func TestInsideTheRootIsNotWritable(t *testing.T) {
	s := newSandboxes(t)
	for _, user := range []string{"1000", "0"} {
		for _, dir := range []string{"/", "/usr", "/usr/bin", "/usr/local/lib", "/etc", "/lib", "/dev", "/sys", "/proc", "/home"} {
			if dir == "/dev" && user == "0" {
				continue // the sandbox's own, in memory; the host's is looked at below
			}
			got := s.do("--user", user, "--", "sh", "-c", "echo inside; echo > "+dir+"/canary")
			if got.code == 0 || got.stdout != "inside\n" || exists(dir+"/canary") {
				t.Errorf("--user %s writes in %s: %+v", user, dir, got)
			}
		}
		if got := s.do("--user", user, "--", "sh", "-c", "chmod 777 /usr; touch /usr/bin/env; ln /usr/bin/env /usr/bin/canary"); got.code == 0 {
			t.Errorf("--user %s changes /usr: %+v", user, got)
		}
		s.do("--user", user, "--", "sh", "-c", "echo > /dev/canary")
		if exists("/dev/canary") {
			t.Errorf("--user %s writes in the host's /dev", user)
		}
	}
}

func TestInsideNothingOfTheHostIsReadable(t *testing.T) {
	s := newSandboxes(t)
	secret := filepath.Join(t.TempDir(), "secret")
	for _, path := range []string{secret, "/root/canary", "/home/canary", "/run/canary", "/dev/shm/canary"} {
		writeCanary(t, path)
	}
	living := start(t, s.command("do", "--", "sh", "-c", "echo ready; sleep 1000"))
	living.prints("ready\n")
	for _, user := range []string{"1000", "0"} {
		for _, path := range []string{secret, "/root/canary", "/home/canary", "/run/canary", "/dev/shm/canary", "/etc/shadow", "/etc/gshadow", "/proc/1/environ", "/proc/1/mem", "/dev/mem"} {
			if got := s.do("--user", user, "--", "head", "-c", "1", path); got.code == 0 {
				t.Errorf("--user %s reads %s: %+v", user, path, got)
			}
		}
		// Where the kernel has it, it opens, empty.
		if got := s.do("--user", user, "--", "head", "-c", "1", "/proc/kcore"); got.stdout != "" {
			t.Errorf("--user %s reads /proc/kcore: %+v", user, got)
		}
		for _, dir := range []string{s.root, s.state()[0], filepath.Dir(s.root), "/root", "/proc/1/fd", "/proc/1/root/", "/proc/1/cwd/"} {
			if got := s.do("--user", user, "--", "ls", dir); got.code == 0 {
				t.Errorf("--user %s lists %s: %+v", user, dir, got)
			}
		}
	}
	interrupt(t, living)
}

// writeCanary makes a file a sandbox must not see. An overlay takes the file where the
// directory is the host's own: the test's program may lie below it.
func writeCanary(t *testing.T, path string) {
	t.Helper()
	dir := filepath.Dir(path)
	if dir == "/root" || dir == "/home" {
		layer := t.TempDir()
		mountFor(t, layer, "tmpfs", "mode=755")
		for _, part := range []string{"upper", "work"} {
			if err := os.Mkdir(filepath.Join(layer, part), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		mountFor(t, dir, "overlay", "lowerdir="+dir+",upperdir="+layer+"/upper,workdir="+layer+"/work")
	}
	if err := os.WriteFile(path, []byte("canary\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
}

// mountFor mounts a new file system for the test.
func mountFor(t *testing.T, dir, kind, options string) {
	t.Helper()
	if err := unix.Mount(kind, dir, kind, 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

func TestInsideTheEnvironmentIsNotTheHosts(t *testing.T) {
	s := newSandboxes(t)
	cmd := s.command("do", "--", "env")
	cmd.Env = append(os.Environ(), "CANARY=secret", "LD_PRELOAD_CANARY=x", "HOME=/canary")
	got := run(t, cmd)
	var names []string
	for line := range strings.Lines(got.stdout) {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"HOME", "LANG", "PATH", "SHELL", "TERM", "USER"}; !slices.Equal(names, want) || strings.Contains(got.stdout, "canary") {
		t.Errorf("got %q, want the variables %q", got.stdout, want)
	}
}

func TestInsideOnlyStandardStreamsAreOpen(t *testing.T) {
	s := newSandboxes(t)
	f, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := s.command("do", "--", "ls", "/proc/self/fd")
	cmd.ExtraFiles = []*os.File{f, f, f}
	if got := run(t, cmd); got.stdout != "0\n1\n2\n3\n" { // 3 is ls's own
		t.Errorf("got %+v", got)
	}
}

func TestInsidePID1IsOutOfReach(t *testing.T) {
	s := newSandboxes(t)
	perl := hostTool(t, "perl")
	ptrace, ok := map[string]string{"amd64": "101", "arm64": "117"}[runtime.GOARCH]
	if !ok {
		t.Fatalf("which number has ptrace on %s?", runtime.GOARCH)
	}
	// PTRACE_ATTACH is 16, PTRACE_SEIZE 0x4206; debug is the profile that allows ptrace.
	attempts := []string{
		"kill -9 1", "kill -STOP 1", "kill -TERM 1",
		perl + ` -e 'exit(syscall(` + ptrace + `, 16, 1, 0, 0) == -1 ? 1 : 0)'`,
		perl + ` -e 'exit(syscall(` + ptrace + `, 0x4206, 1, 0, 0) == -1 ? 1 : 0)'`,
		"cat /proc/1/maps | grep .", "echo 1000 > /proc/1/oom_score_adj", "echo > /proc/1/mem",
	}
	for _, user := range []string{"1000", "0"} {
		for _, profile := range []string{"default", "debug"} {
			for _, attempt := range attempts {
				got := s.do("--user", user, "--seccomp", profile, "--", "sh", "-c", attempt+" && echo done; test -d /proc/1 && echo alive")
				if got.stdout != "alive\n" {
					t.Errorf("--user %s --seccomp %s: %s: %+v", user, profile, attempt, got)
				}
			}
		}
	}
}

func TestInsideNoNamespacesCanBeMade(t *testing.T) {
	s := newSandboxes(t)
	unshare := hostTool(t, "unshare")
	for _, kind := range []string{"--user", "--net", "--mount", "--pid", "--uts", "--ipc", "--cgroup"} {
		if got := s.do("--user", "0", "--", "sh", "-c", "echo inside; "+unshare+" "+kind+" true"); got.code == 0 || got.stdout != "inside\n" {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}

func TestWorkspaceFilesBelongToItsOwner(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "old")} {
		if err := os.Chown(path, 1234, 2345); err != nil {
			t.Fatal(err)
		}
	}
	got := s.do("--workspace", dir, "--", "sh", "-c", "pwd; touch file && mkdir dir && ln -s x link && echo x >> old && stat -c %u:%g . old file")
	if want := (result{0, "/workspace\n1000:1000\n1000:1000\n1000:1000\n", ""}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, name := range []string{"file", "dir", "link", "old"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Uid != 1234 || st.Gid != 2345 {
			t.Errorf("%s belongs to %d:%d outside, %v", name, st.Uid, st.Gid, err)
		}
	}
}

func TestWithoutAWorkspaceItVanishes(t *testing.T) {
	s := newSandboxes(t)
	if got := s.do("--", "sh", "-c", "pwd; echo x > f; ls"); got.stdout != "/workspace\nf\n" {
		t.Errorf("got %+v", got)
	}
	if got := s.do("--", "ls"); got.stdout != "" {
		t.Errorf("the next one sees %q", got.stdout)
	}
}

func TestBindsAreReadOnlyUnlessAsked(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("shown\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for mode, writable := range map[string]bool{"": false, ":ro": false, ":rw": true} {
		got := s.do("--bind", dir+":/data"+mode, "--", "sh", "-c", "cat /data/f; echo x > /data/new"+strings.TrimPrefix(mode, ":"))
		if !strings.HasPrefix(got.stdout, "shown\n") || (got.code == 0) != writable || exists(filepath.Join(dir, "new"+strings.TrimPrefix(mode, ":"))) != writable {
			t.Errorf("%q: %+v", mode, got)
		}
	}
}

func TestRootfsDirectoryIsTheReadOnlyRoot(t *testing.T) {
	s := newSandboxes(t)
	need(t, peers())
	root := newBusyboxRoot(t)
	if err := os.WriteFile(filepath.Join(root, "marker"), []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := s.do("--rootfs", root, "--", "sh", "-c", "cat /marker; echo x > /bin/canary; echo x > /canary; ls /usr/bin/dpkg; id -u")
	if got.stdout != "mine\n1000\n" || exists(filepath.Join(root, "bin/canary")) || exists(filepath.Join(root, "canary")) {
		t.Errorf("got %+v", got)
	}
}
