package draft

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteReplacesAFileAndTheDraftOfAKilledProcess(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []File{
		{Path: dir + "/plain"},
		{Path: dir + "/named", Draft: dir + "/drafts/1", Mode: 0o400, IsDurable: true},
	} {
		draft := f.Draft
		if draft == "" {
			draft = f.Path + Suffix
		}
		if err := errors.Join(os.MkdirAll(dir+"/drafts", 0o700), os.WriteFile(draft, []byte("a longer rest"), 0o600)); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"one", "two"} {
			if err := f.WriteBytes([]byte(text)); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(f.Path); string(got) != text {
				t.Errorf("%s: %q, %v", f.Path, got, err)
			}
			if _, err := os.Lstat(draft); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("draft %s: %v", draft, err)
			}
		}
		want := f.Mode
		if want == 0 {
			want = 0o600
		}
		if info, err := os.Stat(f.Path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", f.Path, info, err)
		}
	}
}

func TestAFailedWriteKeepsTheOldFileAndNoDraft(t *testing.T) {
	dir := t.TempDir()
	f := File{Path: filepath.Join(dir, "file")}
	if err := f.WriteBytes([]byte("old")); err != nil {
		t.Fatal(err)
	}
	fault := errors.New("fault")
	err := f.Write(func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		return errors.Join(err, fault)
	})
	if !errors.Is(err, fault) {
		t.Error(err)
	}
	if text, err := os.ReadFile(f.Path); string(text) != "old" {
		t.Errorf("%q, %v", text, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("in the directory: %v", left)
	}
}

func TestNoLinkIsFollowedToTheDraft(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir+"/other", dir+"/file"+Suffix); err != nil {
		t.Fatal(err)
	}
	if err := (File{Path: dir + "/file"}).WriteBytes([]byte("text")); !errors.Is(err, unix.ELOOP) {
		t.Error(err)
	}
	if _, err := os.Lstat(dir + "/other"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
