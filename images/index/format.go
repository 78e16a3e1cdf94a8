package index

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

// The on-disk format, as in fs/erofs/erofs_fs.h of Linux. Blocks have the size of those of
// tar archives, since files have to start at a block.
const (
	blockSize    = 512
	maxBlocks    = 1<<32 - 1
	superOffset  = 1024
	superSize    = 128
	slotSize     = 128 // of a device
	inodeSize    = 64  // of an extended inode
	inodeAlign   = 32
	direntSize   = 12
	chunkSize    = 8 // of an index of a chunk
	xattrHead    = 12
	xattrAlign   = 4
	xattrEntry   = 4
	magic        = 0xe0f5e1e2
	chunkedFiles = 0x4 // features
	deviceTable  = 0x8
	noBlock      = 1<<32 - 1
	chunkIndexes = 0x20 // the file has indexes of chunks
)

// Layouts of an inode's data.
const (
	plain   = 0 // whole blocks
	inline  = 2 // after the inode
	chunked = 4 // in a device
)

// kindShift moves the kind of an inode to its lowest bits.
const kindShift = 12

// direntTypes are the types of directory entries, EROFS_FT_*, by the kinds of their inodes.
var direntTypes = [1 << 4]byte{
	unix.S_IFREG >> kindShift: 1,
	unix.S_IFDIR >> kindShift: 2,
	unix.S_IFCHR >> kindShift: 3,
	unix.S_IFBLK >> kindShift: 4,
	unix.S_IFIFO >> kindShift: 5,
	unix.S_IFLNK >> kindShift: 7,
}

var order = binary.LittleEndian

func roundUp[T int | int64](n, to T) T { return (n + to - 1) / to * to }

// headBlocks are the blocks before all other content: superblock and devices.
func headBlocks(devices int) int64 {
	return roundUp(int64(superOffset+superSize+devices*slotSize), blockSize) / blockSize
}

// superblock encodes the superblock with the devices after it.
func superblock(p *plan, devices []int64) []byte {
	b := make([]byte, headBlocks(len(devices))*blockSize)
	s := b[superOffset:]
	order.PutUint32(s[0:], magic)
	s[12] = 9 // the binary logarithm of the block size
	order.PutUint16(s[14:], uint16(p.inodes[0].pos/inodeAlign))
	order.PutUint64(s[16:], uint64(len(p.inodes)))
	order.PutUint32(s[36:], uint32(p.end/blockSize))
	order.PutUint32(s[40:], uint32(p.start/blockSize))
	if len(devices) > 0 {
		order.PutUint32(s[80:], chunkedFiles|deviceTable)
		order.PutUint16(s[86:], uint16(len(devices)))
		order.PutUint16(s[88:], (superOffset+superSize)/slotSize)
	}
	for n, blocks := range devices {
		order.PutUint32(s[superSize+n*slotSize+64:], uint32(blocks))
	}
	return b
}

// encode appends an inode with its attributes and all that lies in its place.
func (i *inode) encode(b []byte, number uint32) []byte {
	var n [inodeSize]byte
	order.PutUint16(n[0:], 1|uint16(i.layout)<<1)
	if len(i.xattrs) > 0 {
		order.PutUint16(n[2:], uint16((xattrBytes(i)-xattrHead)/xattrEntry+1))
	}
	order.PutUint16(n[4:], i.mode)
	order.PutUint64(n[8:], uint64(i.length()))
	order.PutUint32(n[16:], i.data())
	order.PutUint32(n[20:], number)
	order.PutUint32(n[24:], i.uid)
	order.PutUint32(n[28:], i.gid)
	order.PutUint64(n[32:], uint64(i.mtime))
	order.PutUint32(n[40:], i.nsec)
	order.PutUint32(n[44:], i.links)
	b = i.encodeXattrs(append(b, n[:]...))
	switch i.layout {
	case inline:
		b = i.encodeData(b)
	case chunked:
		b = pad(b, chunkSize)
		b = order.AppendUint16(b, 0)
		b = order.AppendUint16(b, i.device)
		b = order.AppendUint32(b, uint32(i.offset/blockSize))
	}
	return b
}

// data is the field i_u.
func (i *inode) data() uint32 {
	switch {
	case i.kind() == unix.S_IFCHR || i.kind() == unix.S_IFBLK:
		return i.rdev
	case i.layout == chunked:
		return chunkIndexes | i.chunkBits()
	default:
		return i.block
	}
}

// chunkBits is the binary logarithm of the blocks of the chunk that has the whole file.
func (i *inode) chunkBits() uint32 {
	return uint32(bits.Len64(uint64((i.size - 1) / blockSize)))
}

func xattrBytes(i *inode) int {
	if len(i.xattrs) == 0 {
		return 0
	}
	n := xattrHead
	for _, x := range i.xattrs {
		n += roundUp(xattrEntry+len(x.name)+len(x.value), xattrAlign)
	}
	return n
}

func (i *inode) encodeXattrs(b []byte) []byte {
	if len(i.xattrs) == 0 {
		return b
	}
	b = append(b, make([]byte, xattrHead)...)
	for _, x := range i.xattrs {
		b = append(b, byte(len(x.name)), x.prefix)
		b = order.AppendUint16(b, uint16(len(x.value)))
		b = append(append(b, x.name...), x.value...)
		b = pad(b, xattrAlign)
	}
	return b
}

// pad appends zeros up to a multiple of n. An encoded inode begins at one.
func pad(b []byte, n int) []byte {
	return append(b, make([]byte, roundUp(len(b), n)-len(b))...)
}

// encodeData appends the content of a directory or symbolic link.
func (i *inode) encodeData(b []byte) []byte {
	if i.dir == nil {
		return append(b, i.target...)
	}
	for left := i.dir.sorted; len(left) > 0; {
		n, size := fill(left)
		offset := n * direntSize
		for _, c := range left[:n] {
			b = order.AppendUint64(b, uint64(c.pos/inodeAlign))
			b = order.AppendUint16(b, uint16(offset))
			b = append(b, direntTypes[c.kind()>>kindShift], 0)
			offset += len(c.name)
		}
		for _, c := range left[:n] {
			b = append(b, c.name...)
		}
		if left = left[n:]; len(left) > 0 {
			b = append(b, make([]byte, blockSize-size)...)
		}
	}
	return b
}

// fill is the number of entries that fit into one block of a directory, and their bytes.
func fill(entries []child) (n, size int) {
	for _, c := range entries {
		more := direntSize + len(c.name)
		if size+more > blockSize {
			break
		}
		n, size = n+1, size+more
	}
	return n, size
}
