package integration

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tarred is the tar of a directory with the shape's file, by tar(1).
func (s *shaper) tarred(arguments ...string) []byte {
	dir := s.t.TempDir()
	writeFile(s.t, filepath.Join(dir, "shape"), s.name+"\n")
	long := filepath.Join(dir, strings.Repeat("long/", 40))
	if err := os.MkdirAll(long, 0o755); err != nil {
		s.t.Fatal(err)
	}
	writeFile(s.t, filepath.Join(long, "name"), s.name+"\n")
	got := run(s.t, exec.Command("sh", append([]string{"-c", `cd "$1" && shift && truncate -s 1M holes && printf end >>holes && exec tar -cf - "$@" .`, "sh", dir}, arguments...)...))
	if got.code != 0 {
		s.t.Fatalf("%+v", got)
	}
	return []byte(got.stdout)
}

// header is the tar of one entry in a format, without the end of the archive.
func (s *shaper) header(h tar.Header, content string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h.Size = int64(len(content))
	if err := w.WriteHeader(&h); err != nil {
		s.t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		s.t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		s.t.Fatal(err)
	}
	return b.Bytes()
}

// layers is an image of layers with these entries, above the base.
func layers(all func(s *shaper) [][]imageEntry) func(*shaper) object {
	return func(s *shaper) object {
		var tars [][]byte
		for _, entries := range all(s) {
			tars = append(tars, tarOfImage(s.t, entries...))
		}
		return s.image(shapedImage{tars: tars})
	}
}

func tarOf(tar func(s *shaper) []byte) func(*shaper) object {
	return func(s *shaper) object { return s.image(shapedImage{tars: [][]byte{tar(s)}}) }
}

func tarShapes() []imageShape {
	return append(append(formatShapes(), entryShapes()...), linkShapes()...)
}

func formatShapes() []imageShape {
	const row = "tar of format v7, ustar, GNU or PAX, with sparse files, large numbers or global headers"
	var all []imageShape
	for name, arguments := range map[string][]string{
		"ustar": {"--format=ustar"}, "GNU with long names": {"--format=gnu"}, "PAX with long names": {"--format=posix"},
		"GNU sparse": {"--format=gnu", "--sparse"}, "PAX sparse 0.0": {"--format=posix", "--sparse", "--sparse-version=0.0"},
		"PAX sparse 0.1": {"--format=posix", "--sparse", "--sparse-version=0.1"}, "PAX sparse 1.0": {"--format=posix", "--sparse", "--sparse-version=1.0"},
	} {
		all = append(all, imageShape{row: row, name: name, make: tarOf(func(s *shaper) []byte { return s.tarred(arguments...) }),
			script: "busybox cat /shape; busybox cmp /shape /" + strings.Repeat("long/", 40) + "name && busybox tail -c 3 /holes && busybox stat -c %s /holes", want: name + "\nend1048579\n"})
	}
	return append(all, imageShape{row: row, name: "v7", make: tarOf(func(s *shaper) []byte { return s.tarred("--format=v7", "--exclude=./long") })},
		imageShape{row: row, name: "base-256", make: tarOf(func(s *shaper) []byte {
			return s.header(tar.Header{Name: "shape", Mode: 0o644, Uid: 3_000_000, Gid: 4_000_000, Format: tar.FormatGNU, Typeflag: tar.TypeReg}, s.name+"\n")
		})},
		imageShape{row: row, name: "global header of git archive", make: tarOf(func(s *shaper) []byte {
			return append(s.header(tar.Header{Name: "pax_global_header", Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "0123456789"}}, ""), s.own()...)
		})})
}

