package index

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// xattr is an extended attribute as EROFS stores it: the prefix of its name as a number.
type xattr struct {
	prefix      uint8
	name, value string
}

// xattrPrefixes are the attributes that an image may have (erofs_fs.h EROFS_XATTR_INDEX_*).
var xattrPrefixes = [...]struct {
	name   string
	whole  bool // the name is the whole one
	number uint8
}{
	{"user.", false, 1},
	{"system.posix_acl_access", true, 2},
	{"system.posix_acl_default", true, 3},
	{"trusted.", false, 4},
}

// capability is the one attribute security.* that does not belong to a security module.
const capability = "security.capability"

// parseXattr says whether an attribute is kept, and how.
func parseXattr(name, value string) (xattr, bool) {
	if strings.HasPrefix(name, "user.overlay.") || strings.HasPrefix(name, "trusted.overlay.") {
		return xattr{}, false
	}
	if name == capability {
		return xattr{prefix: 6, name: "capability", value: value}, true
	}
	for _, p := range xattrPrefixes {
		rest, ok := strings.CutPrefix(name, p.name)
		if ok && p.whole == (rest == "") {
			return xattr{prefix: p.number, name: rest, value: value}, true
		}
	}
	return xattr{}, false
}

func (t *tree) setMetadata(i *inode, h *tar.Header) error {
	// The id -1 means "no change" to chown(2).
	if h.Uid < 0 || h.Uid >= math.MaxUint32 || h.Gid < 0 || h.Gid >= math.MaxUint32 {
		return fmt.Errorf("owner %d:%d: ids are 0 to %d", h.Uid, h.Gid, uint32(math.MaxUint32-1))
	}
	i.uid, i.gid = uint32(h.Uid), uint32(h.Gid)
	i.mtime, i.nsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	return t.setXattrs(i, h)
}

func (t *tree) setXattrs(i *inode, h *tar.Header) error {
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if !ok {
			continue
		}
		x, ok := parseXattr(name, value)
		if !ok {
			continue
		}
		if len(x.name) > maxName {
			return fmt.Errorf("an extended attribute: %w", errNameTooLong)
		}
		x.name, x.value = strings.Clone(x.name), strings.Clone(x.value)
		i.xattrs = append(i.xattrs, x)
	}
	if len(i.xattrs) == 0 {
		return nil
	}
	slices.SortFunc(i.xattrs, func(a, b xattr) int {
		return cmp.Or(cmp.Compare(a.prefix, b.prefix), cmp.Compare(a.name, b.name))
	})
	n := xattrBytes(i)
	if n > maxXattrs {
		return fmt.Errorf("the extended attributes have more than %d bytes", maxXattrs)
	}
	return t.count(n)
}

func (t *tree) setTarget(i *inode, target string) error {
	switch {
	case target == "":
		return errors.New("a symbolic link without target")
	case len(target) > maxPath:
		return fmt.Errorf("the target is longer than %d bytes", maxPath)
	}
	i.target = strings.Clone(target)
	return t.count(len(target))
}

// setDevice sets the number of a device, as new_encode_dev() of Linux does.
func setDevice(i *inode, h *tar.Header) error {
	major, minor := h.Devmajor, h.Devminor
	if major < 0 || major >= 1<<12 || minor < 0 || minor >= 1<<20 {
		return fmt.Errorf("device %d:%d: majors are 0 to %d, minors 0 to %d", major, minor, 1<<12-1, 1<<20-1)
	}
	if i.kind() == unix.S_IFCHR && major == 0 && minor == 0 {
		return errors.New("device 0:0 would hide a file in overlays; images use .wh. entries instead")
	}
	i.rdev = uint32(minor&0xff | major<<8 | minor&^0xff<<12)
	return nil
}
