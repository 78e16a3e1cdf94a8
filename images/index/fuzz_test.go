package index_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
)

// FuzzBuild builds indexes of two hostile archives. An index is the same a second time, and
// no file in it lies outside the archives.
func FuzzBuild(f *testing.F) {
	for _, layers := range corners() {
		if len(layers) < 2 {
			layers = append(layers, nil)
		}
		lower, upper := archiveBytes(f, layers[0]), archiveBytes(f, layers[1])
		if len(lower)+len(upper) < 20_000 {
			f.Add(lower, upper)
		}
	}
	limits := index.Limits{Files: 1000, Entries: 2000, Text: 1 << 20, Copied: 1 << 20}
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		repair(lower)
		repair(upper)
		layers := []*os.File{fileOf(t, lower), fileOf(t, upper)}
		var first []byte
		for range 2 {
			out := fileOf(t, nil)
			s, err := index.Build(t.Context(), layers, out, limits)
			if err != nil {
				return
			}
			b := make([]byte, s.Size)
			if _, err := out.ReadAt(b, 0); err != nil {
				t.Fatal(err)
			}
			if first != nil && !bytes.Equal(b, first) {
				t.Fatal("a second index differs")
			}
			first = b
		}
		if err := check(first, []int{len(lower), len(upper)}); err != nil {
			t.Fatal(err)
		}
	})
}

func archiveBytes(t testing.TB, items []item) []byte {
	b, err := os.ReadFile(layer(t, items...).Name())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// repair sets the checksums of headers, so that the fuzzer gets beyond them.
func repair(b []byte) {
	for ; len(b) >= 512; b = b[512:] {
		if !bytes.Equal(b[257:262], []byte("ustar")) {
			continue
		}
		copy(b[148:156], "        ")
		sum := 0
		for _, c := range b[:512] {
			sum += int(c)
		}
		copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	}
}

func fileOf(t testing.TB, content []byte) *os.File {
	fd, err := unix.MemfdCreate("", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// check reads an index by the description of the format alone, from the root on.
func check(b []byte, devices []int) error {
	le := binary.LittleEndian
	start := int(le.Uint32(b[1024+40:])) * 512
	seen := map[uint64]bool{}
	todo := []uint64{uint64(le.Uint16(b[1024+14:]))}
	for len(todo) > 0 {
		number := todo[0]
		todo = todo[1:]
		if seen[number] {
			continue
		}
		seen[number] = true
		at := start + int(number)*32
		if at+64 > len(b) {
			return errors.New("an inode lies outside the index")
		}
		inode := b[at:]
		below, err := checkInode(b, inode[:64], at, devices)
		if err != nil {
			return err
		}
		todo = append(todo, below...)
	}
	if uint64(len(seen)) != le.Uint64(b[1024+16:]) {
		return errors.New("the number of inodes is wrong")
	}
	return nil
}

func checkInode(b, inode []byte, at int, devices []int) (below []uint64, err error) {
	le := binary.LittleEndian
	size, data := int(le.Uint64(inode[8:])), int(le.Uint32(inode[16:]))
	head := 64
	if n := int(le.Uint16(inode[2:])); n > 0 {
		head += 12 + 4*(n-1)
	}
	isDir := le.Uint16(inode[4:])&0xf000 == 0x4000
	switch le.Uint16(inode) >> 1 {
	case 4:
		chunk := b[(at+head+7)/8*8:]
		device := int(le.Uint16(chunk[2:]))
		if device < 1 || device > len(devices) || (int(le.Uint32(chunk[4:]))*512+size+511)/512*512 > devices[device-1] {
			return nil, errors.New("a file lies outside its archive")
		}
		return nil, nil
	case 2:
		at += head
		if at/512 != (at+size-1)/512 {
			return nil, errors.New("inline data crosses a block")
		}
	default:
		at = data * 512
	}
	if size > 0 && at+size > len(b) && le.Uint16(inode[4:])&0xf000 != 0x2000 && le.Uint16(inode[4:])&0xf000 != 0x6000 {
		return nil, errors.New("data lie outside the index")
	}
	if isDir {
		return checkDirectory(b[at : at+size])
	}
	return nil, nil
}

func checkDirectory(data []byte) (below []uint64, err error) {
	le := binary.LittleEndian
	last := ""
	for len(data) > 0 {
		block := data[:min(512, len(data))]
		data = data[len(block):]
		n := int(le.Uint16(block[8:])) / 12
		for i := range n {
			entry := block[i*12:]
			from, to := int(le.Uint16(entry[8:])), len(block)
			if i+1 < n {
				to = int(le.Uint16(entry[20:]))
			}
			name := string(bytes.TrimRight(block[from:to], "\x00"))
			if name <= last || len(name) > 255 || bytes.ContainsAny([]byte(name), "/\x00") {
				return nil, errors.New("the names of a directory are not in order")
			}
			last = name
			below = append(below, le.Uint64(entry))
		}
	}
	return below, nil
}
