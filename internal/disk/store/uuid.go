package store

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
)

// ext4's superblock: Documentation/filesystems/ext4/super.rst.
const (
	superOffset   = 1024
	superSize     = 1024
	magicAt       = 0x38
	magic         = 0xef53
	incompatAt    = 0x60
	checksumSeed  = 0x2000 // the feature metadata_csum_seed
	uuidAt        = 0x68
	uuidSize      = 16
	superChecksum = 0x3fc
)

// renew gives a copied file system a UUID of its own. Overlayfs tells layers by
// it, and distrusts two with the same.
func renew(image *os.File) error {
	super := make([]byte, superSize)
	if _, err := image.ReadAt(super, superOffset); err != nil {
		return err
	}
	le := binary.LittleEndian
	if le.Uint16(super[magicAt:]) != magic || le.Uint32(super[incompatAt:])&checksumSeed == 0 {
		return errors.New("it is no ext4 with metadata_csum_seed")
	}
	rand.Read(super[uuidAt : uuidAt+uuidSize])
	uuid := super[uuidAt : uuidAt+uuidSize]
	uuid[6], uuid[8] = uuid[6]&0x0f|0x40, uuid[8]&0x3f|0x80 // RFC 9562 section 5.4
	// Without the last step of crc32c, which inverts the sum.
	le.PutUint32(super[superChecksum:], ^crc32.Checksum(super[:superChecksum], crc32.MakeTable(crc32.Castagnoli)))
	_, err := image.WriteAt(super, superOffset)
	return err
}
