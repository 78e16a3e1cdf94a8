package container

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

var program string // of testdata/init.c

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "container-test")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "init")
	if out, err := exec.Command("cc", "-O1", "-static", "-o", program, "testdata/init.c").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "compile testdata/init.c: %v\n%s", err, out)
		os.Exit(1)
	}
	SetLog(slog.New(slog.DiscardHandler))
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// place is where one test's container lives; nothing of it may be left at the
// test's end.
type place struct {
	t             *testing.T
	dir, root, id string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	testhost.NeedRoot(t, "containers in cgroups of their own")
	dir, err := os.MkdirTemp("", "srt")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t, dir, filepath.Join(dir, "state"), "c" + filepath.Base(dir)}
	if err := os.Chmod(dir, 0o755); err != nil { // ids of a user namespace pass through
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c, err := Load(p.root, p.id); err == nil {
			t.Error("container left")
			_ = c.Kill()
			_ = c.Destroy()
		}
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			if left, _ := filepath.Glob(pattern + p.id); len(left) > 0 {
				t.Errorf("cgroups left: %v", left)
			}
		}
		os.RemoveAll(dir)
	})
	return p
}

// spec runs the test program, found on PATH in the root, with args.
func (p *place) spec(args ...string) *specs.Spec {
	p.t.Helper()
	bin := filepath.Join(p.dir, "rootfs", "bin")
	for _, dir := range []string{bin, filepath.Join(bin, "../proc"), filepath.Join(bin, "../dev")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := os.Link(program, filepath.Join(bin, "init")); err != nil && !errors.Is(err, os.ErrExist) {
		p.t.Fatal(err)
	}
	s := ExampleSpec(false)
	s.Root.Path = filepath.Join(p.dir, "rootfs")
	s.Process.Args = append([]string{"init"}, args...)
	s.Process.Terminal = false
	s.Linux.CgroupsPath = "/" + p.id
	return s
}

func (p *place) create(s *specs.Spec) *Container {
	p.t.Helper()
	c, err := Create(p.root, p.id, s, Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := errors.Join(c.Kill(), c.Destroy()); err != nil {
			p.t.Error(err)
		}
	})
	return c
}

// Wait reaps the process and returns how it ended.
func (ch *Child) Wait() (unix.WaitStatus, error) {
	state, err := ch.lp.Wait()
	if state == nil {
		return 0, fmt.Errorf("wait for process %d: %w", ch.pid, err)
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	if !ok {
		return 0, fmt.Errorf("wait for process %d: unknown status %T", ch.pid, state.Sys())
	}
	return unix.WaitStatus(ws), nil
}
