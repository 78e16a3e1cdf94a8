package index

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// place is the place of an inode in the index.
type place struct {
	pos    int64 // from the start of the inodes
	links  uint32
	block  uint32 // the first one of the data, if the layout is plain
	layout uint8
	placed bool
}

// child is a name in a planned directory.
type child struct {
	*inode
	name string
}

// plan is the layout of an index: superblock and devices, copied files, inodes with their
// attributes and inline data, and blocks of directories and long symbolic links.
type plan struct {
	inodes []*inode // in the order of their places
	start  int64    // of the inodes
	blocks int64    // of directories and symbolic links, in blocks
	next   int64    // the end of the inodes, from their start
	end    int64    // of the index
	bytes  int64    // content of regular files
}

// newPlan gives each inode its place. The tree takes no more entries then. Inodes lie in the
// order of their first paths, so that those of a directory are close to each other.
func newPlan(root *inode, start int64) (*plan, error) {
	p := &plan{start: start}
	p.add(root)
	blocks := roundUp(p.next, blockSize)
	p.end = start + blocks + p.blocks*blockSize
	if p.end/blockSize > maxBlocks {
		return nil, errors.New("the index is larger than 2 TiB")
	}
	for _, i := range p.inodes {
		if i.layout == plain && (i.dir != nil || i.target != "") {
			i.block += uint32((start + blocks) / blockSize)
		}
	}
	return p, nil
}

// add places an inode and all below it. The depth is bounded by maxPath.
func (p *plan) add(i *inode) {
	i.links++
	if i.placed {
		return
	}
	i.placed = true
	if i.dir != nil {
		i.dir.sort(i)
	}
	p.place(i)
	p.inodes = append(p.inodes, i)
	if i.dir == nil {
		p.bytes += i.size
		return
	}
	i.links = 2
	for _, c := range i.dir.sorted {
		if c.name == "." || c.name == ".." {
			continue
		}
		p.add(c.inode)
		if c.dir != nil {
			i.links++
		}
	}
}

// sort orders the names as EROFS searches them, "." and ".." among them.
func (d *directory) sort(self *inode) {
	d.sorted = make([]child, 0, len(d.entries)+2)
	d.sorted = append(d.sorted, child{self, "."}, child{d.parent, ".."})
	for name, e := range d.entries {
		d.sorted = append(d.sorted, child{e.inode, name})
	}
	slices.SortFunc(d.sorted, func(a, b child) int { return cmp.Compare(a.name, b.name) })
	d.entries = nil
}

// place chooses the layout of an inode and its position.
func (p *plan) place(i *inode) {
	pos := roundUp(p.next, inodeAlign)
	head := int64(inodeSize + xattrBytes(i))
	if pos%blockSize+inodeSize > blockSize {
		pos = roundUp(pos, blockSize) // an inode lies in one block
	}
	i.pos, p.next = pos, pos+head
	length := i.length()
	switch {
	case i.kind() == unix.S_IFREG && i.device > 0:
		i.layout = chunked
		p.next = roundUp(p.next, chunkSize) + chunkSize
	case i.kind() == unix.S_IFREG && length > 0:
		i.block = uint32(i.offset / blockSize)
	case length == 0:
		i.block = noBlock
	case pos%blockSize+head+length <= blockSize:
		i.layout = inline
		p.next += length
	default:
		i.block = uint32(p.blocks)
		p.blocks += roundUp(length, blockSize) / blockSize
	}
}

// length is the size of the inode's data.
func (i *inode) length() int64 {
	switch {
	case i.dir != nil:
		return i.dir.length()
	case i.target != "":
		return int64(len(i.target))
	default:
		return i.size
	}
}

// length is the size of an encoded directory.
func (d *directory) length() int64 {
	total := int64(0)
	for left := d.sorted; ; {
		n, size := fill(left)
		if left = left[n:]; len(left) == 0 {
			return total + int64(size)
		}
		total += blockSize
	}
}
