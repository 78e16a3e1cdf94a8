package filtercache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
)

func agentProfile(t testing.TB, name string) *specs.LinuxSeccomp {
	t.Helper()
	p, err := seccomp.Profile(name)
	if err == nil {
		host, probed := cgroups.Probe()
		if probed != nil {
			t.Fatal(probed)
		}
		p, err = seccomp.ForAgent(p, host.Mode == cgroups.V2)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// opened reads what open returns to the end.
func opened(t testing.TB, c Cache, p *specs.LinuxSeccomp) (content []byte, note string) {
	t.Helper()
	f, note, err := c.Open(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content, err = io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return content, note
}

// cached are the paths of the cache's files.
func cached(t testing.TB, c Cache) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.Data, "seccomp"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range entries {
		paths = append(paths, filepath.Join(c.Data, "seccomp", e.Name()))
	}
	return paths
}

// What the agent gets, from the cache or not, is what libcontainer would load.
func TestFilterIsTheCompiledOne(t *testing.T) {
	c := Cache{filepath.Join(t.TempDir(), "data")}
	for i, name := range []string{"default", "strict", "debug"} {
		p := agentProfile(t, name)
		want, err := container.CompileSeccomp(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{"compiler", "cache"} {
			content, note := opened(t, c, p)
			if note != "" {
				t.Errorf("%s, %s: note %q", name, from, note)
			}
			flags, count := binary.NativeEndian.Uint32(content), binary.NativeEndian.Uint32(content[4:])
			if flags != want.Flags || int(count) != len(want.Program)/8 || !bytes.Equal(content[8:], want.Program) {
				t.Errorf("%s, %s: flags %#x, %d instructions: not the compiled filter", name, from, flags, count)
			}
			if n := len(cached(t, c)); n != i+1 {
				t.Errorf("%s, %s: %d files in the cache", name, from, n)
			}
		}
	}
}

// A filter from the cache costs no compilation.
func TestSecondFilterIsFromTheCache(t *testing.T) {
	c := Cache{t.TempDir()}
	p := agentProfile(t, "strict")
	opened(t, c, p)
	// A whole file of that name, so one can tell.
	path := cached(t, c)[0]
	marked := append(encodeFilter(container.Filter{Program: make([]byte, 8)}), "mark"...)
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := storeFilter(dir, filepath.Base(path), marked); err != nil {
		t.Fatal(err)
	}
	if content, _ := opened(t, c, p); !bytes.Equal(content, marked) {
		t.Error("compiled though there was a file")
	}
	// Another profile has another name.
	if content, _ := opened(t, c, agentProfile(t, "default")); bytes.Equal(content, marked) {
		t.Error("the file of another profile was used")
	}
}

func TestFilterCannotBeChanged(t *testing.T) {
	c := Cache{t.TempDir()}
	f, _, err := c.Open(t.Context(), agentProfile(t, "strict"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v", err)
	}
	if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: %v", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("seal again: %v", err)
	}
}

// rewrite replaces a file's content and keeps its mode.
func rewrite(path string, content []byte) error {
	return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, content, 0), os.Chmod(path, 0o400))
}

// Each damage to a file has it made anew.
func TestFilterThatCannotBeTrustedIsMadeAnew(t *testing.T) {
	testhost.NeedRoot(t, "files of other users")
	p := agentProfile(t, "strict")
	evil := encodeFilter(container.Filter{Program: []byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}}) // allows all
	for name, spoil := range map[string]func(path string, whole []byte) error{
		"empty":             func(path string, _ []byte) error { return rewrite(path, nil) },
		"cut off":           func(path string, whole []byte) error { return rewrite(path, whole[:len(whole)-8]) },
		"other content":     func(path string, whole []byte) error { return rewrite(path, append(evil, whole[len(whole)-32:]...)) },
		"another's content": func(path string, _ []byte) error { return rewrite(path, append(evil, filterSum("other", evil)...)) },
		"zeros":             func(path string, whole []byte) error { return rewrite(path, make([]byte, len(whole))) },
		"too long":          func(path string, _ []byte) error { return rewrite(path, make([]byte, 1<<20)) },
		"another's file": func(path string, _ []byte) error {
			return errors.Join(rewrite(path, append(evil, filterSum(filepath.Base(path), evil)...)), os.Chown(path, 1000, 0))
		},
		"writable by all": func(path string, _ []byte) error {
			return errors.Join(rewrite(path, append(evil, filterSum(filepath.Base(path), evil)...)), os.Chmod(path, 0o602))
		},
		"writable by a group": func(path string, _ []byte) error {
			return errors.Join(rewrite(path, append(evil, filterSum(filepath.Base(path), evil)...)), os.Chmod(path, 0o620))
		},
		"a link": func(path string, _ []byte) error {
			elsewhere := filepath.Join(filepath.Dir(path), "elsewhere")
			err := os.WriteFile(elsewhere, append(evil, filterSum(filepath.Base(path), evil)...), 0o400)
			return errors.Join(err, os.Remove(path), os.Symlink(elsewhere, path))
		},
		"a FIFO": func(path string, _ []byte) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := Cache{t.TempDir()}
			want, _ := opened(t, c, p)
			path := cached(t, c)[0]
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := spoil(path, whole); err != nil {
				t.Fatal(err)
			}
			have, note := opened(t, c, p)
			if !bytes.Equal(have, want) || note != "" {
				t.Errorf("%d bytes for %d, note %q", len(have), len(want), note)
			}
			again, err := os.ReadFile(path)
			info, statErr := os.Lstat(path)
			if err := errors.Join(err, statErr); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(again, whole) || info.Mode() != 0o400 {
				t.Errorf("the file was not replaced: mode %v", info.Mode())
			}
		})
	}
}

