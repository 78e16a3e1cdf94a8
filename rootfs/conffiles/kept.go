package conffiles

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
)

// neverSum tells lists of [NeverGroups] apart: another version of this program may have kept files
// that this one does not show.
var neverSum = sync.OnceValue(func() string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%q", NeverGroups())))
})

// versionKey describes a version of a database, in one line.
func versionKey(database string, v version) string {
	return fmt.Sprintf("2 %s %d %d %d.%09d %d %s", database, v.device, v.inode, v.changed.Sec, v.changed.Nsec, v.size, neverSum())
}

// encode is the text with the files of a version: its key, and a line "SUM NAME" for each file.
func encode(files []File, key string) []byte {
	text := []byte(key + "\n")
	for _, f := range files {
		if !strings.Contains(f.Name, "\n") {
			text = append(text, f.Sum+" "+f.Name+"\n"...)
		}
	}
	return append(text, "end\n"...)
}

// decode returns the files of a text of encode, if the text has the key and its end.
func decode(text []byte, key string) (files []File, ok bool) {
	rest, ok := strings.CutPrefix(string(text), key+"\n")
	rest, whole := strings.CutSuffix(rest, "end\n")
	if !ok || !whole {
		return nil, false
	}
	for line := range strings.Lines(rest) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok {
			return nil, false
		}
		files = append(files, File{Name: name, Sum: sum})
	}
	return files, true
}
