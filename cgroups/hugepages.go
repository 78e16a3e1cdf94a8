package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// ForbidHugepages has the group at path, and all groups below it, get no huge pages:
// the host has few, and they are no part of a limit of memory. A host without the
// hugetlb controller is left as it is, and so is one where the kernel refuses the
// controller to the group. So is the v2 hierarchy of a hybrid host, if nobody has
// enabled the controller there. The group is made where it is not there.
func (h *Host) ForbidHugepages(path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	for _, t := range h.trees {
		if !slices.Contains(t.controllers, "hugetlb") {
			continue
		}
		if err := h.forbidHugepages(t, path); err != nil {
			return fmt.Errorf("forbid huge pages in cgroup %s: %w", path, err)
		}
	}
	return nil
}

// hugepageLimits matches the limits of each size, for pages in use and for those
// that are reserved (cgroup-v2.rst, "HugeTLB"; cgroup-v1/hugetlb.rst).
func (t tree) hugepageLimits() string {
	if t.v2 {
		return "hugetlb.*.max"
	}
	return "hugetlb.*.limit_in_bytes"
}

func (h *Host) forbidHugepages(t tree, group string) error {
	if err := os.MkdirAll(t.path(group), 0o755); err != nil {
		return notWritable(t.dir, err)
	}
	if h.Mode == V2 {
		// The group needs the controller, those below it do not.
		_, err := t.enable(filepath.Dir(group), "hugetlb")
		if errors.Is(err, errPopulated) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	files, err := descriptor.Glob(t.path(group), t.hugepageLimits())
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := ignore(os.WriteFile(file, []byte("0"), 0), fs.ErrNotExist, unix.EBUSY); err != nil {
			return err
		}
	}
	return nil
}