// Where files cannot be kept, a sandbox starts all the same and says so.
func TestFilterWithoutACache(t *testing.T) {
	testhost.NeedRoot(t, "directories of other users, and a mount")
	p := agentProfile(t, "strict")
	want, _ := opened(t, Cache{t.TempDir()}, p)
	for name, spoil := range map[string]func(dir string) error{
		"writable by all":     func(dir string) error { return os.Chmod(dir, 0o703) },
		"writable by a group": func(dir string) error { return os.Chmod(dir, 0o730) },
		"another's":           func(dir string) error { return os.Chown(dir, 1000, 1000) },
		"data of another's":   func(dir string) error { return os.Chown(filepath.Dir(dir), 1000, 1000) },
		"a link": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir+"2", dir))
		},
		"a file": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) },
		"a directory in its place": func(dir string) error {
			file := cached(t, Cache{filepath.Dir(dir)})[0]
			return errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Cache{t.TempDir()}
			opened(t, c, p)
			// One that would be used, and allows all.
			path := cached(t, c)[0]
			evil := encodeFilter(container.Filter{Program: []byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}})
			if err := rewrite(path, append(evil, filterSum(filepath.Base(path), evil)...)); err != nil {
				t.Fatal(err)
			}
			if err := spoil(filepath.Join(c.Data, "seccomp")); err != nil {
				t.Fatal(err)
			}
			have, note := opened(t, c, p)
			if !bytes.Equal(have, want) {
				t.Error("not the compiled filter")
			}
			if !strings.Contains(note, "seccomp filter is not kept") || !strings.Contains(note, c.Data) {
				t.Errorf("note %q", note)
			}
		})
	}
}

func TestFullDiskKeepsNoFilter(t *testing.T) {
	testhost.NeedRoot(t, "a mount")
	c := Cache{t.TempDir()}
	thread, err := mountns.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer thread.Stop()
	err = thread.Do(func() error {
		if err := unix.Mount("tmpfs", c.Data, "tmpfs", 0, "size=4096,mode=700"); err != nil {
			return err
		}
		f, note, err := c.Open(context.Background(), agentProfile(t, "default"))
		if err != nil {
			return err
		}
		f.Close()
		if !strings.Contains(note, "no space left on device") {
			t.Errorf("note %q", note)
		}
		if left := cached(t, c); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestManyMakersOfOneFilter(t *testing.T) {
	c := Cache{t.TempDir()}
	p := agentProfile(t, "strict")
	var all sync.WaitGroup
	var contents [8][]byte
	for i := range contents {
		all.Go(func() {
			f, note, err := c.Open(context.Background(), p)
			if err != nil || note != "" {
				t.Errorf("%q, %v", note, err)
				return
			}
			defer f.Close()
			contents[i], _ = io.ReadAll(f)
		})
	}
	all.Wait()
	for _, content := range contents {
		if len(content) == 0 || !bytes.Equal(content, contents[0]) {
			t.Errorf("%d bytes beside %d", len(content), len(contents[0]))
		}
	}
	if left := cached(t, c); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
}

func TestCacheOfFiltersIsBounded(t *testing.T) {
	c := Cache{t.TempDir()}
	dir, err := statedir.OpenData(c.Data, "seccomp")
	if err != nil {
		t.Fatal(err)
	}
	dir.Close()
	old := time.Now().Add(-time.Hour)
	for i := range cachedFilters {
		path := filepath.Join(dir.Name(), fmt.Sprint(i))
		if err := errors.Join(os.WriteFile(path, nil, 0o400), os.Chtimes(path, old, old.Add(time.Duration(i)*time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	opened(t, c, agentProfile(t, "strict"))
	files := cached(t, c)
	if len(files) != cachedFilters || slices.Contains(files, filepath.Join(dir.Name(), "0")) ||
		!slices.Contains(files, filepath.Join(dir.Name(), "1")) {
		t.Errorf("%d files: %v", len(files), files)
	}
	name, err := filterName(agentProfile(t, "strict"))
	if err != nil || !slices.Contains(files, filepath.Join(dir.Name(), name)) {
		t.Errorf("the new one is not there: %v", err)
	}
}

func BenchmarkCachedFilter(b *testing.B) {
	c := Cache{b.TempDir()}
	p := agentProfile(b, "default")
	opened(b, c, p)
	for b.Loop() {
		f, _, err := c.Open(b.Context(), p)
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}
