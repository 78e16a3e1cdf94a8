package launcher

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const clientID = 2000

// clientsFiles are descriptors that a client opened.
func clientsFiles(t *testing.T, paths ...string) Sources {
	t.Helper()
	from := Sources{Files: map[string]*os.File{}, UID: clientID, GIDs: []uint32{clientID}}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		from.Files[path] = f
	}
	return from
}

// What another user has opened is all that a sandbox of that user's gets; no
// path is opened with the launcher's rights.
func TestClientsOwnDescriptorsAreUsed(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	mine, theirs := filepath.Join(dir, "mine"), filepath.Join(dir, "theirs")
	profile := filepath.Join(dir, "profile.json")
	err := errors.Join(
		os.Mkdir(mine, 0o755), os.Mkdir(theirs, 0o755), os.Chown(mine, clientID, clientID),
		os.WriteFile(filepath.Join(theirs, "secret"), []byte("secret"), 0o600),
		os.WriteFile(profile, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	config := spec.Config{Workspace: mine, Binds: []spec.Bind{{Source: theirs, Target: "/theirs"}}, Seccomp: profile}
	for missing, paths := range map[string][]string{
		mine: {theirs, profile}, theirs: {mine, profile}, profile: {mine, theirs},
	} {
		s, err := l.Create(t.Context(), protocol.Create{Config: config}, clientsFiles(t, paths...))
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), missing+": no descriptor came with it") {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	stranger := clientsFiles(t, mine, theirs, profile)
	stranger.UID = clientID + 1
	s, err := l.Create(t.Context(), protocol.Create{Config: config}, stranger)
	var forbidden *rootfs.ForbiddenError
	if !errors.As(err, &forbidden) {
		if err == nil {
			s.Close()
		}
		t.Errorf("another's workspace: %v", err)
	}

	s, err = l.Create(t.Context(), protocol.Create{Config: config}, clientsFiles(t, mine, theirs, profile))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	p, err := s.Start(t.Context(), spec.Command{Args: []string{"sh", "-c", "cat /theirs/secret; echo made > made"}}, [3]*os.File{nil, write, nil})
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	said, err := io.ReadAll(read)
	if err != nil || len(said) > 0 {
		t.Errorf("inside: %q, %v", said, err)
	}
	if r, err := p.Wait(t.Context()); err != nil || r.ExitCode != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	info, err := os.Stat(filepath.Join(mine, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := uidOf(info); uid != clientID {
		t.Errorf("what was made belongs to %d", uid)
	}
}

func uidOf(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// A user without groups is refused, and not looked up for with root's.
func TestClientsWithoutGroupsAreRefused(t *testing.T) {
	l := newTestLauncher(t)
	s, err := l.Create(t.Context(), protocol.Create{Path: "/opt/bin"}, Sources{UID: clientID})
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "it has no group") {
		t.Errorf("got %v", err)
	}
	checkNothingLeft(t, l)
}

// TestPathsAreNotLookedUpAgain replaces the directories of a sandbox by links, and then changes
// the limits of disk traffic. An error would tell the client which files of others exist.
func TestPathsAreNotLookedUpAgain(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	needDisk(t, dir)
	names := []string{"workspace", "bind", "overlay", "next"}
	var paths []string
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chown(path, clientID, clientID)); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	from := clientsFiles(t, paths...)
	s, err := l.Create(t.Context(), protocol.Create{Config: spec.Config{
		Workspace: paths[0], Binds: []spec.Bind{{Source: paths[1], Target: "/bind", Writable: true}}, Overlays: paths[2:3],
	}}, from)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, path := range paths {
		if err := errors.Join(os.Rename(path, path+".old"), os.Symlink("/root/no-such-file", path)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Update(t.Context(), spec.Limits{IORead: 1 << 20}); err != nil {
		t.Errorf("update: %v", err)
	}
	if err := os.Remove(paths[3]); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(paths[3]+".old", paths[3]); err != nil {
		t.Fatal(err)
	}
	next := Sources{Files: map[string]*os.File{paths[3]: from.Files[paths[3]]}, UID: from.UID, GIDs: from.GIDs}
	if err := s.SetWorkspace(t.Context(), paths[3], next); err != nil {
		t.Errorf("another workspace: %v", err)
	}
}

// An update of a sandbox with a root of its own limits the disk of this root, also if the root has
// no /usr.
func TestTheDiskOfARootWithoutUsrIsLimited(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	want := needDisk(t, dir)
	for _, name := range []string{"proc", "sys", "dev", "tmp", "run", "workspace", "home/sandbox"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := createUp(t, l, "box", spec.Config{Rootfs: dir, Storage: spec.StorageMemory})
	if err := s.Update(t.Context(), spec.Limits{IORead: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if got := recordOf(t, l, "box").Disks; !slices.Equal(got, want) {
		t.Errorf("limited disks: %v, want %v", got, want)
	}
}
