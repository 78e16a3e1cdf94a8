package layer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// The sandbox has renamed a directory of a path since the path was listed. No layer has the directory any more, or a file
// is in its place.
func TestOpenBelowAVanishedDirectory(t *testing.T) {
	upper, lower := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(lower, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Stack{}
	for _, dir := range []string{upper, lower} {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s.Layers = append(s.Layers, Layer{Dir: f})
	}
	for _, name := range []string{"gone", "gone/file", "gone/deep/file", "gone/deep/deeper/file", "file/deep/file"} {
		if _, err := s.Open(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open(%q): %v", name, err)
		}
		if _, err := s.OpenListed(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("OpenListed(%q): %v", name, err)
		}
		if _, err := s.Type(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Type(%q): %v", name, err)
		}
	}
}
