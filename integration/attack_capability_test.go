package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// inheritingProgram puts bin/inherit into the root: the attack with
// cap_dac_override in the file's inheritable set (capabilities(7), "File
// capabilities"; struct vfs_cap_data, version 2).
func inheritingProgram(t *testing.T, root string) {
	t.Helper()
	program, err := attackProgram()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "bin/inherit")
	if err := ocibundle.CopyProgram(program, path); err != nil {
		t.Fatal(err)
	}
	xattr := make([]byte, 20)
	xattr[0], xattr[3] = 1, 2             // effective, VFS_CAP_REVISION_2
	xattr[8] = 1 << unix.CAP_DAC_OVERRIDE // inheritable
	if err := unix.Setxattr(path, "security.capability", xattr, 0); err != nil {
		t.Fatal(err)
	}
}

// gained are the sets of capabilities that are not what they should be: all
// but the bounding one, empty.
func gained(status string) []string {
	var lines []string
	for line := range strings.Lines(status) {
		if !strings.HasPrefix(line, "CapBnd") && !strings.Contains(line, "0000000000000000") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func asUser(uid uint32) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Process.User = specs.User{UID: uid, GID: uid} }
}

// CVE-2022-29162, crun's CVE-2022-27650: a user without capabilities executes
// a file that takes over what the process may inherit.
func TestAttackByInheritableCapabilities(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	root := newAttackRoot(t)
	inheritingProgram(t, root)
	command := []string{"inherit", "capabilities"}
	if got := r.runBundle(newAttack(t, command, withRoot(root), asUser(1000))); got.code != 0 || len(gained(got.stdout)) != 0 {
		t.Errorf("run: %v of %+v", gained(got.stdout), got)
	}
	weak := func(s *specs.Spec) { s.Process.Capabilities.Inheritable = []string{"CAP_DAC_OVERRIDE"} }
	if got := r.runBundle(newAttack(t, command, withRoot(root), asUser(1000), weak)); !slices.Contains(gained(got.stdout), "CapEff:\t0000000000000002") {
		t.Errorf("with the inheritable set the file should gain it: %+v", got)
	}
	idle := newAttack(t, []string{"sleep", "1000"}, withRoot(root))
	r.create(idle, "idle")
	r.run("start", "idle")
	asFile := func(change func(*specs.Process)) []string {
		return []string{"exec", "--process", processFile(t, idle, command, change), "idle"}
	}
	for _, args := range [][]string{
		{"exec", "--user", "1000", "idle", "inherit", "capabilities"},
		{"exec", "--user", "1000:0", "--additional-gids", "0", "idle", "inherit", "capabilities"},
		asFile(func(p *specs.Process) { p.User.UID = 1000 }),
	} {
		if got := run(t, r.command(args...)); got.code != 0 || len(gained(got.stdout)) != 0 {
			t.Errorf("%q: %v of %+v", args, gained(got.stdout), got)
		}
	}
	// --cap and root's own: what is asked for, but nothing to inherit.
	for _, args := range [][]string{
		{"exec", "idle", "attack", "capabilities"},
		{"exec", "--cap", "CAP_SYS_PTRACE", "idle", "attack", "capabilities"},
		{"exec", "--cap", "CAP_SYS_PTRACE", "--user", "1000", "idle", "inherit", "capabilities"},
		asFile(nil),
	} {
		got := run(t, r.command(args...))
		for _, set := range []string{"CapInh:\t0000000000000000\n", "CapAmb:\t0000000000000000\n"} {
			if got.code != 0 || !strings.Contains(got.stdout, set) {
				t.Errorf("%q: %+v, want %s", args, got, set)
			}
		}
	}
}

func TestAttackByInheritableCapabilitiesInDo(t *testing.T) {
	s := newSandboxes(t)
	root := newAttackRoot(t)
	inheritingProgram(t, root)
	for _, user := range []string{"0", "1000"} {
		got := s.do("--rootfs", root, "--user", user, "--", "inherit", "capabilities")
		if got.code != 0 && got.code != 126 || len(gained(got.stdout)) != 0 {
			t.Errorf("--user %s: %v of %+v", user, gained(got.stdout), got)
		}
		got = s.do("--rootfs", root, "--user", user, "--", "attack", "capabilities")
		if strings.Count(got.stdout, "0000000000000000") != 5 {
			t.Errorf("--user %s: %+v", user, got)
		}
	}
}
