package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// boxOf makes a sandbox, runs a command in it, and removes it.
func (p *poolLauncher) boxOf(storage sandbox.Storage) error {
	c := sandbox.Config{Storage: storage}
	if storage == sandbox.StorageDisk {
		c.Limits.Disk = 8 << 20
	}
	box, err := p.Create(p.t.Context(), c)
	if err != nil {
		return err
	}
	if r, err := box.Run(p.t.Context(), "echo usable"); err != nil || string(r.Stdout) != "usable\n" {
		p.t.Errorf("%+v, %v", r, err)
	}
	return box.Close()
}

// The file system of the state root, or of the data directory, is full. Making blanks fails, with a pause.
// Requests with a place work, and the others have a clear error. With room again, all works again.
func TestPoolOnAFullDisk(t *testing.T) {
	for _, full := range []string{"root", "data"} {
		t.Run(full, func(t *testing.T) {
			s, disk := newSandboxes(t), filepath.Join(t.TempDir(), "disk")
			newFileSystem(t, "ext4", disk, 64)
			socket, storage := socketOfTest(t), sandbox.StorageMemory
			where := []string{"--data", filepath.Join(disk, "data")}
			if full == "root" {
				s.root, where = filepath.Join(disk, "state"), nil
			} else {
				storage = sandbox.StorageDisk
			}
			cmd := s.command("launcher", "--socket", socket, "--pool", "min=2,max=4")
			cmd.Args = slices.Insert(cmd.Args, 1, where...)
			l := &launcherProcess{start(t, cmd), socket}
			if _, err := awaitLauncher(t.Context(), socket); err != nil {
				t.Fatal(err)
			}
			p := poolLauncherOf(s, l)
			p.awaitReady(2)
			if err := p.boxOf(storage); err != nil { // has the pool make blanks of this kind
				t.Fatal(err)
			}
			eventually(t, "the removal is finished", func() bool { // else it makes room on the full disk
				stats := p.stats()
				return stats.Total == stats.Ready && len(s.blanks()) == stats.Ready
			})
			fillWithNames(t, disk)
			failures := p.stats().Failed
			if _, err := p.ResizePool(t.Context(), sandbox.PoolConfig{Min: 6, Max: 6}); err != nil {
				t.Fatal(err)
			}
			err := p.boxOf(storage)
			for range 5 { // with no blank of the kind at last
				if err == nil {
					err = p.boxOf(storage)
				}
			}
			if err == nil || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), disk) {
				t.Errorf("on the full disk: %v", err)
			}
			if full == "data" {
				if err := p.boxOf(sandbox.StorageMemory); err != nil {
					t.Errorf("in memory: %v", err)
				}
			}
			eventually(t, "a failed blank", func() bool { return p.stats().Failed > failures })
			if reason := p.stats().LastError; !strings.Contains(reason, "no space left on device") {
				t.Errorf("the pool: %s", reason)
			}
			if n := p.stats().Failed - failures; n > 5 {
				t.Errorf("%d failures without a pause", n)
			}
			emptyExt4(t, disk)
			if err := p.boxOf(storage); err != nil {
				t.Errorf("with room again: %v", err)
			}
			hits := p.stats().Hits
			eventually(t, "a claim", func() bool {
				if err := p.boxOf(storage); err != nil {
					t.Fatal(err)
				}
				return p.stats().Hits > hits
			})
			p.end()
			if left := s.state(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// What a killed launcher leaves is removed by the next one. A name is free again that a removal has left half
// done: here no process holds the directory, and the record is gone.
func TestTheNextLauncherRemovesOldBlanks(t *testing.T) {
	s := newSandboxes(t)
	p := newPoolLauncher(s, "--pool", "min=2,max=2")
	p.awaitReady(2)
	old := s.blanks()
	if err := p.launcher.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.launcher.wait() // it was killed
	p = newPoolLauncher(s, "--pool", "min=1,max=1")
	p.awaitReady(1)
	eventually(t, "the old blanks are gone", func() bool {
		return !slices.ContainsFunc(s.blanks(), func(dir string) bool { return slices.Contains(old, dir) })
	})
	if err := os.Mkdir(filepath.Join(s.root, "@sandboxes", "box"), 0o700); err != nil {
		t.Fatal(err)
	}
	box, err := p.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory}, sandbox.Named("box"))
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	p.end()
	if left := s.state(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// fillWithNames takes the last block and the last name of a disk.
func fillWithNames(t *testing.T, dir string) {
	t.Helper()
	fillExt4(t, dir)
	for i := 0; ; i++ {
		name := filepath.Join(dir, "filling-"+strings.Repeat("x", 200)+string(rune('0'+i%10))+time.Now().String())
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return
		}
		t.Cleanup(func() { os.Remove(name) })
	}
}

// The host has no pids for sandboxes any more. Making blanks fails, with a pause, and works later.
func TestPoolWithoutPids(t *testing.T) {
	s := newSandboxes(t)
	p := newPoolLauncher(s, "--pool", "min=3,max=3")
	p.awaitReady(3)
	files, err := filepath.Glob("/sys/fs/cgroup/pids/sandbox-runtime/pids.max")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		files = []string{"/sys/fs/cgroup/sandbox-runtime/pids.max"}
	}
	had := content(t, files[0])
	set := func(most string) {
		t.Helper()
		if err := os.WriteFile(files[0], []byte(most), 0); err != nil {
			t.Fatal(err)
		}
	}
	set("1")
	t.Cleanup(func() { set(had) })
	box, err := p.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory})
	if err != nil {
		t.Fatalf("a claim: %v", err)
	}
	eventually(t, "a failed blank", func() bool { return p.stats().Failed > 0 })
	if stats := p.stats(); stats.LastError == "" || stats.Hits != 1 {
		t.Errorf("%+v", stats)
	}
	failures := p.stats().Failed
	time.Sleep(500 * time.Millisecond)
	if n := p.stats().Failed - failures; n > 1 {
		t.Errorf("%d failures without a pause: %+v", n, p.stats())
	}
	set(had)
	if r, err := box.Run(t.Context(), "echo usable"); err != nil || string(r.Stdout) != "usable\n" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	p.awaitReady(3)
	if err := p.boxOf(sandbox.StorageMemory); err != nil {
		t.Error(err)
	}
	p.end()
}

