package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// A superblock is that of EROFS (fs/erofs/erofs_fs.h:erofs_super_block, Linux 6.18).
type superblock struct {
	Magic           uint32
	Checksum        uint32
	Compatible      uint32
	BlockBits       uint8
	ExtraSlots      uint8
	RootNode        uint16
	Inodes          uint64
	Epoch           uint64
	EpochNanos      uint32
	Blocks          uint32
	MetaBlock       uint32
	XattrBlock      uint32
	UUID            [16]byte
	Volume          [16]byte
	Incompatible    uint32
	Compressions    uint16
	ExtraDevices    uint16
	DeviceTable     uint16 // in slots
	DirBlockBits    uint8
	XattrPrefixes   uint8
	XattrPrefixFrom uint32
	PackedNode      uint64
	XattrFilter     uint8
	Reserved        [23]byte
}

// A deviceSlot has the checked fields of an entry of the device table (erofs_deviceslot).
type deviceSlot struct {
	Blocks uint32
	Mapped uint32 // the device's place in one address space of all devices
}

const (
	superOffset = 1024
	superMagic  = 0xe0f5e1e2
	slotSize    = 128
	slotBlocks  = 64 // offsets in a slot
	slotMapped  = 68
	// chunkedFiles and deviceTable are the features of an index: files whose content is on other devices.
	chunkedFiles = 0x4
	deviceTable  = 0x8
)

// blockBits is the binary logarithm of the size of blocks: those of a tar.
const blockBits = 9

// checkIndex checks the superblock of an index before the kernel reads it. It allows only the fields of an
// index of these layers.
func checkIndex(index *os.File, layers []*os.File) error {
	info, err := index.Stat()
	if err != nil {
		return err
	}
	raw := make([]byte, slotSize)
	if _, err := index.ReadAt(raw, superOffset); err != nil {
		return fmt.Errorf("the index is too short: %d bytes", info.Size())
	}
	var s superblock
	if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, &s); err != nil {
		return err
	}
	if fault := s.fault(info.Size(), len(layers)); fault != "" {
		return errors.New("the superblock of the index is not supported: " + fault)
	}
	return s.checkDevices(index, layers)
}

// fault is the first unsupported part, or empty.
func (s superblock) fault(size int64, layers int) string {
	features := uint32(chunkedFiles | deviceTable)
	if layers == 0 {
		features = 0
	}
	checks := []struct {
		holds bool
		fault string
	}{
		{s.Magic == superMagic, fmt.Sprintf("the magic number is %#x", s.Magic)},
		{s.BlockBits == blockBits, fmt.Sprintf("blocks of 2^%d bytes", s.BlockBits)},
		{s.Compatible == 0 && s.Checksum == 0, fmt.Sprintf("compatible features %#x", s.Compatible)},
		{s.Incompatible == features, fmt.Sprintf("features %#x", s.Incompatible)},
		{int(s.ExtraDevices) == layers, fmt.Sprintf("%d devices for %d layers", s.ExtraDevices, layers)},
		{s.ExtraSlots == 0 && s.DirBlockBits == 0, "slots or blocks of directories"},
		{s.Compressions == 0, "compressed content"},
		{s.XattrPrefixes == 0 && s.XattrPrefixFrom == 0 && s.XattrFilter == 0, "prefixes or filters of attributes"},
		{s.PackedNode == 0, "packed content"},
		{s.Reserved == [23]byte{}, "reserved bytes"},
		{s.Inodes > 0, "no inodes"},
		{int64(s.Blocks)<<blockBits <= size, fmt.Sprintf("%d blocks in %d bytes", s.Blocks, size)},
		{s.MetaBlock < max(s.Blocks, 1) && s.XattrBlock < max(s.Blocks, 1), "metadata behind the end"},
	}
	for _, c := range checks {
		if !c.holds {
			return c.fault
		}
	}
	return ""
}

// checkDevices refuses devices that share one address space, and layers of another size.
func (s superblock) checkDevices(index *os.File, layers []*os.File) error {
	table := make([]byte, len(layers)*slotSize)
	if _, err := index.ReadAt(table, int64(s.DeviceTable)*slotSize); err != nil {
		return errors.New("the device table of the index is behind the end")
	}
	for i, layer := range layers {
		raw := table[i*slotSize:]
		slot := deviceSlot{binary.LittleEndian.Uint32(raw[slotBlocks:]), binary.LittleEndian.Uint32(raw[slotMapped:])}
		info, err := layer.Stat()
		if err != nil {
			return err
		}
		if blocks := info.Size() >> blockBits; int64(slot.Blocks) != blocks || slot.Mapped != 0 {
			return &layerSizeError{i, blocks, slot}
		}
	}
	return nil
}

// A layerSizeError says that a layer is not the one of the index.
type layerSizeError struct {
	layer  int
	blocks int64
	slot   deviceSlot
}

func (e *layerSizeError) Error() string {
	return fmt.Sprintf("layer %d has %d blocks, and in the index %d at %d", e.layer+1, e.blocks, e.slot.Blocks, e.slot.Mapped)
}
