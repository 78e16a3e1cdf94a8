package launcher

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// unwrittenBytes is the amount of file data in the host's memory that is not on disk yet:
// Dirty and Writeback of proc_meminfo(5).
func unwrittenBytes() (int64, error) {
	const path = "/proc/meminfo"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var kib int64
	found := 0
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != "Dirty:" && string(fields[0]) != "Writeback:" {
			continue
		}
		n, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		kib += n
		found++
	}
	if found != 2 {
		return 0, fmt.Errorf("%s tells nothing of unwritten data", path)
	}
	return kib << 10, nil
}
