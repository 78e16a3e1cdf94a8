package spec

import (
	"encoding/json"
	"unicode/utf8"
)

// MaxFiles is how many paths of each kind a [Files] has at most.
const MaxFiles = 1000

// Files are the paths that changed while a command ran, as they are inside the sandbox, in
// order. Two commands that run at the same time in one sandbox get the same changes. A
// path that came and went in that time is not among them. A directory that was moved, or
// removed with the host's content, counts as one path.
type Files struct {
	// Created, Modified and Deleted are of any bytes, as file names are: in JSON
	// those that are not UTF-8 are in created_base64 and so on.
	Created, Modified, Deleted []string
	// Truncated says that there are more, or may be.
	Truncated bool
	// Partial are writable binds of the host. There the kernel tells only writes to
	// regular files: no removals, renames, links, changed rights or directories. Before
	// Linux 6.5 overlays are among them: for these, writes to a file that the layer has
	// already are not told.
	Partial []string
}

// Count is how many paths there are.
func (f *Files) Count() int { return len(f.Created) + len(f.Modified) + len(f.Deleted) }

// wireFiles is Files in JSON.
type wireFiles struct {
	Created        []string `json:"created"`
	Modified       []string `json:"modified"`
	Deleted        []string `json:"deleted"`
	CreatedBase64  [][]byte `json:"created_base64,omitempty"`
	ModifiedBase64 [][]byte `json:"modified_base64,omitempty"`
	DeletedBase64  [][]byte `json:"deleted_base64,omitempty"`
	Truncated      bool     `json:"truncated,omitempty"`
	Partial        []string `json:"partial,omitempty"`
}

// MarshalJSON writes paths that are not UTF-8 in base64 under names of their own.
func (f Files) MarshalJSON() ([]byte, error) {
	w := wireFiles{Truncated: f.Truncated, Partial: f.Partial}
	w.Created, w.CreatedBase64 = splitText(f.Created)
	w.Modified, w.ModifiedBase64 = splitText(f.Modified)
	w.Deleted, w.DeletedBase64 = splitText(f.Deleted)
	return json.Marshal(w)
}

// UnmarshalJSON reads the form of MarshalJSON.
func (f *Files) UnmarshalJSON(data []byte) error {
	var w wireFiles
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*f = Files{
		Created: joinText(w.Created, w.CreatedBase64), Modified: joinText(w.Modified, w.ModifiedBase64),
		Deleted: joinText(w.Deleted, w.DeletedBase64), Truncated: w.Truncated, Partial: w.Partial,
	}
	return nil
}

func splitText(paths []string) (text []string, other [][]byte) {
	text = []string{}
	for _, p := range paths {
		if utf8.ValidString(p) {
			text = append(text, p)
		} else {
			other = append(other, []byte(p))
		}
	}
	return text, other
}

func joinText(text []string, other [][]byte) []string {
	for _, p := range other {
		text = append(text, string(p))
	}
	if len(text) == 0 {
		return nil
	}
	return text
}
