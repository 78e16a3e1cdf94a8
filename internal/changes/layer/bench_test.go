package layer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// tenThousand are changes over a base of as many files: a third each is created,
// modified and deleted, in a hundred directories.
func tenThousand(b testing.TB) *overlay {
	o := newOverlay(b)
	name := func(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("dir%02d/file%04d", i%100, i)) }
	for i := range 100 {
		o.mkdir(filepath.Join(o.base, fmt.Sprintf("dir%02d", i)))
	}
	for i := range 10_000 {
		if i%3 > 0 {
			write(b, name(o.base, i), "before")
		}
	}
	o.push()
	for i := range 10_000 {
		if i%3 < 2 {
			write(b, name(o.merged, i), "after it")
		} else if err := os.Remove(name(o.merged, i)); err != nil {
			b.Fatal(err)
		}
	}
	return o
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkChanges lists 10,000 changes: by name in 15 ms at most, with all that
// a stat tells in 100 ms.
func BenchmarkChanges(b *testing.B) {
	o := tenThousand(b)
	o.listAll(b, 10_000)
}

// listAll lists as many changes as there are, by name and with all that a stat tells.
func (o *overlay) listAll(b *testing.B, want int) {
	b.Helper()
	s := o.stack()
	for name, options := range map[string]Options{"Names": {Names: true}, "Stat": {}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for _, err := range s.Changes(options) {
					must(b, err)
					n++
				}
				if n != want {
					b.Fatalf("%d changes", n)
				}
			}
		})
	}
}
