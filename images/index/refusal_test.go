package index_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestHostileEntriesAreRefused(t *testing.T) {
	named := func(i item, name string) item { return i.with(func(h *tar.Header) { h.Name = name }) }
	link1 := symlink("loop", "loop")
	tests := map[string]struct {
		items []item
		want  string
	}{
		"name of 256 bytes":        {[]item{file(strings.Repeat("n", 256), "x")}, "longer than 255"},
		"directory of 256 bytes":   {[]item{file(strings.Repeat("n", 256)+"/a", "x")}, "longer than 255"},
		"path of 4,096 bytes":      {[]item{file(strings.Repeat("d/", 2047)+"n", "x")}, "longer than 4095"},
		"path too long by links":   {[]item{dir(strings.Repeat("d/", 2000)), symlink("l", strings.Repeat("d/", 2000)), file("l/"+strings.Repeat("e/", 100)+"f", "x")}, "longer than 4095"},
		"target of 4,096 bytes":    {[]item{symlink("l", strings.Repeat("t", 4096))}, "target is longer"},
		"long name in a target":    {[]item{symlink("l", strings.Repeat("n", 256)), file("l/a", "x")}, "longer than 255"},
		"below a file":             {[]item{file("f", "x"), file("f/x", "x")}, "not a directory"},
		"below a loop":             {[]item{link1, file("loop/x", "x")}, "too many symbolic links"},
		"root as a file":           {[]item{named(file("f", ""), ".")}, "root is not a directory"},
		"root as a link":           {[]item{symlink("/", "etc")}, "root is not a directory"},
		"hard link to nothing":     {[]item{link("a", "b")}, `hard link to "b": no such file`},
		"hard link to a directory": {[]item{dir("d"), link("a", "d")}, "is a directory"},
		"hard link to the root":    {[]item{link("a", "/")}, "is a directory"},
		"hard link below nothing":  {[]item{link("a", "b/c")}, "no such file"},
		"whiteout of no name":      {[]item{file("d/.wh.", "")}, "whiteout of no name"},
		"whiteout of itself":       {[]item{file("d/.wh..", "")}, "whiteout of no name"},
		"whiteout of the parent":   {[]item{file("d/.wh...", "")}, "whiteout of no name"},
		"below a whiteout":         {[]item{file(".wh.d/f", "")}, "a whiteout is no directory"},
		"owner -1":                 {[]item{file("f", "").with(func(h *tar.Header) { h.Uid = 1<<32 - 1 })}, "ids are 0 to"},
		"group of 33 bits":         {[]item{file("f", "").with(func(h *tar.Header) { h.Gid = 1 << 32 })}, "ids are 0 to"},
		"device 0:0":               {[]item{device("c", tar.TypeChar, 0, 0)}, "would hide a file"},
		"large minor":              {[]item{device("c", tar.TypeChar, 1, 1<<20)}, "minors 0 to"},
		"large major":              {[]item{device("c", tar.TypeBlock, 1<<12, 1)}, "majors are 0 to"},
		"attribute of 70,000":      {[]item{file("f", "").xattr("user.x", strings.Repeat("v", 70_000))}, "more than 65536 bytes"},
		"attribute's name":         {[]item{file("f", "").xattr("user."+strings.Repeat("n", 256), "v")}, "longer than 255"},
		"unknown type":             {[]item{named(device("x", tar.TypeCont, 0, 0), "x")}, "not supported"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := refused(t, index.Limits{}, layer(t, test.items...)); !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want %q", err, test.want)
			}
		})
	}
}

func TestLimitsHold(t *testing.T) {
	var some []item
	for n := range 20 {
		some = append(some, file(fmt.Sprint("f", n), "x"))
	}
	tests := map[string]struct {
		limits index.Limits
		layers []*os.File
	}{
		"layers":                        {index.Limits{Layers: 1}, []*os.File{layer(t), layer(t)}},
		"files":                         {index.Limits{Files: 19}, []*os.File{layer(t, some...)}},
		"entries":                       {index.Limits{Entries: 19}, []*os.File{layer(t, some...)}},
		"bytes of names and attributes": {index.Limits{Text: 30}, []*os.File{layer(t, some...)}},
		"lookups in paths":              {index.Limits{Entries: 12}, []*os.File{layer(t, lookups()...)}},
		"bytes of sparse files":         {index.Limits{Copied: 1 << 19}, []*os.File{sparse(t)}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := refused(t, test.limits, test.layers...)
			var limit *index.LimitError
			if !errors.As(err, &limit) || limit.Limit != name {
				t.Errorf("got %v", err)
			}
		})
	}
}

// lookups need many lookups for few files.
func lookups() []item {
	items := []item{dir("d"), symlink("d/l", strings.Repeat("../d/", 600))}
	for range 10 {
		items = append(items, file("d/l/f", ""))
	}
	return items
}

func TestDamagedArchivesAreRefused(t *testing.T) {
	var whole bytes.Buffer
	f := layer(t, file("a", strings.Repeat("x", 2000)), file("b", strings.Repeat("y", 700)))
	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := whole.ReadFrom(f); err != nil {
		t.Fatal(err)
	}
	damaged := map[string][]byte{
		"truncated in a file":          whole.Bytes()[:1500],
		"truncated in the last block":  whole.Bytes()[:512+2048+512+699],
		"truncated in a header":        whole.Bytes()[:512+2048+100],
		"no archive":                   []byte(strings.Repeat("hello ", 1000)),
		"compressed":                   append([]byte("\x1f\x8b\x08"), make([]byte, 2000)...),
		"changed header":               append([]byte{'b'}, whole.Bytes()[1:]...),
		"attributes of a gigabyte":     hugeRecords(),
		"name of a gigabyte":           hugeName(),
		"more zeros than the file has": whole.Bytes()[:512+1],
	}
	for name, content := range damaged {
		t.Run(name, func(t *testing.T) {
			f := newFile(t)
			if _, err := f.Write(content); err != nil {
				t.Fatal(err)
			}
			refused(t, index.Limits{}, f)
		})
	}
}

// hugeRecords is a header that announces PAX records of 1 GB.
func hugeRecords() []byte { return testhost.HugeHeader('x') }

func hugeName() []byte { return testhost.HugeHeader('L') }

func TestUnfinishedIndexesHaveNoSuperblock(t *testing.T) {
	out := newFile(t)
	l := layer(t, file("a", "x"), file("f", "x"), file("f/x", "x"))
	if _, err := index.Build(t.Context(), []*os.File{l}, out, index.Limits{}); err == nil {
		t.Fatal("the index was built")
	}
	b := make([]byte, 4)
	if _, err := out.ReadAt(b, 1024); err == nil && !bytes.Equal(b, make([]byte, 4)) {
		t.Errorf("the index has the magic number %x", b)
	}
}
