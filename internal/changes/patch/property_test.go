package patch_test

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
)

// TestPatchGivesWhatTheSandboxSaw does random things to random trees, all but
// what no patch can have.
func TestPatchGivesWhatTheSandboxSaw(t *testing.T) {
	for _, tool := range []string{"git", "patch"} {
		t.Run(tool, func(t *testing.T) {
			for seed := range uint64(60) {
				t.Run("", func(t *testing.T) {
					o := layertest.New(t)
					r := layertest.NewRandom(t, seed)
					r.Binary = tool == "git" && seed%2 == 0
					if tool == "patch" {
						r.Names = r.Names[:len(r.Names)-1] // it adds suffixes
						r.Settle()
					}
					r.Grow(t, o.Lower, r.IntN(60))
					o.Mount(t)
					r.Edit(t, o.Merged, r.IntN(30))
					d := diff(t, o)
					if !strings.Contains(d, "\ndiff --git") {
						return // directories at most
					}
					layertest.Same(t, layertest.Tree(t, applied(t, o, tool, d), 0), layertest.Tree(t, o.Merged, 0))
				})
			}
		})
	}
}
