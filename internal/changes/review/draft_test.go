package review

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A saved file is as private as each other new file of the program.
func TestDraftsHaveTheModeOfTheUmask(t *testing.T) {
	dir := t.TempDir()
	for mask, want := range map[int]os.FileMode{0o077: 0o600, 0o022: 0o644, 0o002: 0o664, 0: 0o666} {
		defer unix.Umask(unix.Umask(mask))
		d, err := newDraft(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		name := filepath.Join(dir, want.String())
		if err := d.publish(name); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("with mask %#o: %v", mask, info.Mode())
		}
	}
}
