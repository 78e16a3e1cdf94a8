package apply

import "encoding/binary"

// namesIDs tells whether an access control list, as its extended attribute has
// it (include/uapi/linux/posix_acl_xattr.h), has entries of particular users or
// groups. One that cannot be read has.
func namesIDs(acl []byte) bool {
	const header, size = 4, 8
	const user, group = 0x02, 0x08 // ACL_USER, ACL_GROUP
	if len(acl) < header || (len(acl)-header)%size != 0 {
		return true
	}
	for e := acl[header:]; len(e) > 0; e = e[size:] {
		if tag := binary.LittleEndian.Uint16(e); tag == user || tag == group {
			return true
		}
	}
	return false
}
