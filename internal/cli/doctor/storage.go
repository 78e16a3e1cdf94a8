package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
)

// storageFeature is the part of the table of features that package store finds out.
func storageFeature() kernel.Info {
	return kernel.Info{
		Name: "disk_storage", Group: "storage", Title: "storage on disk", Since: kernel.Version{Major: 5, Minor: 8}, Need: kernel.Useful,
		Lost: "all files that sandboxes write are kept in memory, also with up; --storage disk and snapshots are refused",
		Get: "install e2fsprogs, for mkfs.ext4; modprobe loop ext4; run it as root; in a container, start that one with --privileged, " +
			"or allow it loop devices",
	}
}

// examineStorage makes an image, mounts it, and removes it.
func examineStorage() kernel.Finding {
	info := storageFeature()
	err := tryImage()
	var lacking *store.UnsupportedError
	switch {
	case err == nil:
		return kernel.Finding{Info: info, Detail: "images of ext4, on loop devices"}
	case errors.As(err, &lacking):
		err = &kernel.NotSupportedError{Info: info, Cause: errors.New(lacking.Lacks), Fix: lacking.Way}
	case errors.Is(err, fs.ErrPermission):
		err = &kernel.NotSupportedError{Info: info, Cause: err, Fix: info.Get}
	}
	return kernel.Finding{Info: info, Err: err}
}

// temporaryDir makes a directory. The error names TMPDIR, since it says nothing about the host.
func temporaryDir(name string) (string, error) {
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return "", fmt.Errorf("make a directory for temporary files (the variable TMPDIR chooses the place): %w", err)
	}
	return dir, nil
}

func tryImage() (err error) {
	dir, err := temporaryDir("doctor-storage")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	image := filepath.Join(dir, "image")
	if err := store.CreateImage(image, store.Limits{Bytes: 8 << 20, Files: 64}, dir); err != nil {
		return err
	}
	mounted, err := store.MountImage(image)
	if err != nil {
		return err
	}
	return mounted.Close()
}