// The program is replaced while blanks are up. The old launcher serves on; the next one makes blanks of its own,
// and never claims those that the old one has left.
func TestPoolOfAReplacedProgram(t *testing.T) {
	s := newSandboxes(t)
	program := filepath.Join(t.TempDir(), "sandbox-runtime")
	install := func(end string) {
		t.Helper()
		text := content(t, binary(t)) + end // another file, of the same program
		for _, err := range []error{os.WriteFile(program+".new", []byte(text), 0o755), os.Rename(program+".new", program)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	install("")
	t.Setenv("SANDBOX_RUNTIME_BIN", program)
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		old := newPoolLauncher(s, "--pool", "min=2,max=2")
		old.awaitReady(2)
		install(signal.String())
		for range 3 { // also with blanks that are made now
			old.awaitReady(1)
			if err := old.boxOf(sandbox.StorageMemory); err != nil {
				t.Errorf("by the old launcher: %v", err)
			}
		}
		if stats := old.stats(); stats.Hits != 3 {
			t.Errorf("the old launcher: %+v", stats)
		}
		if err := awaitPool(t.Context(), old.Manager, 2); err != nil {
			t.Fatal(err)
		}
		_ = old.launcher.cmd.Process.Signal(signal)
		old.launcher.wait()
		left := s.blanks()
		if n := len(left); (signal == unix.SIGTERM) != (n == 0) {
			t.Errorf("%v leaves %q", signal, left)
		}
		p := newPoolLauncher(s, "--pool", "min=1,max=1")
		p.awaitReady(1)
		fresh := slices.DeleteFunc(s.blanks(), func(dir string) bool { return slices.Contains(left, dir) })
		if len(fresh) != 1 {
			t.Fatalf("the new launcher has %q", fresh)
		}
		box, err := p.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory}, sandbox.Named("box"))
		if err != nil {
			t.Fatal(err)
		}
		names, err := os.ReadFile(filepath.Join(s.root, "@sandboxes", "box", "names.json"))
		if err != nil || !strings.Contains(string(names), filepath.Base(fresh[0])) {
			t.Errorf("another blank than %q was claimed: %s, %v", fresh, names, err)
		}
		eventually(t, "the blanks of the old launcher are gone", func() bool { return !slices.ContainsFunc(left, exists) })
		if r, err := box.Run(t.Context(), "echo usable"); err != nil || string(r.Stdout) != "usable\n" || p.stats().Hits != 1 {
			t.Errorf("%+v, %v, %+v", r, err, p.stats())
		}
		if err := box.Close(); err != nil {
			t.Error(err)
		}
		p.end()
	}
}
