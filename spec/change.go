package spec

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"
)

// Change is one path that is other than it was before the sandbox wrote to it.
type Change struct {
	// Path is relative to the tree: no leading slash, no empty part, no "."
	// and no "..", any other bytes.
	Path string
	Kind ChangeKind
	// Type of the present path, or of the deleted one.
	Type FileType
	// Was is the earlier type, if the type has changed or the path was replaced by an
	// opaque directory.
	Was FileType
	// Opaque says that nothing of the earlier content shows in the directory any more.
	Opaque bool

	// Warning is why somebody should look at the path: it runs without a question, or
	// its rights are unusual. Held says that apply holds the path back. Package
	// sandbox fills both in. They only tell: nothing reads them.
	Warning string
	Held    bool

	// The fields below describe the present path. They are not set for a deleted path, nor
	// in a list of names only.

	Mode     uint32 // permissions with the setuid, setgid and sticky bits
	UID, GID uint32 // as inside the sandbox
	Size     int64
	ModTime  time.Time
	// Link is the target of a symbolic link.
	Link string
	// HardLink is the path of an earlier change that is another name of the
	// same file.
	HardLink string
	// Block, Major and Minor are a device's.
	Block        bool
	Major, Minor uint32
	// Xattrs are user.*, security.capability and the POSIX ACLs.
	Xattrs map[string][]byte
}

// Unapplied is a path at which an apply leaves out a change or a part of one, and the reason.
type Unapplied struct{ Path, Reason string }

// ChangeKind is the kind of a change.
type ChangeKind string

// The kinds of changes.
const (
	Created  ChangeKind = "created"
	Modified ChangeKind = "modified"
	Deleted  ChangeKind = "deleted"
)

// FileType is the type of a path.
type FileType string

// The types of files.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeFIFO      FileType = "fifo"
	TypeSocket    FileType = "socket"
	TypeDevice    FileType = "device"
)

// MarshalJSON writes the change with its paths as text, or in base64 under
// other names where they are not UTF-8. Contents of extended attributes are
// always in base64.
func (c Change) MarshalJSON() ([]byte, error) {
	out := struct {
		Path         *string           `json:"path,omitempty"`
		PathBase64   []byte            `json:"path_base64,omitempty"`
		Kind         ChangeKind        `json:"kind"`
		Type         FileType          `json:"type"`
		Was          FileType          `json:"was,omitempty"`
		Opaque       bool              `json:"opaque,omitempty"`
		Warning      string            `json:"warning,omitempty"`
		Held         bool              `json:"held,omitempty"`
		Mode         *uint32           `json:"mode,omitempty"`
		UID          *uint32           `json:"uid,omitempty"`
		GID          *uint32           `json:"gid,omitempty"`
		Size         *int64            `json:"size,omitempty"`
		ModTime      *time.Time        `json:"mod_time,omitempty"`
		Link         *string           `json:"link,omitempty"`
		LinkBase64   []byte            `json:"link_base64,omitempty"`
		HardLink     *string           `json:"hard_link,omitempty"`
		HardBase64   []byte            `json:"hard_link_base64,omitempty"`
		Block        bool              `json:"block,omitempty"`
		Major        *uint32           `json:"major,omitempty"`
		Minor        *uint32           `json:"minor,omitempty"`
		Xattrs       map[string][]byte `json:"xattrs,omitempty"`
		XattrsBase64 map[string][]byte `json:"xattrs_base64,omitempty"`
	}{Kind: c.Kind, Type: c.Type, Was: c.Was, Opaque: c.Opaque, Warning: c.Warning, Held: c.Held, Block: c.Block}
	out.Path, out.PathBase64 = textOrBytes([]byte(c.Path))
	if !c.ModTime.IsZero() {
		mtime := jsonTime(c.ModTime)
		out.Mode, out.UID, out.GID, out.Size, out.ModTime = &c.Mode, &c.UID, &c.GID, &c.Size, &mtime
		if c.Type == TypeDevice {
			out.Major, out.Minor = &c.Major, &c.Minor
		}
	}
	if c.Link != "" {
		out.Link, out.LinkBase64 = textOrBytes([]byte(c.Link))
	}
	if c.HardLink != "" {
		out.HardLink, out.HardBase64 = textOrBytes([]byte(c.HardLink))
	}
	out.Xattrs, out.XattrsBase64 = textOrBytesKeys(c.Xattrs)
	return json.Marshal(out)
}

// jsonTime is t within the years that JSON can tell: a file in a sandbox may
// have any.
func jsonTime(t time.Time) time.Time {
	t = t.UTC()
	if first := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC); t.Before(first) {
		return first
	}
	if last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC); t.After(last) {
		return last
	}
	return t
}

// textOrBytesKeys parts the attributes whose names are text from those whose
// names are written in base64, too.
func textOrBytesKeys(all map[string][]byte) (text, bytes map[string][]byte) {
	text, bytes = map[string][]byte{}, map[string][]byte{}
	for name, value := range all {
		if utf8.ValidString(name) {
			text[name] = value
		} else {
			bytes[base64.StdEncoding.EncodeToString([]byte(name))] = value
		}
	}
	return text, bytes
}
