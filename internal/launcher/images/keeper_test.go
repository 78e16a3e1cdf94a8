package images

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A launcher outlives its store: an operator removes, replaces or empties the directory.
func TestAKeeperOpensAStoreAgain(t *testing.T) {
	changes := map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"renamed": func(dir string) error {
			return errors.Join(os.RemoveAll(dir+".old"), os.Rename(dir, dir+".old"))
		},
		"emptied": func(dir string) error {
			entries, err := os.ReadDir(dir)
			for _, e := range entries {
				if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
					return err
				}
			}
			return err
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "images")
			k := New(dir)
			defer k.Close()
			for range 2 {
				end, _, err := k.Pull(t.Context(), User{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				end()
				if all, err := k.List(t.Context(), 0); err != nil || len(all) != 0 {
					t.Errorf("%v, %v", all, err)
				}
				if err := change(dir); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
