package tenant

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A Close beside other calls frees the number of the workspace's directory. The next opened directory gets the number,
// and is no part of the workspace.
func TestCloseBesideOpenReachesNoOtherDirectory(t *testing.T) {
	ours, other := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 300 { // without descriptor.Use about 1 of 1,000 rounds failed
		w, err := OpenWorkspace(ours, "/workspace")
		if err != nil {
			t.Fatal(err)
		}
		var calls, begun sync.WaitGroup
		begun.Add(4)
		for range 4 {
			calls.Go(func() {
				tried := sync.OnceFunc(begun.Done)
				defer tried()
				for {
					f, err := w.Open("secret", os.O_RDONLY, 0)
					if err == nil {
						f.Close()
						t.Error("a file outside the workspace was opened")
						return
					}
					if !errors.Is(err, os.ErrNotExist) {
						return
					}
					tried()
				}
			})
		}
		calls.Go(func() {
			begun.Wait()
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			for range 4 {
				if dir, err := os.Open(other); err == nil {
					defer dir.Close()
				}
			}
		})
		calls.Wait()
		if _, err := w.Open("secret", os.O_RDONLY, 0); !errors.Is(err, os.ErrClosed) {
			t.Fatalf("after Close: %v", err)
		}
		if t.Failed() {
			return
		}
	}
}
