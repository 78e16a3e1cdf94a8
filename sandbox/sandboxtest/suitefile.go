package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// fileClaims are about [sandbox.Files].
var fileClaims = []claim{
	{"files are written and read", "", checkContent},
	{"files are those of the commands", "", checkSameFiles},
	{"files are listed, moved and removed", "", checkDirectories},
	{"an error about a file has the given name", "", checkFileErrors},
	{"a write that fails leaves nothing", "", checkFailedWrite},
	{"a watch tells changes", "", checkWatch},
}

func checkContent(w *world) {
	ctx, files := w.Context(), w.box().Files()
	for _, size := range []int{0, 5, 256 << 10, 3<<20 + 7} {
		name, data := fmt.Sprintf("of %d", size), bytes.Repeat([]byte("7 bytes"), size/7+1)[:size]
		w.must(files.WriteFile(ctx, name, data, 0o640))
		got, err := files.ReadFile(ctx, "/workspace/"+name)
		if err != nil || !bytes.Equal(got, data) {
			w.Errorf("%d bytes came back as %d, %v", size, len(got), err)
		}
		info, err := files.Stat(ctx, name)
		if err != nil || info.Size != int64(size) || info.Mode != 0o640 || info.Name != name || time.Since(info.ModTime).Abs() > time.Hour {
			w.Errorf("got %+v, %v", info, err)
		}
	}
	r, err := files.Open(ctx, "of 3145735", 1<<20, 300<<10)
	w.must(err)
	defer r.Close()
	part, err := io.ReadAll(r)
	if whole := bytes.Repeat([]byte("7 bytes"), 1<<20); err != nil || !bytes.Equal(part, whole[1<<20:][:300<<10]) {
		w.Errorf("a part of it has %d bytes, %v", len(part), err)
	}
	// A replaced file keeps its mode, and a link leads to the replaced file.
	w.must(files.Symlink(ctx, "of 5", "link"))
	w.must(files.WriteFile(ctx, "link", []byte("new"), 0))
	if info, err := files.Lstat(ctx, "link"); err != nil || info.Mode.Type() != fs.ModeSymlink || info.Link != "of 5" {
		w.Errorf("the link: %+v, %v", info, err)
	}
	if info, err := files.Stat(ctx, "of 5"); err != nil || info.Size != 3 || info.Mode != 0o640 {
		w.Errorf("behind the link: %+v, %v", info, err)
	}
}

func checkDirectories(w *world) {
	ctx, files := w.Context(), w.box().Files()
	must := w.must
	must(files.MkdirAll(ctx, "a/b", 0o755))
	must(files.Mkdir(ctx, "a/dir", 0o700))
	want := map[string]fs.FileMode{"b": fs.ModeDir | 0o755, "dir": fs.ModeDir | 0o700, "new\nline \xff": 0o600}
	must(files.WriteFile(ctx, "a/new\nline \xff", nil, 0o600))
	for n := range 250 {
		name := strings.Repeat("n", 250) + fmt.Sprint(n)
		must(files.WriteFile(ctx, "a/"+name, nil, 0o644))
		want[name] = 0o644
	}
	got := map[string]fs.FileMode{}
	for info, err := range files.ReadDir(ctx, "a") {
		must(err)
		got[info.Name] = info.Mode
	}
	if !maps.Equal(got, want) {
		w.Errorf("%d entries, want %d", len(got), len(want))
	}
	for _, err := range files.ReadDir(ctx, "a") {
		must(err)
		break // ends the list
	}
	must(files.Rename(ctx, "a/dir", "a/b/moved"))
	must(files.Chmod(ctx, "a/b/moved", 0o711))
	if info, err := files.Stat(ctx, "a/b/moved"); err != nil || info.Mode != fs.ModeDir|0o711 {
		w.Errorf("got %+v, %v", info, err)
	}
	if err := files.Remove(ctx, "a/b"); !errors.Is(err, syscall.ENOTEMPTY) {
		w.Errorf("a directory that is not empty: %v", err)
	}
	must(files.Remove(ctx, "a/b/moved"))
	must(files.RemoveAll(ctx, "a"))
	must(files.RemoveAll(ctx, "a"))
	if _, err := files.Stat(ctx, "a"); !errors.Is(err, fs.ErrNotExist) {
		w.Errorf("got %v", err)
	}
}

