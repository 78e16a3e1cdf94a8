package index_test

import (
	"archive/tar"
	"fmt"
	"math"
	"strings"
	"time"
)

// corners are images on which umoci and the index agree.
func corners() map[string][][]item {
	all := metadataCorners()
	for name, layers := range whiteoutCorners() {
		all[name] = layers
	}
	for name, layers := range pathCorners() {
		all[name] = layers
	}
	return all
}

func metadataCorners() map[string][][]item {
	at := func(t time.Time) func(*tar.Header) { return func(h *tar.Header) { h.ModTime = t } }
	mode := func(m int64) func(*tar.Header) { return func(h *tar.Header) { h.Mode = m } }
	owner := func(uid, gid int) func(*tar.Header) { return func(h *tar.Header) { h.Uid, h.Gid = uid, gid } }
	capabilities := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	acl := "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\x05\x00\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff" +
		"\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"
	all := map[string][][]item{
		"owners above 65,535": {{file("a", "x").with(owner(65_536, 4_000_000_000)), dir("d").with(owner(70_000, math.MaxUint32-1))}},
		"nanoseconds": {{file("a", "x").with(at(time.Unix(1_600_000_000, 123_456_789))), dir("d").with(at(time.Unix(1, 1))),
			symlink("l", "a").with(at(time.Unix(2, 999_999_999)))}},
		"negative times":         {{file("a", "x").with(at(time.Unix(-1, 500_000_000))), dir("d").with(at(time.Unix(-1_000_000_000, 0)))}},
		"set-user-ID and sticky": {{file("a", "x").with(mode(0o6755)), dir("d").with(mode(0o3777)), file("none", "x").with(mode(0))}},
		"devices and FIFOs": {{device("null", tar.TypeChar, 1, 3), device("big", tar.TypeBlock, 4095, 1<<20-1), device("zero", tar.TypeBlock, 0, 0),
			device("mid", tar.TypeBlock, 259, 300), device("fifo", tar.TypeFifo, 0, 0)}},
		"capabilities": {{file("a", "x").xattr("security.capability", capabilities)}},
		"access lists": {{file("a", "x").with(mode(0o644)).xattr("system.posix_acl_access", acl),
			dir("d").with(mode(0o755)).xattr("system.posix_acl_default", acl)}},
		"root":                             {{dir("./").with(mode(0o711)), file("./a", "x")}, {file("b", "y")}},
		"root of two layers":               {{dir("./").with(mode(0o711)).xattr("user.a", "1")}, {dir("/").with(mode(0o700)).with(owner(3, 4))}},
		"metadata of a directory replaced": {{dir("d").xattr("user.a", "1"), file("d/a", "x")}, {dir("d").with(mode(0o700)).xattr("user.b", "2")}},
		"hard links":                       {{file("a", "content"), link("b", "a"), link("d/c", "/b"), symlink("l", "nowhere"), link("m", "l")}},
		"hard link to a lower layer":       {{file("a", "content")}, {link("b", "a")}, {file("a", "new")}},
		"hard link removed":                {{file("a", "content"), link("b", "a"), link("c", "a")}, {file(".wh.b", "")}},
		"empty files":                      {{file("a", ""), file("d/b", "")}},
		"empty layers":                     {{}, {file("a", "x")}, {}},
		"sizes":                            {sizes()},
		"a large directory":                {many(3000)},
		"long names":                       {longNames()},
		"attributes of any length":         {attributesOfAnyLength()},
	}
	return all
}

func sizes() (items []item) {
	for _, n := range []int{1, 511, 512, 513, 4095, 4096, 4097, 100_000, 1 << 20} {
		items = append(items, file(fmt.Sprintf("f%d", n), strings.Repeat("0123456789abcdef!", n/17+1)[:n]))
	}
	return items
}

func many(n int) (items []item) {
	for i := range n {
		items = append(items, file(fmt.Sprintf("d/%d%s", i, strings.Repeat("n", i%200)), fmt.Sprint(i)))
	}
	// Names that sort before "." and between "." and "..".
	return append(items, file("d/ ", "space"), file("d/!", "mark"), file("d/.-", "dash"), file("d/-", "minus"), file("d/\xff", "byte"))
}

func longNames() (items []item) {
	longest := strings.Repeat("n", 255)
	deep := strings.Repeat(strings.Repeat("d", 200)+"/", 15)
	for _, n := range []int{1, 59, 60, 400, 448, 449, 512, 513, 4095} {
		items = append(items, symlink(fmt.Sprintf("l%d", n), strings.Repeat("t", n)))
	}
	return append(items, file(longest, "long"), file(deep+"f", "deep"), dir(strings.Repeat("e", 255)))
}

// attributesOfAnyLength has all alignments of the data after the attributes of an inode. umoci
// leaves out empty attributes.
func attributesOfAnyLength() (items []item) {
	for n := 1; n < 40; n++ {
		value := strings.Repeat("v", n)
		items = append(items, file(fmt.Sprintf("f%d", n), fmt.Sprint("content ", n)).xattr("user.x", value),
			dir(fmt.Sprintf("d%d", n)).xattr("trusted.x", value).xattr("user.y", value), file(fmt.Sprintf("d%d/f", n), "x"))
	}
	return append(items, file("large", "content").xattr("user.x", strings.Repeat("v", 3000)).xattr("user.bytes", "\x00\xff\n="))
}

