package hostpaths

import (
	"fmt"
	"path/filepath"
)

// Absolute returns the absolute form of a path, as [filepath.Abs] does. An absolute path needs no working
// directory, so the error of a relative one names the way out.
func Absolute(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("relative path %q: the working directory: %w; name an absolute path, or change to another directory", path, err)
	}
	return abs, nil
}
