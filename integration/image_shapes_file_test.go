package integration

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// saved are the files of docker save for an image of the base and an own layer, as the names of its config and layers say.
func (s *shaper) saved(config string, layer func(digits string) string) map[string][]byte {
	tars := [][]byte{s.base, s.own()}
	files := map[string][]byte{}
	var names, diffIDs []string
	for _, tar := range tars {
		digest := digestOfImage(tar)
		name := layer(strings.TrimPrefix(digest, "sha256:"))
		files[name], names, diffIDs = tar, append(names, name), append(diffIDs, digest)
	}
	text := configOfImage(s.t, diffIDs...)
	config = strings.Replace(config, "HEX", strings.TrimPrefix(digestOfImage(text), "sha256:"), 1)
	files[config] = text
	files["manifest.json"] = marshal(s.t, []object{{"Config": config, "RepoTags": nil, "Layers": names, "LayerSources": object{}}})
	return files
}

// version1 are files of docker save that newer versions do not need.
func version1(files map[string][]byte) map[string][]byte {
	all := map[string][]byte{"repositories": []byte(`{"app":{"1":"` + strings.Repeat("ab", 32) + `"}}`)}
	for name, content := range files {
		all[name] = content
		if dir, ok := strings.CutSuffix(name, "/layer.tar"); ok {
			all[dir+"/VERSION"], all[dir+"/json"] = []byte("1.0"), []byte(`{"id":"x"}`)
		}
	}
	return all
}

func inDirectory(digits string) string { return digits + "/layer.tar" }
func inBlobs(digits string) string     { return "blobs/sha256/" + digits }

// archive is a shape of one file. layoutDirectory is one of an OCI layout.
func archiveShape(row, name string, files func(s *shaper) map[string][]byte) imageShape {
	return imageShape{row: row, name: name, source: func(s *shaper) string { return s.archive(files(s)) }}
}

func fileShapes() []imageShape {
	const save, layout, old, several = "archive of `docker save` since 1.10, also since 25 or with containerd", "OCI layout as a directory or archive, also with nested indexes and attestations",
		"archive of `docker save` before 1.10", "layout with several images and no TAG, or with a missing blob"
	here := "linux/" + runtime.GOARCH
	tagged := func(d object) object {
		return d.with(object{"annotations": object{"org.opencontainers.image.ref.name": "1", "io.containerd.image.name": "docker.io/library/app:1"}})
	}
	attested := func(s *shaper) object { d := s.plain(); return s.index(s.attestation(d), d.on(here)) }
	all := []imageShape{
		archiveShape(save, "Docker 1.10 to 24", func(s *shaper) map[string][]byte { return version1(s.saved("HEX.json", inDirectory)) }),
		archiveShape(save, "Docker 25", func(s *shaper) map[string][]byte {
			d := s.plain()
			return withFiles(s.layoutFiles(tagged(d)), s.saved("blobs/sha256/HEX", inBlobs))
		}),
		archiveShape(save, "Docker with containerd's store", func(s *shaper) map[string][]byte {
			index := attested(s)
			return withFiles(s.layoutFiles(tagged(index)), s.saved("blobs/sha256/HEX", inBlobs))
		}),
		archiveShape(save, "podman save", func(s *shaper) map[string][]byte {
			return s.saved("HEX.json", func(digits string) string { return digits + ".tar" })
		}),
		{row: save, name: "with gzip", source: func(s *shaper) string {
			path := s.archive(version1(s.saved("HEX.json", inDirectory)))
			return imageArchive(s.t, gzipOfImage(s.t, []byte(content(s.t, path))))
		}},
		{row: layout, name: "directory", source: func(s *shaper) string { return s.directory(s.layoutFiles(s.plain())) }},
		{row: layout, name: "directory with a tag", source: func(s *shaper) string {
			return "oci:" + s.directory(s.layoutFiles(tagged(s.plain()), s.other("linux/s390x").with(object{"annotations": object{"org.opencontainers.image.ref.name": "2"}}))) + ":1"
		}},
		{row: layout, name: "attestation in a nested index", source: func(s *shaper) string { return s.directory(s.layoutFiles(attested(s))) }},
		{row: layout, name: "index in an index", source: func(s *shaper) string {
			return s.directory(s.layoutFiles(s.index(s.index(s.other("linux/s390x"), s.plain()))))
		}},
		{row: layout, name: "platforms in index.json", source: func(s *shaper) string {
			return s.directory(s.layoutFiles(s.other("linux/s390x").on("linux/s390x"), s.plain().on(here)))
		}},
		{row: layout, name: "image and attestation in index.json", source: func(s *shaper) string {
			d := s.plain()
			return s.directory(s.layoutFiles(s.attestation(d), d))
		}},
		archiveShape(layout, "archive of BuildKit", func(s *shaper) map[string][]byte { index := attested(s); return s.layoutFiles(tagged(index)) }),
		archiveShape(layout, "archive with ./ names", func(s *shaper) map[string][]byte {
			files := map[string][]byte{}
			d := s.plain()
			for name, content := range s.layoutFiles(tagged(d)) {
				files["./"+name] = content
			}
			return files
		}),
		archiveShape(layout, "archive of Docker's types", func(s *shaper) map[string][]byte { d := s.image(ofDocker()); return s.layoutFiles(tagged(d)) }),
	}
	refused := []imageShape{
		archiveShape(old, "plain", func(s *shaper) map[string][]byte {
			files := version1(s.saved("HEX.json", inDirectory))
			delete(files, "manifest.json")
			return files
		}),
		archiveShape(several, "two without tags", func(s *shaper) map[string][]byte { a, b := s.plain(), s.other(here); return s.layoutFiles(a, b) }),
		archiveShape(several, "two tags", func(s *shaper) map[string][]byte {
			a, b := s.plain(), s.other(here)
			return s.layoutFiles(tagged(a), b.with(object{"annotations": object{"org.opencontainers.image.ref.name": "2"}}))
		}),
		{row: several, name: "missing layer", source: func(s *shaper) string {
			d := s.plain()
			dir := s.directory(s.layoutFiles(d))
			if err := os.Remove(filepath.Join(dir, blobPath(digestOfImage(gzipOfImage(s.t, s.own()))))); err != nil {
				s.t.Fatal(err)
			}
			return dir
		}},
	}
	for i, words := range []string{"Docker before 1.10", "several images without tags", "several images; add one of the tags 1, 2", "no such file"} {
		refused[i].refused = words
	}
	return append(all, refused...)
}

func withFiles(files, more map[string][]byte) map[string][]byte {
	maps.Copy(files, more)
	return files
}
