package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Sysctl reads a setting that is one number, by its name in sysctl(8): "kernel.pid_max".
func Sysctl(name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")))
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return value, nil
}

// NumbersOfATask is the most process numbers that one task keeps in use: its own, its group's and
// its session's. The number of a leader that has ended stays in use as long as the group or the
// session has a member (Linux, kernel/pid.c:__change_pid()). The pids controller counts tasks only.
const NumbersOfATask = 3
