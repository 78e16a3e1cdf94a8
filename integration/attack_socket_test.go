package integration

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// CVE-2020-15257: whoever has the host's network namespace reaches its
// abstract sockets, and their owner does not look at who connects.
func TestAttackByAbstractSockets(t *testing.T) {
	s := newSandboxes(t)
	r := ours(t)
	name := "canary-" + t.Name()
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	command := []string{"attack", "connect", name}
	if got := r.runBundle(newAttack(t, command)); got.stdout != "refused\n" {
		t.Errorf("got %+v", got)
	}
	if got := r.runBundle(newAttack(t, command, withoutNamespace(specs.NetworkNamespace))); got.stdout != "connected\n" {
		t.Errorf("with the host's network it should connect: %+v", got)
	}
	for _, user := range []string{"0", "1000"} {
		if got := s.do("--rootfs", sharedAttackRoot(t), "--user", user, "--", "attack", "connect", name); got.stdout != "refused\n" {
			t.Errorf("do --user %s: %+v", user, got)
		}
		if got := s.do("--user", user, "--", "sh", "-c", "tail -n +2 /proc/net/unix | grep @; echo looked"); got.stdout != "looked\n" {
			t.Errorf("do --user %s sees abstract sockets: %+v", user, got)
		}
	}
}

// What the runtime listens on itself has a path that only root can walk, and
// nothing of it is abstract.
func TestOwnSocketsAreOutOfReach(t *testing.T) {
	s := newSandboxes(t)
	before := listening(t)
	r := ours(t)
	manager := filepath.Join(t.TempDir(), "manager")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: manager, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := newAttack(t, []string{"sh", "-c", "echo ready; sleep 1000"})
	cmd := r.command("run", "--bundle", b.dir, "notified")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+manager)
	p := start(t, cmd)
	p.prints("ready\n")
	sandbox := start(t, s.command("do", "--", "sh", "-c", "echo ready; sleep 1000"))
	sandbox.prints("ready\n")
	found := 0
	for _, name := range listening(t) {
		if slices.Contains(before, name) || name == manager {
			continue
		}
		found++
		// A long path is bound by the descriptor of its directory.
		if filepath.Dir(filepath.Dir(name)) == "/proc/self/fd" {
			name = onlyMatch(t, filepath.Join(s.root, "@sandboxes", "*", filepath.Base(name)))
		}
		if !walkableByRootOnly(t, name) {
			t.Errorf("a socket at %s", name)
		}
	}
	if found != 2 {
		t.Errorf("%d sockets were found, want the container's notify socket and the agent's", found)
	}
	r.run("kill", "notified", "KILL")
	p.wait()
	interrupt(t, sandbox)
}

func onlyMatch(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// listening are the names that sockets of this network namespace have, "@"
// first where they are abstract.
func listening(t *testing.T) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(content(t, "/proc/net/unix")) {
		if f := strings.Fields(line); len(f) == 8 {
			names = append(names, f[7])
		}
	}
	return names
}

// walkableByRootOnly says whether the socket or a directory above it is closed
// to everybody but its owner, root.
func walkableByRootOnly(t *testing.T, path string) bool {
	t.Helper()
	if !filepath.IsAbs(path) {
		return false
	}
	for ; path != "/"; path = filepath.Dir(path) {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid == 0 && st.Mode&0o077 == 0 {
			return true
		}
	}
	return false
}

// writeFile makes a file of a test's own.
func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// weakProfile is a seccomp profile that allows everything.
func weakProfile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weak.json")
	writeFile(t, path, `{"defaultAction": "SCMP_ACT_ALLOW"}`)
	return path
}

// CVE-2026-31431, 43284, 43500, 46300: families of sockets that reach parts of
// the kernel which write to pages that are not the caller's.
func TestAttackByFamiliesOfSockets(t *testing.T) {
	s := newSandboxes(t)
	root := sharedAttackRoot(t)
	common := []string{"1", "2", "10", "16"} // UNIX, INET, INET6, NETLINK
	for profile, want := range map[string][]string{"default": common, "debug": common, "strict": {}} {
		for _, user := range []string{"0", "1000"} {
			got := s.do("--rootfs", root, "--user", user, "--seccomp", profile, "--", "attack", "sockets")
			if families := strings.Fields(got.stdout); got.code != 0 || !slices.Equal(families, want) {
				t.Errorf("--seccomp %s --user %s: families %v, want %v; %+v", profile, user, families, want, got)
			}
		}
	}
	got := s.do("--rootfs", root, "--seccomp", weakProfile(t), "--", "attack", "sockets")
	if families := strings.Fields(got.stdout); len(families) <= len(common) {
		t.Errorf("without a filter there should be more: %v, %+v", families, got)
	}
	// The same filter in a bundle, whose other walls are Docker's.
	r := ours(t)
	if got := r.runBundle(newAttack(t, []string{"attack", "sockets"}, withFilter(t))); !slices.Equal(strings.Fields(got.stdout), common) {
		t.Errorf("a bundle: %+v", got)
	}
	if got := r.runBundle(newAttack(t, []string{"attack", "sockets"})); !slices.Contains(strings.Fields(got.stdout), "17") {
		t.Errorf("a bundle without a filter should have packet sockets: %+v", got)
	}
}

// The same holes need a user namespace, for the capabilities in it, and a
// network namespace to set up what they go through.
func TestAttackByNewNamespaces(t *testing.T) {
	s := newSandboxes(t)
	root := sharedAttackRoot(t)
	for _, profile := range []string{"default", "debug", "strict"} {
		for _, user := range []string{"0", "1000"} {
			if got := s.do("--rootfs", root, "--user", user, "--seccomp", profile, "--", "attack", "namespaces"); got.code != 0 || got.stdout != "" {
				t.Errorf("--seccomp %s --user %s: %+v", profile, user, got)
			}
		}
	}
	if got := s.do("--rootfs", root, "--seccomp", weakProfile(t), "--", "attack", "namespaces"); !strings.Contains(got.stdout, "unshare user\n") {
		t.Errorf("without a filter there should be user namespaces: %+v", got)
	}
	r := ours(t)
	for name, change := range map[string]func(*specs.Spec){
		"root": func(*specs.Spec) {}, "a user": asUser(1000),
	} {
		b := newAttack(t, []string{"attack", "namespaces"}, withFilter(t), change)
		if got := r.runBundle(b); got.code != 0 || got.stdout != "" {
			t.Errorf("a bundle, as %s: %+v", name, got)
		}
		if got := r.runBundle(newAttack(t, []string{"attack", "namespaces"}, change)); !strings.Contains(got.stdout, "unshare user\n") {
			t.Errorf("without a filter, as %s, there should be some: %+v", name, got)
		}
	}
}
