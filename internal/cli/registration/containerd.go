package registration

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/engine"
)

// installedContainerd is the major version of the containerd on PATH, 0 if there is none or its version
// cannot be told. A program that others than root can change is not run.
func installedContainerd() int {
	path, err := exec.LookPath("containerd")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return 0
	}
	if exposed, err := engine.Exposed(path); err != nil || exposed != "" {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return 0
	}
	return majorOf(string(out))
}

// majorOf reads a line such as "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7".
func majorOf(line string) int {
	fields := strings.Fields(line)
	if len(fields) < 3 {
		return 0
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(fields[2], "v"), ".")
	major, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return major
}