func entryShapes() []imageShape {
	const row = "tar with `./`, `/`, absolute or repeated names, files over directories, no end, or anything behind its end"
	shape := func(s *shaper, name string) imageEntry { return imageFile(name, s.name+"\n") }
	return []imageShape{
		{row: row, name: "dot names", make: layers(func(s *shaper) [][]imageEntry { return [][]imageEntry{{imageDir("./"), shape(s, "./shape")}} })},
		{row: row, name: "absolute names", make: layers(func(s *shaper) [][]imageEntry { return [][]imageEntry{{imageDir("/"), shape(s, "/shape")}} })},
		{row: row, name: "entry of the root with a mode", make: layers(func(s *shaper) [][]imageEntry {
			root := imageDir("/")
			root.Mode, root.Uid = 0o700, 5
			return [][]imageEntry{{root, shape(s, "shape")}}
		})},
		{row: row, name: "repeated names", make: layers(func(s *shaper) [][]imageEntry { return [][]imageEntry{{imageFile("shape", "old"), shape(s, "shape")}} })},
		{row: row, name: "file over a directory", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageDir("shape"), imageFile("shape/below", "x")}, {shape(s, "shape")}}
		})},
		{row: row, name: "directory over a file", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageFile("d", "x")}, {imageDir("d"), shape(s, "d/shape")}}
		}), script: "busybox cat /d/shape"},
		{row: row, name: "no entries of directories", make: layers(func(s *shaper) [][]imageEntry { return [][]imageEntry{{shape(s, "a/b/shape")}} }), script: "busybox cat /a/b/shape"},
		{row: row, name: "no end", make: tarOf(func(s *shaper) []byte { b := s.own(); return b[:len(b)-1024] })},
		{row: row, name: "half an end", make: tarOf(func(s *shaper) []byte { b := s.own(); return b[:len(b)-512] })},
		{row: row, name: "garbage behind the end", make: tarOf(func(s *shaper) []byte { return append(s.own(), "garbage that is no block"...) })},
		{row: row, name: "blocks behind the end", make: tarOf(func(s *shaper) []byte { return append(s.own(), make([]byte, 10_240)...) })},
	}
}

func linkShapes() []imageShape {
	const row, refused = "hard links to lower layers, whiteouts and opaque directories, also of missing files, and files of AUFS", "hard link before its target; device 0:0"
	shape := func(s *shaper, name string) imageEntry { return imageFile(name, s.name+"\n") }
	return []imageShape{
		{row: row, name: "hard link to a lower layer", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{shape(s, "first")}, {imageLink("shape", "first")}}
		})},
		{row: row, name: "absolute hard link", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{shape(s, "first"), imageLink("shape", "/first")}}
		})},
		{row: row, name: "hard link of a removed file", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{shape(s, "first"), imageLink("shape", "first")}, {imageFile(".wh.first", "")}}
		})},
		{row: row, name: "whiteout", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageFile("gone", "x"), shape(s, "shape")}, {imageFile(".wh.gone", "")}}
		}), script: "test ! -e /gone && busybox cat /shape"},
		{row: row, name: "whiteouts of nothing", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageFile(".wh.none", ""), imageFile("no/.wh.such", ""), shape(s, "shape")}}
		})},
		{row: row, name: "whiteout that is a hard link", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageFile("gone", "x"), imageFile("lost", "x"), shape(s, "shape")}, {imageFile(".wh.gone", ""), imageLink(".wh.lost", ".wh.gone")}}
		}), script: "test ! -e /gone && test ! -e /lost && busybox cat /shape"},
		{row: row, name: "opaque directory behind its entries", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageFile("d/gone", "x")}, {imageDir("d"), shape(s, "d/shape"), imageFile("d/.wh..wh..opq", "")}}
		}), script: "test ! -e /d/gone && busybox cat /d/shape"},
		{row: row, name: "files of AUFS", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageFile(".wh..wh.aufs", ""), imageDir(".wh..wh.orph"), imageFile(".wh..wh.orph/1", "x"), imageDir(".wh..wh.plnk"),
				shape(s, ".wh..wh.plnk/1.2"), imageLink("shape", ".wh..wh.plnk/1.2")}}
		}), script: "test ! -e /.wh..wh.plnk && busybox cat /shape"},
		{row: refused, name: "hard link before its target", make: layers(func(s *shaper) [][]imageEntry {
			return [][]imageEntry{{imageLink("shape", "first"), shape(s, "first")}}
		}), refused: "no such file"},
		{row: refused, name: "device 0:0", make: layers(func(*shaper) [][]imageEntry { return [][]imageEntry{{imageDevice("shape", tar.TypeChar, 0, 0)}} }), refused: "device 0:0"},
	}
}
