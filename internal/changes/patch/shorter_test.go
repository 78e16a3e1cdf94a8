package patch

import (
	"os"
	"strings"
	"testing"
)

// A file of sysfs is always shorter than its size.
func TestAFileThatBecameShorterIsRefused(t *testing.T) {
	const name = "/sys/kernel/mm/transparent_hugepage/enabled"
	if info, err := os.Stat(name); err != nil || info.Size() < 1000 {
		t.Skip(name, "is not as expected:", err)
	}
	if got, err := read(os.Open, name); err == nil || !strings.Contains(err.Error(), "became shorter") {
		t.Errorf("%+v, %v", got, err)
	}
}