func checkFileErrors(w *world) {
	ctx, files := w.Context(), w.box().Files()
	w.must(errors.Join(files.Mkdir(ctx, "dir", 0o755), files.Symlink(ctx, "loop", "loop"), files.WriteFile(ctx, "file", nil, 0)))
	read := func(name string) error { _, err := files.ReadFile(ctx, name); return err }
	write := func(name string) error { return files.WriteFile(ctx, name, nil, 0) }
	for _, test := range []struct {
		name string
		do   func(string) error
		want error
	}{
		{"none", read, fs.ErrNotExist},
		{"/workspace/none/below", write, fs.ErrNotExist},
		{"dir", read, syscall.EISDIR},
		{"dir", write, syscall.EISDIR},
		{"loop", read, syscall.ELOOP},
		{"dir/.", write, syscall.EISDIR},
		{"", read, fs.ErrNotExist},
		{"file/below", write, syscall.ENOTDIR},
		{"a\x00b", read, syscall.EINVAL},
		{strings.Repeat("x", 256), write, syscall.ENAMETOOLONG},
		{strings.Repeat("x/", 3000), read, syscall.ENAMETOOLONG},
		{"dir", func(n string) error { return files.Mkdir(ctx, n, 0o755) }, fs.ErrExist},
		{"file", func(n string) error { _, err := files.Watch(ctx, n); return err }, syscall.ENOTDIR},
		{"file", func(n string) error {
			for _, err := range files.ReadDir(ctx, n) {
				return err
			}
			return nil
		}, syscall.ENOTDIR},
	} {
		err := test.do(test.name)
		var path *fs.PathError
		if !errors.Is(err, test.want) || !errors.As(err, &path) || path.Path != test.name {
			w.Errorf("%.30q: got %v, want %v", test.name, err, test.want)
		}
	}
}

func checkFailedWrite(w *world) {
	ctx, files := w.Context(), w.box().Files()
	w.must(files.WriteFile(ctx, "f", []byte("old"), 0))
	broken := errors.New("broken")
	half := func(end io.Reader) io.Reader {
		return io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), end)
	}
	if err := files.Write(ctx, "f", half(readerFunc(func([]byte) (int, error) { return 0, broken })), 0); !errors.Is(err, broken) {
		w.Errorf("got %v", err)
	}
	stopped, stop := context.WithCancel(ctx)
	err := files.Write(stopped, "f", half(readerFunc(func([]byte) (int, error) { stop(); return 1, nil })), 0)
	if !errors.Is(err, context.Canceled) {
		w.Errorf("got %v", err)
	}
	if got, err := files.ReadFile(ctx, "f"); err != nil || string(got) != "old" {
		w.Errorf("got %q, %v", got, err)
	}
	w.eventually("the half is removed", func() bool {
		names := []string{}
		for info, err := range files.ReadDir(ctx, ".") {
			w.must(err)
			names = append(names, info.Name)
		}
		return slices.Equal(names, []string{"f"})
	})
}

func checkWatch(w *world) {
	ctx, files := w.Context(), w.box().Files()
	w.must(files.MkdirAll(ctx, "a/b", 0o755))
	watch, err := files.Watch(ctx, ".")
	w.must(err)
	defer w.close(watch)
	event := func(kind sandbox.FileEventType, path string, dir bool) sandbox.FileEvent {
		return sandbox.FileEvent{Type: kind, Path: "/workspace/" + path, Dir: dir}
	}
	for _, step := range []struct {
		do   func() error
		want sandbox.FileEvent
	}{
		{func() error { return files.WriteFile(ctx, "a/b/f", []byte("x"), 0) }, event(sandbox.FileCreated, "a/b/f", false)},
		{func() error { return files.Chmod(ctx, "a/b/f", 0o600) }, event(sandbox.FileModified, "a/b/f", false)},
		{func() error { return files.MkdirAll(ctx, "c/d/e", 0o755) }, event(sandbox.FileCreated, "c/d/e", true)},
		{func() error { return files.WriteFile(ctx, "c/d/e/g", nil, 0) }, event(sandbox.FileCreated, "c/d/e/g", false)},
		{func() error { return files.Rename(ctx, "c", "moved") }, event(sandbox.FileCreated, "moved/d/e/g", false)},
		{func() error { return files.WriteFile(ctx, "moved/d/h", nil, 0) }, event(sandbox.FileCreated, "moved/d/h", false)},
		{func() error { return files.RemoveAll(ctx, "moved") }, event(sandbox.FileRemoved, "moved", true)},
	} {
		w.must(step.do())
		w.awaitFileEvent(watch, step.want)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := watch.Next(gone); !errors.Is(err, context.Canceled) {
		w.Errorf("got %v", err)
	}
	w.must(watch.Close())
	if _, err := watch.Next(ctx); !errors.Is(err, sandbox.ErrClosed) {
		w.Errorf("closed: %v", err)
	}
}

// awaitFileEvent takes events until one is as wanted.
func (w *world) awaitFileEvent(watch *sandbox.FileWatch, want sandbox.FileEvent) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), w.patience)
	defer cancel()
	var seen []sandbox.FileEvent
	for {
		e, err := watch.Next(ctx)
		if err != nil {
			w.Fatalf("wait for %+v: %v; there were %+v", want, err, seen)
		}
		if e == want {
			return
		}
		seen = append(seen, e)
	}
}

func checkSameFiles(w *world) {
	sb := w.box()
	w.must(sb.Files().WriteFile(w.Context(), "written", []byte("by a program"), 0o644))
	w.output(sb, "cat written; echo by a command > printed", "by a program")
	if got, err := sb.Files().ReadFile(w.Context(), "printed"); err != nil || string(got) != "by a command\n" {
		w.Errorf("%q, %v", got, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
