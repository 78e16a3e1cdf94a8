package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A poolLauncher is a launcher with a pool, and a client of this launcher.
type poolLauncher struct {
	*sandboxes
	*sandbox.Manager
	launcher *launcherProcess
}

func newPoolLauncher(s *sandboxes, flags ...string) *poolLauncher {
	s.t.Helper()
	socket := socketOfTest(s.t)
	if err := os.Chmod(filepath.Dir(socket), 0o755); err != nil {
		s.t.Fatal(err)
	}
	return poolLauncherOf(s, s.launcher(socket, flags...))
}

func poolLauncherOf(s *sandboxes, l *launcherProcess) *poolLauncher {
	s.t.Helper()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: l.socket})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return &poolLauncher{s, m, l}
}

// stats are those of the pool.
func (p *poolLauncher) stats() sandbox.PoolStats {
	p.t.Helper()
	stats, err := p.PoolStats(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return stats
}

func (p *poolLauncher) awaitReady(n int) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%d blanks", n), func() bool { return p.stats().Ready >= n })
}

// end ends the launcher with SIGTERM.
func (p *poolLauncher) end() {
	p.t.Helper()
	_ = p.launcher.cmd.Process.Signal(unix.SIGTERM)
	if got := p.launcher.wait(); got.code != 0 {
		p.t.Errorf("the launcher: %+v", got)
	}
}

// do runs a script in a new sandbox, by the launcher or, cold, without a launcher.
func (p *poolLauncher) do(cold bool, script string, flags ...string) string {
	p.t.Helper()
	at := []string{"--socket", p.launcher.socket}
	if cold {
		at = []string{"--root", p.root}
	}
	args := append(append(append(at, "do", "--storage", "memory"), flags...), "--", "sh", "-c", script)
	got := run(p.t, exec.Command(binary(p.t), args...))
	if got.code != 0 {
		p.t.Errorf("%q: %+v", args, got)
	}
	return got.stdout
}

// overlaid mounts an overlay over a directory of the host: the test may write to the directory.
func overlaid(t *testing.T, dir string) {
	t.Helper()
	layers := t.TempDir()
	upper, work := filepath.Join(layers, "upper"), filepath.Join(layers, "work")
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		t.Fatal(err)
	}
	mountUntilEnd(t, "overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work)
}

// A hostChange is a change of the host that sandboxes see.
type hostChange struct {
	name   string
	make   func() error
	script string // prints the changed part
	want   string
}

// follows makes each change, and looks for it from a blank and from a sandbox without a pool.
func (p *poolLauncher) follows(changes []hostChange) {
	p.t.Helper()
	for _, c := range changes {
		p.awaitReady(1)
		if err := c.make(); err != nil {
			p.t.Fatalf("%s: %v", c.name, err)
		}
		if got, cold := p.do(false, c.script), p.do(true, c.script); got != c.want || cold != c.want {
			p.t.Errorf("%s: got %q, without a pool %q, want %q", c.name, got, cold, c.want)
		}
	}
}

// etcChanges change files of /etc that a sandbox has as a mount, and as a copy.
func etcChanges() []hostChange {
	const mounted, copied = "/etc/services", "/etc/dpkg/origins/srt-test"
	write := func(path, text string) func() error {
		return func() error { return os.WriteFile(path, []byte(text), 0o644) }
	}
	renamed := func(path, text string) func() error {
		return func() error { return errors.Join(write(path+".new", text)(), os.Rename(path+".new", path)) }
	}
	cat := func(path string) string { return "cat " + path + " 2>/dev/null || echo none" }
	return []hostChange{
		{"a file by rename", renamed(mounted, "one\n"), cat(mounted), "one\n"},
		{"the file in place", write(mounted, "two\n"), cat(mounted), "two\n"},
		{"the file by rename again", renamed(mounted, "six\n"), cat(mounted), "six\n"},
		{"the file's mode", func() error { return os.Chmod(mounted, 0o600) }, cat(mounted), "none\n"},
		{"a new small file", write(copied, "one\n"), cat(copied), "one\n"},
		{"the small file in place", write(copied, "two\n"), cat(copied), "two\n"},
		{"the small file is gone", func() error { return os.Remove(copied) }, cat(copied), "none\n"},
		{"a new directory", func() error {
			dir := "/etc/java-99-openjdk"
			return errors.Join(os.Mkdir(dir, 0o755), write(dir+"/file", "one\n")())
		}, cat("/etc/java-99-openjdk/file"), "one\n"},
		{"a link", func() error {
			return errors.Join(os.RemoveAll("/etc/timezone"), os.Symlink("java-99-openjdk/file", "/etc/timezone"))
		}, cat("/etc/timezone"), "one\n"},
		{"the link's end", write("/etc/java-99-openjdk/file", "two\n"), cat("/etc/timezone"), "two\n"},
		{"a program", func() error {
			return os.WriteFile("/usr/local/bin/srt-test", []byte("#!/bin/sh\necho one\n"), 0o755)
		}, "srt-test", "one\n"},
	}
}

