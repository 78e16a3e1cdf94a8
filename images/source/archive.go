package source

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Bounds of an archive. Longer names are never those of an image.
const (
	maxEntries = 20_000
	maxName    = 512
	maxLinks   = 10
)

// archive are the files of a tar archive. They are read in place.
type archive struct {
	file    *os.File
	members map[string]member
	// partial says that there are more than maxEntries.
	partial bool
}

// member is a regular file, or a link to another member.
type member struct {
	offset, size int64
	link         string
}

// scan reads the headers of an archive. Later members replace earlier ones, as tar does.
func scan(ctx context.Context, f *os.File) (*archive, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	a := &archive{file: f, members: map[string]member{}}
	in := tar.NewReader(f)
	for entries := 0; ; entries++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not a tar archive, or a damaged one: %w", err)
		}
		if entries == maxEntries {
			a.partial = true
			return a, nil
		}
		name := path.Clean(h.Name)
		if len(name) > maxName || len(h.Linkname) > maxName {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			if sparse(h) {
				continue
			}
			// The reader has read the header, and nothing more.
			offset, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			a.members[name] = member{offset: offset, size: h.Size}
		case tar.TypeSymlink:
			a.members[name] = member{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			a.members[name] = member{link: path.Clean(h.Linkname)}
		}
	}
}

// sparse says whether the bytes of a member are not those of the file.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func (a *archive) open(name string) (object, error) {
	name = path.Clean(name)
	for range maxLinks {
		m, ok := a.members[name]
		if !ok {
			return object{}, &fs.PathError{Op: "open", Path: line(name, 100), Err: fs.ErrNotExist}
		}
		if m.link == "" {
			return object{io.NewSectionReader(a.file, m.offset, m.size), m.size, func() error { return nil }}, nil
		}
		name = m.link
	}
	return object{}, &fs.PathError{Op: "open", Path: line(name, 100), Err: errors.New("too many links")}
}

func (a *archive) close() error { return a.file.Close() }

func (a *archive) has(name string) bool {
	_, ok := a.members[name]
	return ok
}

// openFile opens an archive of a known kind. It takes over the file.
func openFile(ctx context.Context, f *os.File, ref Reference, want platform, c *cache, o Options) (*Image, error) {
	f, err := plain(ctx, f, ref.Kind, c, o.MaxBytes)
	if err != nil {
		return nil, err
	}
	if ref.Kind == Root {
		return rootImage(ctx, f, want, o.MaxBytes)
	}
	a, err := scan(ctx, f)
	if err == nil && a.partial {
		err = fmt.Errorf("more than %d entries", maxEntries)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if ref.Kind == LayoutArchive {
		return layoutImage(ctx, a, ref.Tag, want, o.MaxBytes)
	}
	return dockerImage(ctx, a, want, o.MaxBytes)
}

// openDetected opens a plain archive of one of the three kinds. It takes over the file.
func openDetected(ctx context.Context, f *os.File, want platform, o Options) (*Image, error) {
	a, err := scan(ctx, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	switch {
	case a.has("manifest.json") && !a.partial:
		return dockerImage(ctx, a, want, o.MaxBytes)
	case a.has("oci-layout") && a.has("index.json") && !a.partial:
		return layoutImage(ctx, a, "", want, o.MaxBytes)
	case a.isOld() && !a.partial:
		return nil, errors.Join(errOldArchive, a.close())
	}
	return rootImage(ctx, f, want, o.MaxBytes)
}

var errOldArchive = errors.New("the archive has no manifest.json, as those of Docker before 1.10; load it into Docker 1.10 to 28, and save it again")

// IsOldArchive says that a name is that of a layer in an archive of docker save before 1.10: the id of the layer as a
// directory.
func IsOldArchive(name string) bool {
	id, ok := strings.CutSuffix(name, "/layer.tar")
	return ok && validDigest(digestPrefix+id)
}

func (a *archive) isOld() bool {
	for name := range a.members {
		if IsOldArchive(name) {
			return true
		}
	}
	return false
}

// dockerManifest is one image of manifest.json of docker save.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// dockerImage is the image of an archive of docker save. It takes over the archive.
func dockerImage(ctx context.Context, a *archive, want platform, maxBytes int64) (*Image, error) {
	image, err := readDocker(ctx, a, want, maxBytes)
	return withClose(image, err, a.close)
}

func readDocker(ctx context.Context, a *archive, want platform, maxBytes int64) (*Image, error) {
	text, err := read(a, "manifest.json", maxManifest)
	if err != nil {
		if a.isOld() {
			err = errOldArchive
		}
		return nil, fmt.Errorf("not an archive of docker save: %w", err)
	}
	var images []dockerManifest
	if err := json.Unmarshal(text, &images); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	if len(images) != 1 {
		var tags []string
		for _, i := range images[:min(len(images), 20)] {
			tags = append(tags, i.RepoTags...)
		}
		return nil, fmt.Errorf("the archive has %d images (%s); save one image", len(images), line(strings.Join(tags, ", "), 200))
	}
	config, err := read(a, images[0].Config, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	parsed, err := parseConfig(config, len(images[0].Layers))
	if err == nil {
		err = parsed.check(want)
	}
	if err != nil {
		return nil, err
	}
	image := &Image{Config: config, Names: images[0].RepoTags}
	for i, name := range images[0].Layers {
		l, err := dockerLayer(ctx, a, name, parsed.RootFS.DiffIDs[i], maxBytes)
		if err != nil {
			return nil, fmt.Errorf("read layer %s: %w", line(name, 100), err)
		}
		image.Layers = append(image.Layers, l)
	}
	image.Digest, err = madeDigest(config, image.Layers)
	image.Resolved = image.Digest
	return image, err
}

// dockerLayer is a layer of docker save. The digest of a compressed one is not in the archive.
func dockerLayer(ctx context.Context, a *archive, name, diffID string, maxBytes int64) (Layer, error) {
	o, err := a.open(name)
	if err != nil {
		return Layer{}, err
	}
	if o.size > maxBytes {
		return Layer{}, fmt.Errorf("it has %d bytes; at most %d are allowed", o.size, maxBytes)
	}
	content := &stoppableReader{ctx.Err, io.NewSectionReader(o, 0, o.size)}
	digest := diffID
	compressed, err := isCompressed(o)
	if err == nil && compressed {
		digest, err = hashOf(content)
	}
	if err != nil {
		return Layer{}, err
	}
	return Layer{DiffID: diffID, Digest: digest, Size: o.size, open: func(ctx context.Context) (io.ReadCloser, error) {
		return checked(ctx, a, name, digest, o.size)
	}}, nil
}
