package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Bounds below and above which a host is short of memory.
const (
	leastAvailable = 20 // a twentieth of the memory
	mostPressure   = 10 // percent of the time in which tasks wait for memory
)

// MemoryShort returns an error if the host is short of memory: less than a twentieth of it is
// available, or tasks have waited for memory in a tenth of the last ten seconds.
func MemoryShort() error {
	if err := memoryShort("/proc/meminfo"); err != nil {
		return err
	}
	err := memoryPressed("/proc/pressure/memory")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) { // CONFIG_PSI, psi=0
		return nil
	}
	return err
}

func memoryShort(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var total, available uint64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		_, _ = fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &total) // other lines match neither
		_, _ = fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &available)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if available < total/leastAvailable {
		return fmt.Errorf("the host has only %d MB of memory available", available>>10)
	}
	return nil
}

func memoryPressed(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var percent float64
	if _, err := fmt.Sscanf(strings.TrimSpace(string(text)), "some avg10=%f", &percent); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if percent > mostPressure {
		return fmt.Errorf("tasks of the host have waited for memory for %.0f %% of the last ten seconds", percent)
	}
	return nil
}