// mountChanges mount and unmount file systems. A kernel gives the second one the number of the first.
func mountChanges(t *testing.T) []hostChange {
	const at = "/usr/local/share"
	isMounted := false
	mount := func(text string) func() error {
		return func() error {
			if isMounted {
				if err := unix.Unmount(at, 0); err != nil {
					return err
				}
			}
			isMounted = true
			return errors.Join(unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755"), os.WriteFile(at+"/srt-test", []byte(text), 0o644))
		}
	}
	t.Cleanup(func() {
		if isMounted {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	})
	const script = "cat /usr/local/share/srt-test 2>/dev/null || echo none"
	return []hostChange{
		{"a file system", mount("one\n"), script, "one\n"},
		{"another file system", mount("two\n"), script, "two\n"},
		{"a file system that programs cannot run on", func() error {
			return unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOEXEC, "")
		}, "grep ' /usr/local/share ' /proc/self/mounts | grep -o noexec", "noexec\n"},
		{"no file system", func() error { isMounted = false; return unix.Unmount(at, 0) }, script, "none\n"},
	}
}

// toolChanges install, replace and remove languages. PATH has the directory tool/bin below dir.
func toolChanges(dir string) []hostChange {
	install := func(version, text string) error {
		prefix := filepath.Join(dir, version)
		return errors.Join(os.MkdirAll(prefix+"/bin", 0o755), os.MkdirAll(prefix+"/lib/python3.99", 0o755),
			os.WriteFile(prefix+"/lib/python3.99/os.py", nil, 0o644),
			os.WriteFile(prefix+"/bin/python3", []byte("#!/bin/sh\necho "+text+"\n"), 0o755))
	}
	link := func(version string) error {
		next := filepath.Join(dir, "next")
		return errors.Join(os.Symlink(version, next), os.Rename(next, filepath.Join(dir, "tool")))
	}
	node := func(version, text string) error { // by a link in a directory that each sandbox has
		prefix, at := filepath.Join(dir, version), "/usr/local/bin/node"
		return errors.Join(os.MkdirAll(prefix+"/bin", 0o755), os.MkdirAll(prefix+"/include/node", 0o755),
			os.WriteFile(prefix+"/include/node/node.h", nil, 0o644),
			os.WriteFile(prefix+"/bin/node", []byte("#!/bin/sh\necho "+text+"\n"), 0o755),
			os.Symlink(prefix+"/bin/node", at+".new"), os.Rename(at+".new", at))
	}
	const script = "python3"
	return []hostChange{
		{"a new tool", func() error { return errors.Join(install("v1", "one"), link("v1")) }, script, "one\n"},
		{"the tool's program", func() error { return install("v1", "two") }, script, "two\n"},
		{"another version by its link", func() error { return errors.Join(install("v2", "six"), link("v2")) }, script, "six\n"},
		{"another directory of the same name", func() error {
			return errors.Join(os.Rename(filepath.Join(dir, "v2"), filepath.Join(dir, "old")), install("v2", "ten"))
		}, script, "ten\n"},
		{"a tool behind a link of /usr", func() error { return node("n1", "one") }, "node", "one\n"},
		{"another version behind the link", func() error { return node("n2", "two") }, "node", "two\n"},
		{"no tool", func() error { return os.Remove(filepath.Join(dir, "tool")) }, "command -v python3 | grep " + dir + " || echo none", "none\n"},
	}
}

// When the host changes, the next sandbox has the new state, as one without a pool has. The sandbox
// after that claims a blank again.
func TestClaimsSeeTheHostOfNow(t *testing.T) {
	s := newSandboxes(t)
	overlaid(t, "/etc")
	overlaid(t, "/usr")
	if err := errors.Join(os.MkdirAll("/usr/local/share", 0o755), os.MkdirAll("/usr/local/bin", 0o755)); err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	for dir := tools; dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(tools, "tool", "bin")+":"+os.Getenv("PATH"))
	p := newPoolLauncher(s, "--pool", "min=1,max=1")
	hits := 0
	for _, c := range append(append(etcChanges(), mountChanges(t)...), toolChanges(tools)...) {
		p.awaitReady(1)
		if err := c.make(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		before := p.stats()
		got, cold := p.do(false, c.script), p.do(true, c.script)
		if got != c.want || cold != c.want {
			t.Errorf("%s: got %q, without a pool %q, want %q", c.name, got, cold, c.want)
		}
		if hits = p.stats().Hits; hits > before.Hits {
			t.Logf("%s: a blank sees the change", c.name)
		}
	}
	p.awaitReady(1)
	if got := p.do(false, "echo again"); got != "again\n" || p.stats().Hits <= hits {
		t.Errorf("%q, %+v", got, p.stats())
	}
	p.end()
}

// socketScript says whether a sandbox may make a socket. The profile strict forbids sockets.
const socketScript = `perl -e 'use Socket; print socket(my $s, AF_INET, SOCK_STREAM, 0) ? "socket\n" : "none\n"'`

// A claim has the seccomp profile of the request, also when the file of a profile has changed.
func TestClaimsHaveTheSeccompProfile(t *testing.T) {
	s := newSandboxes(t)
	p := newPoolLauncher(s, "--pool", "min=1,max=4")
	p.awaitReady(1)
	for profile, want := range map[string]string{"strict": "none\n", "default": "socket\n", "debug": "socket\n"} {
		eventually(t, "a blank with "+profile, func() bool { // the first request asks for blanks of its kind
			before := p.stats()
			if got := p.do(false, socketScript, "--seccomp", profile); got != want {
				t.Fatalf("%s: %q, want %q", profile, got, want)
			}
			return p.stats().Hits > before.Hits
		})
	}
	if stats := p.stats(); stats.Hits < 3 || stats.Misses["seccomp"] > 0 {
		t.Errorf("%+v", stats)
	}
	file := filepath.Join(t.TempDir(), "profile.json")
	for _, c := range []struct{ action, want string }{{"SCMP_ACT_ALLOW", "socket\n"}, {"SCMP_ACT_ERRNO", "none\n"}, {"SCMP_ACT_ALLOW", "socket\n"}} {
		text := fmt.Sprintf(`{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_AARCH64"],"syscalls":[{"names":["socket"],"action":%q}]}`, c.action)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := p.do(false, socketScript, "--seccomp", file); got != c.want {
			t.Errorf("a file with %s: %q", c.action, got)
		}
	}
	if stats := p.stats(); stats.Misses["seccomp"] != 3 {
		t.Errorf("files of profiles: %+v", stats)
	}
	p.end()
}

// The launcher reads rules at its start. After a restart the blanks follow the new rules.
func TestClaimsFollowTheRules(t *testing.T) {
	const uid = 4242
	s := newSandboxes(t)
	rules := filepath.Join(t.TempDir(), "rules.json")
	for _, limit := range []int{31, 47} {
		text := fmt.Sprintf(`{"peers":[{"user":%d,"limits":{"pids":%d,"shm_size":"%dm"}}]}`, uid, limit, limit)
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := newPoolLauncher(s, "--pool", "min=1,max=8", "--rules", rules, "--mode", "0666")
		as(t, uid, func(ctx context.Context) error {
			m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: p.launcher.socket})
			if err != nil {
				return err
			}
			defer m.Close()
			for hit := range 2 { // the first asks for blanks of the user
				if hit > 0 {
					eventually(t, "a blank of the user", func() bool {
						stats, err := m.PoolStats(ctx)
						return err == nil && stats.Ready > 0
					})
				}
				box, err := m.Create(ctx, sandbox.Config{Storage: sandbox.StorageMemory})
				if err != nil {
					return err
				}
				info, err := box.Info(ctx)
				if l := info.Config.Limits; err != nil || l.Pids != int64(limit) || int64(l.ShmSize) != int64(limit)<<20 {
					t.Errorf("limits %+v, %v; want %d", l, err, limit)
				}
				r, err := box.Run(ctx, "df -m /dev/shm | grep -o ' [0-9]\\+ ' | head -1")
				if err != nil || strings.TrimSpace(string(r.Stdout)) != strconv.Itoa(limit) {
					t.Errorf("%+v, %v; want %d", r, err, limit)
				}
				if stats, err := m.PoolStats(ctx); err != nil || stats.Hits != hit {
					t.Errorf("%+v, %v", stats, err)
				}
				if err := box.Close(); err != nil {
					return err
				}
			}
			return nil
		})
		p.end()
	}
}
