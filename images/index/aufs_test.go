package index_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
)

// Docker wrote layers like this one before 1.8: AUFS's own files are in the root, and hard links of the layer name some
// of them.
func TestFilesOfAUFSAreLeftOut(t *testing.T) {
	lower := layer(t, file("gone", "x"), file("d/kept", "x"))
	root := mounted(t, lower, layer(t, file(".wh..wh.aufs", ""), dir(".wh..wh.orph"), file(".wh..wh.orph/1", "orphan"), dir(".wh..wh.plnk"),
		file(".wh..wh.plnk/99.1", "linked"), symlink(".wh..wh.plnk/100.1", "x"), link("one", ".wh..wh.plnk/99.1"), link("d/two", "/.wh..wh.plnk/99.1"),
		file(".wh.gone", "")))
	var names []string
	for _, dir := range []string{root, filepath.Join(root, "d")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name()[0] == '.' || !e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	if !slices.Equal(names, []string{"one", "kept", "two"}) {
		t.Errorf("%q", names)
	}
	if one, two := describe(t, root+"/one"), describe(t, root+"/d/two"); one != two || content(root+"/one") != "linked" {
		t.Errorf("%s and %s", one, two)
	}
	// The files are those of one layer, and are counted.
	refused(t, index.Limits{}, layer(t, file(".wh..wh.plnk/1", "x")), layer(t, link("a", ".wh..wh.plnk/1")))
	var many []item
	for i := range 20 {
		many = append(many, file(fmt.Sprint(".wh..wh.plnk/", i), "x"))
	}
	limit := (*index.LimitError)(nil)
	if err := refused(t, index.Limits{Files: 19}, layer(t, many...)); !errors.As(err, &limit) {
		t.Error(err)
	}
}

func TestAnImageWithoutLayersHasMountPoints(t *testing.T) {
	root := mounted(t)
	if got := describe(t, root+"/proc"); got[:6] != "040755" {
		t.Error(got)
	}
}
