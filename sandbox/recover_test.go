package sandbox

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestRecoveryDoesNotWaitForAPipeInTheTreesPlace(t *testing.T) {
	testhost.Concurrent(t)
	tree := filepath.Join(t.TempDir(), "tree")
	if err := unix.Mkfifo(tree, 0o600); err != nil {
		t.Fatal(err)
	}
	returned := make(chan error, 1)
	go func() {
		_, err := recoverTrees(t.Context(), nil, []string{tree})
		returned <- err
	}()
	select {
	case err := <-returned:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for a writer")
	}
}
