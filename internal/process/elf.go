package process

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mostHeaders bounds the program headers of a file. Linkers write some ten of them.
const mostHeaders = 64

// elfLoader is the path of the loader of an ELF program. It is empty if the file has none or is no ELF file.
// debug/elf is not made for hostile files, and reads all their sections: only its constants and types are used.
func elfLoader(f *os.File) string {
	content, err := reopen(f)
	if err != nil {
		return ""
	}
	defer content.Close()
	head := make([]byte, 64)
	if _, err := content.ReadAt(head, 0); err != nil || !bytes.HasPrefix(head, []byte(elf.ELFMAG)) {
		return ""
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	is64 := elf.Class(head[elf.EI_CLASS]) == elf.ELFCLASS64
	at, size, count := uint64(order.Uint32(head[28:])), order.Uint16(head[42:]), order.Uint16(head[44:])
	if is64 {
		at, size, count = order.Uint64(head[32:]), order.Uint16(head[54:]), order.Uint16(head[56:])
	}
	for i := range min(count, mostHeaders) {
		offset, length, ok := interpreterSegment(content, int64(at)+int64(i)*int64(size), is64, order)
		if ok {
			return stringAt(content, offset, length)
		}
	}
	return ""
}

// interpreterSegment reads one program header. ok says that the header describes the path of the loader.
func interpreterSegment(content io.ReaderAt, at int64, is64 bool, order binary.ByteOrder) (offset, length uint64, ok bool) {
	header := make([]byte, 56)
	if !is64 {
		header = header[:32]
	}
	if _, err := content.ReadAt(header, at); err != nil || elf.ProgType(order.Uint32(header)) != elf.PT_INTERP {
		return 0, 0, false
	}
	if is64 {
		return order.Uint64(header[8:]), order.Uint64(header[32:]), true
	}
	return uint64(order.Uint32(header[4:])), uint64(order.Uint32(header[16:])), true
}

// stringAt reads a path that ends with a null byte.
func stringAt(content io.ReaderAt, offset, length uint64) string {
	if length > unix.PathMax {
		return ""
	}
	text := make([]byte, length)
	if _, err := content.ReadAt(text, int64(offset)); err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(text), "\x00")
	return name
}
