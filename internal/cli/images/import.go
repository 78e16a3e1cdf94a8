package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	imagesource "github.com/sandbox-runtime/sandbox-runtime/images/source"
)

func importCommand() *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "make an image of an archive, a directory or standard input",
		ArgsUsage: "FILE|DIR|- [NAME]",
		Description: `Takes an archive of docker save, an OCI layout as a directory or an archive, a tar archive of a
root file system, also compressed with gzip or zstd, or a directory of this host as the root file
system. The files of a directory keep their owners, so import a directory with the files of
others as root.

    docker save app:1 | sandbox-runtime image import -
    sandbox-runtime image import debian.tar.zst debian:mine
    sandbox-runtime image import ./rootfs mine

The kind of a source can be named: oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE,
rootfs:FILE, dir:DIR. An archive with several images needs a TAG. Without NAME an archive of
docker save gives the image its names, and another image has only its id. The id is printed.`,
		Flags:  importFlags("its names in an archive of docker save, else none"),
		Action: importImage,
	}
}

func importImage(ctx context.Context, cmd *cli.Command) error {
	if err := nameOfImport(cmd); err != nil {
		return err
	}
	text, stdin, err := importedFrom(cmd.Args().First())
	if err != nil {
		return err
	}
	if stdin != nil {
		defer stdin.Close()
	}
	image, _, err := pullImage(ctx, cmd, text, stdin)
	if err != nil && stdin != nil {
		return fmt.Errorf("import %s: %w", cmd.Args().First(), err)
	}
	if err != nil {
		return err
	}
	return printPulled(cmd, image, image.ID)
}

// nameOfImport takes the second word for --name, as docker import does.
func nameOfImport(cmd *cli.Command) error {
	words := cmd.Args().Slice()
	if len(words) == 0 || len(words) > 2 || words[0] == "" {
		return errors.New("say one file or directory, or - for standard input, and a name, as in: image import ./rootfs mine")
	}
	if len(words) == 1 {
		return nil
	}
	if cmd.IsSet("name") && cmd.String("name") != words[1] {
		return fmt.Errorf("the image has the two names %s and %s; leave one of them out", words[1], cmd.String("name"))
	}
	return cmd.Set("name", words[1])
}

// importKinds begin a reference that names its kind.
var importKinds = []string{"oci:", "oci-archive:", "docker-archive:", "rootfs:", "dir:"}

// importedFrom is the reference of a file, a directory or standard input. A file whose kind shows only when it is
// decompressed is read as standard input.
func importedFrom(name string) (text string, stdin *os.File, err error) {
	isPrefix := func(kind string) bool { return strings.HasPrefix(name, kind) }
	if name == "-" || slices.ContainsFunc(importKinds, isPrefix) {
		return name, nil, nil
	}
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		return "", nil, fmt.Errorf("import: %s is an address, which is not read; use: curl -fsSL ADDRESS | sandbox-runtime image import -", name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return "", nil, fmt.Errorf("import: %w; for an image of a registry use: image pull", err)
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(name, "oci-layout")); err == nil {
			return "oci:" + name + "/", nil, nil // a colon before the slash begins no TAG
		}
		return "dir:" + name, nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return "", nil, err
	}
	kind := ""
	if info.Mode().IsRegular() && !strings.Contains(filepath.Base(name), ":") {
		if kind, err = kindOfArchive(f); err != nil {
			return "", nil, errors.Join(fmt.Errorf("import %s: %w", name, err), f.Close())
		}
	}
	if kind == "" {
		return "-", f, nil
	}
	return kind + name, nil, f.Close()
}

// kindOfArchive is the kind of a tar archive, or empty for a compressed file. It leaves the offset at the beginning.
func kindOfArchive(f *os.File) (string, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil {
		return "", fmt.Errorf("not a tar archive: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) || bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return "", nil
	}
	const (
		manifest, layout, index = "manifest.json", "oci-layout", "index.json"
		old                     = "old"
		most                    = 100_000 // entries of an archive of an image
	)
	has := map[string]bool{}
	for in, n := tar.NewReader(f), 0; n < most; n++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && n == 0 { // the reader of standard input knows more kinds
			_, err := f.Seek(0, io.SeekStart)
			return "", err
		}
		if err != nil {
			return "", fmt.Errorf("not a tar archive, or a damaged one: %w", err)
		}
		switch name := path.Clean(h.Name); {
		case name == manifest || name == layout || name == index:
			has[name] = true
		case imagesource.IsOldArchive(name):
			has[old] = true
		}
	}
	switch {
	case has[manifest]:
		return "docker-archive:", nil
	case has[layout] && has[index]:
		return "oci-archive:", nil
	case has[old]:
		return "docker-archive:", nil // which refuses it with the reason
	}
	return "rootfs:", nil
}
