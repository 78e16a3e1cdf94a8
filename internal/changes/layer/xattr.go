package layer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlayfs's own attributes: fs/overlayfs/overlayfs.h, OVL_XATTR_TRUSTED_PREFIX.
const (
	overlayPrefix     = "trusted.overlay."
	overlayUserPrefix = "user.overlay."
	opaqueXattr       = overlayPrefix + "opaque"
	whiteoutXattr     = overlayPrefix + "whiteout"
	redirectXattr     = overlayPrefix + "redirect"
	metacopyXattr     = overlayPrefix + "metacopy"
	originXattr       = overlayPrefix + "origin"
	// wholeXattr is the runtime's own. The kernel hides all attributes with this prefix from
	// processes inside, and never copies them to another layer.
	wholeXattr = overlayPrefix + "sandbox-runtime.whole"
)

// foreignError tells of a layer that was not written by an overlay of ours.
type foreignError struct{ xattr string }

func (e foreignError) Error() string {
	return fmt.Sprintf("has %s, which overlays of sandboxes never use: its meaning is not known", e.xattr)
}

// xattrReader reads extended attributes, into one buffer.
type xattrReader struct{ buf []byte }

// The most that xattr(7) allows, for a value and for a list.
const maxXattr = 64 << 10

func (r *xattrReader) fill(read func([]byte) (int, error)) ([]byte, error) {
	if r.buf == nil {
		r.buf = make([]byte, 1024)
	}
	n, err := read(r.buf)
	if err == unix.ERANGE && len(r.buf) < maxXattr {
		r.buf = make([]byte, maxXattr)
		n, err = read(r.buf)
	}
	if err != nil {
		return nil, err
	}
	return r.buf[:n], nil
}

// names are all attributes of a name in a directory, or with "" of the directory.
func (r *xattrReader) names(dir int, name string) ([]string, error) {
	list := unix.Llistxattr
	if name == "" {
		list = unix.Listxattr
	}
	raw, err := r.fill(func(b []byte) (int, error) { return list(inProc(dir, name), b) })
	if err == unix.ENOTSUP || err == nil && len(raw) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00"), nil
}

// value is an attribute's, nil where it is gone.
func (r *xattrReader) value(dir int, name, attr string) ([]byte, error) {
	get := unix.Lgetxattr
	if name == "" {
		get = unix.Getxattr
	}
	raw, err := r.fill(func(b []byte) (int, error) { return get(inProc(dir, name), attr, b) })
	if err == unix.ENODATA || err == unix.ENOTSUP {
		return nil, nil
	}
	return append([]byte{}, raw...), err
}

// ofLayer reads the attributes of a name in a layer that are part of a change.
func (r *xattrReader) ofLayer(s *Stack, dir int, name string) (map[string][]byte, error) {
	names, err := r.names(dir, name)
	if err != nil {
		return nil, err
	}
	for _, attr := range names {
		if attr == redirectXattr && name != "" || attr == metacopyXattr { // the marks of a directory have its redirect
			return nil, foreignError{attr}
		}
	}
	return r.changeAttributes(dir, name, names, s.IDs)
}

// ofBase reads those of a name in the base, which may have been part of overlays
// of others.
func (r *xattrReader) ofBase(s *Stack, dir int, name string) (map[string][]byte, error) {
	names, err := r.names(dir, name)
	if err != nil {
		return nil, err
	}
	return r.changeAttributes(dir, name, names, s.BaseIDs)
}

// changeAttributes reads the attributes that are part of a change, with the ids in them
// translated.
func (r *xattrReader) changeAttributes(dir int, name string, names []string, ids func(uid, gid uint32) (uint32, uint32, bool)) (map[string][]byte, error) {
	var all map[string][]byte
	for _, attr := range names {
		if !IsData(attr) {
			continue
		}
		value, err := r.value(dir, name, attr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", attr, err)
		}
		if value == nil {
			continue
		}
		if isACL(attr) {
			translateACL(value, ids)
		}
		if all == nil {
			all = map[string][]byte{}
		}
		all[attr] = value
	}
	return all, nil
}

// IsData tells the extended attributes that are a file's own, which a change has.
func IsData(attr string) bool {
	if strings.HasPrefix(attr, overlayUserPrefix) {
		return false
	}
	return strings.HasPrefix(attr, "user.") || attr == "security.capability" || isACL(attr)
}

func isACL(attr string) bool {
	return attr == "system.posix_acl_access" || attr == "system.posix_acl_default"
}

// translateACL changes the users and groups of a POSIX ACL in place: a header
// of four bytes, then tag, permissions and id, include/uapi/linux/posix_acl_xattr.h.
func translateACL(acl []byte, ids func(uid, gid uint32) (uint32, uint32, bool)) {
	const header, size, tagUser, tagGroup = 4, 8, 0x02, 0x08
	for at := header; at+size <= len(acl); at += size {
		id := binary.LittleEndian.Uint32(acl[at+4:])
		uid, gid := translate(ids, id, id)
		switch binary.LittleEndian.Uint16(acl[at:]) {
		case tagUser:
			binary.LittleEndian.PutUint32(acl[at+4:], uid)
		case tagGroup:
			binary.LittleEndian.PutUint32(acl[at+4:], gid)
		}
	}
}

func sameXattrs(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }
