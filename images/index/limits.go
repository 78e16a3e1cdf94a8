package index

import (
	"cmp"
	"fmt"
)

// Limits of an image. A field that is zero has its value of [DefaultLimits].
type Limits struct {
	// Layers is the number of layers.
	Layers int
	// Files is the number of names in the merged tree, at any time.
	Files int
	// Entries is the number of entries in the archives of all layers.
	Entries int
	// Text is the number of bytes of all names, targets and extended attributes in the
	// archives of all layers.
	Text int64
	// Copied is the number of bytes of sparse files, with their holes.
	Copied int64
}

// DefaultLimits are limits that images in use stay far below.
func DefaultLimits() Limits {
	return Limits{Layers: 1000, Files: 1_000_000, Entries: 4_000_000, Text: 256 << 20, Copied: 1 << 30}
}

// Other limits are those of Linux, since no program inside could use more.
const (
	maxName   = 255       // NAME_MAX
	maxPath   = 4095      // PATH_MAX without the final 0
	maxLinks  = 40        // MAXSYMLINKS
	maxXattrs = 64 << 10  // XATTR_SIZE_MAX, here for all attributes of a file
	maxChunk  = 512 << 31 // the largest chunk, in which a file lies
)

// stepsPerEntry bounds the lookups in paths, for all entries together. Real images need
// about 10 for an entry.
const stepsPerEntry = 50

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	return Limits{
		Layers: cmp.Or(l.Layers, d.Layers), Files: cmp.Or(l.Files, d.Files), Entries: cmp.Or(l.Entries, d.Entries),
		Text: cmp.Or(l.Text, d.Text), Copied: cmp.Or(l.Copied, d.Copied),
	}
}

// CopiedLimit is the name of [Limits].Copied in a [LimitError].
const CopiedLimit = "bytes of sparse files"

// LimitError says that an image exceeds one of [Limits].
type LimitError struct {
	Limit string // the limited resource, as "files"
	Max   int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("too many %s: at most %d are allowed", e.Limit, e.Max)
}