func whiteoutCorners() map[string][][]item {
	lower := []item{dir("d"), file("d/a", "a"), dir("d/s"), file("d/s/b", "b"), file("f", "f"), symlink("l", "d")}
	return map[string][][]item{
		"file":                           {lower, {file(".wh.f", "")}},
		"directory":                      {lower, {file(".wh.d", "")}},
		"through a link":                 {lower, {file("l/.wh.a", "")}},
		"link":                           {lower, {file(".wh.l", "")}},
		"of nothing":                     {lower, {file(".wh.x", ""), file("d/.wh.y", ""), file("q/r/.wh.z", ""), file("f/.wh.z", "")}},
		"of an own entry before":         {lower, {file("f", "new"), file(".wh.f", "")}},
		"of an own entry after":          {lower, {file(".wh.f", ""), file("f", "new")}},
		"of a directory with a new file": {lower, {file(".wh.d", ""), dir("d"), file("d/new", "n")}},
		"after a new file":               {lower, {file("d/new", "n"), file(".wh.d", "")}},
		"after a new file below":         {lower, {file("d/s/new", "n"), file(".wh.d", "")}},
		"opaque":                         {lower, {file("d/.wh..wh..opq", "")}},
		"opaque before entries":          {lower, {dir("d"), file("d/.wh..wh..opq", ""), file("d/new", "n"), dir("d/s"), file("d/s/new", "n")}},
		"opaque after entries":           {lower, {file("d/s/new", "n"), file("d/-new", "n"), file("d/new", "n"), file("d/.wh..wh..opq", "")}},
		"opaque root":                    {lower, {file("new", "n"), file(".wh..wh..opq", "")}},
		"opaque through a link":          {lower, {file("l/.wh..wh..opq", "")}},
		"opaque twice":                   {lower, {file("d/.wh..wh..opq", ""), file("d/new", "n"), file("d/.wh..wh..opq", "")}},
		"re-created by a later layer":    {lower, {file(".wh.d", "")}, {file("d/again", "x")}},
		"names that begin alike":         {{file("+re", "old"), file("re", "old"), file("-new", "old")}, {file("+re", "new"), file(".wh.+re", ""), file(".wh.re", "")}},
		"opaque of one layer only":       {lower, {file("d/one", "1"), file("d/.wh..wh..opq", "")}, {file("d/two", "2")}},
		"with content and as directory":  {lower, {file(".wh.f", "content"), dir("d/.wh.a/")}},
		"of a hard link's first name":    {{file("a", "x"), link("b", "a")}, {file(".wh.a", "")}, {link("c", "b")}},
	}
}

func pathCorners() map[string][][]item {
	lower := []item{dir("usr"), dir("usr/lib"), file("usr/lib/old", "old"), symlink("lib", "usr/lib"), symlink("abs", "/usr/lib"),
		symlink("up", "../../../usr"), symlink("chain", "abs"), symlink("dangling", "none/../made"), file("f", "f")}
	return map[string][][]item{
		"above the root":              {{file("../../a", "x"), file("/b", "y"), file("d/../../../c", "z"), file("./e/./f", "w")}},
		"below a lower link":          {lower, {file("lib/x", "x")}},
		"below an absolute link":      {lower, {file("abs/x", "x")}},
		"below a link upwards":        {lower, {file("up/x", "x"), file("up/lib/y", "y")}},
		"below a link to a sibling":   {lower, {symlink("usr/lib/side", "../share/./doc"), file("lib/side/x", "x"), file("usr/lib/side/../y", "y")}},
		"below a chain":               {lower, {file("chain/x", "x"), file("chain/new/y", "y")}},
		"below a dangling link":       {lower, {file("dangling/x", "x")}},
		"below an own link":           {{symlink("opt", "/srv/opt"), file("opt/x", "x")}},
		"directory over a link":       {lower, {dir("lib"), file("lib/x", "x")}},
		"link over a directory":       {lower, {symlink("usr", "other")}},
		"file over a directory":       {lower, {file("usr", "file")}},
		"directory over a file":       {lower, {dir("f"), file("f/x", "x")}},
		"link over a file":            {lower, {symlink("f", "usr")}, {file("f/x", "x")}},
		"file over a link":            {lower, {file("lib", "file")}},
		"duplicates":                  {{file("a", "1"), file("a", "22"), dir("d"), file("d/x", "x"), dir("d").with(func(h *tar.Header) { h.Mode = 0o711 })}},
		"types change in one layer":   {{file("a", "1"), dir("a"), file("a/x", "x"), symlink("b", "a"), file("b", "file")}},
		"file over its own directory": {{dir("d"), file("d/x", "x"), file("d", "file")}},
		"missing parents":             {{file("a/b/c/d", "x")}, {file("a/b/e", "y")}, {dir("a"), dir("a/b/c")}},
		"hard link through a link":    {lower, {link("hard", "lib/old"), link("lib/hard", "abs/old")}},
		"hard link to a link":         {lower, {link("hard", "lib")}},
		"hard link above the root":    {lower, {link("hard", "../../f")}},
	}
}
