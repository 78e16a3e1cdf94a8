package integration

import (
	"bytes"
	"compress/gzip"
	littleendian "encoding/binary"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

func configShapes() []imageShape {
	const types, odd, bad = "config of type OCI, Docker, octet-stream, JSON, HTML, or without a type", "config with null, missing, unknown or odd fields",
		"config without the right number of layers, or with fields of other types"
	changed := func(change func(o object)) func(*shaper) object { return image(shapedImage{config: change}) }
	fields := func(more object) func(*shaper) object {
		return changed(func(o object) {
			for key, value := range more {
				o[key] = value
			}
		})
	}
	all := []imageShape{
		{row: odd, name: "null fields", make: fields(object{"config": object{"Env": nil, "Cmd": nil, "Entrypoint": nil, "Volumes": nil, "Labels": nil, "ExposedPorts": nil, "OnBuild": nil},
			"created": nil, "history": nil, "author": nil})},
		{row: odd, name: "config is null", make: fields(object{"config": nil})},
		{row: odd, name: "fields of Docker 1.10", make: fields(object{"container": "x", "container_config": object{"Cmd": []string{"x"}, "Hostname": "x"}, "docker_version": "1.10",
			"id": "x", "parent": "y", "throwaway": true, "Size": 7})},
		{row: odd, name: "no platform", make: changed(func(o object) { delete(o, "os"); delete(o, "architecture") })},
		{row: odd, name: "no os", make: changed(func(o object) { delete(o, "os") })},
		{row: odd, name: "no type of the root file system", make: changed(func(o object) { delete(o["rootfs"].(map[string]any), "type") })},
		{row: odd, name: "created at zero", make: fields(object{"created": "0001-01-01T00:00:00Z"})},
		{row: odd, name: "created in the future", make: fields(object{"created": "2999-01-01T00:00:00.123456789+14:00"})},
		{row: odd, name: "ArgsEscaped, health check, empty strings", make: fields(object{"config": object{"User": "", "WorkingDir": "", "ArgsEscaped": true, "Healthcheck": object{"Test": []string{"NONE"}}, "Image": "sha256:x"}})},
		{row: bad, name: "no DiffIDs", make: changed(func(o object) { delete(o["rootfs"].(map[string]any), "diff_ids") }), refused: "0 DiffIDs for 2 layers"},
		{row: bad, name: "no root file system", make: changed(func(o object) { delete(o, "rootfs") }), refused: "0 DiffIDs for 2 layers"},
		{row: bad, name: "too many DiffIDs", make: fields(object{"rootfs": object{"type": "layers", "diff_ids": []string{digestOfImage(nil), digestOfImage(nil), digestOfImage(nil)}}}),
			refused: "3 DiffIDs for 2 layers"},
		{row: bad, name: "root file system of Windows", make: changed(func(o object) { o["rootfs"].(map[string]any)["type"] = "layers+base" }), refused: `"layers" is supported`},
		{row: bad, name: "created is no time", make: fields(object{"created": "yesterday"}), refused: "the config is not valid"},
		{row: bad, name: "empty JSON", make: func(s *shaper) object {
			return s.image(shapedImage{manifest: func(o object) { o["config"] = s.blob(ociConfig, []byte("{}")) }})
		}, refused: "0 DiffIDs"},
		{row: bad, name: "no JSON", make: func(s *shaper) object {
			return s.image(shapedImage{manifest: func(o object) { o["config"] = s.blob(ociConfig, []byte("config")) }})
		}, refused: "parse config"},
	}
	for _, t := range []string{ociConfig, dockerConfig, "application/octet-stream", "application/json", "text/html", "none", "application/vnd.oci.image.serialization.config.v1+json"} {
		all = append(all, imageShape{row: types, name: "OCI with " + t, make: image(shapedImage{configType: t}), answer: asUsual},
			imageShape{row: types, name: "Docker with " + t, make: image(shapedImage{manifestType: dockerManifest, configType: t, layerType: dockerLayer}), answer: asUsual})
	}
	return all
}

// layerTypes are media types of layers, and functions that pack a layer as the type says.
func layerTypes() map[string]func(*shaper, []byte) []byte {
	plain := func(_ *shaper, b []byte) []byte { return b }
	zipped := func(s *shaper, b []byte) []byte { return gzipOfImage(s.t, b) }
	zstded := func(s *shaper, b []byte) []byte { return s.zstd(b) }
	return map[string]func(*shaper, []byte) []byte{
		"application/vnd.oci.image.layer.v1.tar":                             plain,
		"application/vnd.oci.image.layer.v1.tar+gzip":                        zipped,
		"application/vnd.oci.image.layer.v1.tar+zstd":                        zstded,
		"application/vnd.oci.image.layer.v1.tar.gzip":                        zipped,
		"application/vnd.oci.image.layer.nondistributable.v1.tar":            plain,
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip":       zipped,
		"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd":       zstded,
		"application/vnd.docker.image.rootfs.diff.tar":                       plain,
		"application/vnd.docker.image.rootfs.diff.tar.gzip":                  zipped,
		"application/vnd.docker.image.rootfs.diff.tar.zstd":                  zstded,
		"application/vnd.docker.image.rootfs.diff.tar+gzip":                  zipped,
		"application/vnd.docker.image.rootfs.foreign.diff.tar":               plain,
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":          zipped,
		"application/vnd.oci.image.serialization.rootfs.tar.gzip":            zipped,
		"application/vnd.docker.container.image.rootfs.diff+x-gtar":          plain,
		"application/octet-stream":                                           zipped,
		"none":                                                               zipped,
		strings.ToUpper("application/vnd.docker.image.rootfs.diff.tar.gzip"): zipped,
	}
}

func (s *shaper) zstd(content []byte) []byte {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(content, nil)
}

func layerShapes() []imageShape {
	const types, lie, parts = "layer as tar, gzip or zstd of type OCI or Docker, also not for distribution, octet-stream, of old drafts, or without a type",
		"layer with another compression than its type says", "layer of several gzip members or zstd frames, as eStargz and zstd:chunked; zeros behind gzip"
	packed := func(layerType string, pack func(*shaper, []byte) []byte) func(*shaper) object {
		return func(s *shaper) object {
			return s.image(shapedImage{layerType: layerType, pack: func(b []byte) []byte { return pack(s, b) }})
		}
	}
	plain, zipped, zstded := layerTypes()["application/vnd.oci.image.layer.v1.tar"], layerTypes()["none"], (*shaper).zstd
	all := []imageShape{
		{row: lie, name: "tar as gzip", make: packed(dockerLayer, plain)},
		{row: lie, name: "gzip as tar", make: packed(ociImage+"layer.v1.tar", zipped)},
		{row: lie, name: "zstd as gzip", make: packed(ociLayer, zstded)},
		{row: lie, name: "gzip as zstd", make: packed(ociImage+"layer.v1.tar+zstd", zipped)},
		{row: parts, name: "gzip in two members", make: packed(ociLayer, func(s *shaper, b []byte) []byte {
			return append(gzipOfImage(s.t, b[:700]), gzipOfImage(s.t, b[700:])...)
		})},
		{row: parts, name: "eStargz", make: packed(ociLayer, estargz)},
		{row: parts, name: "zeros behind gzip", make: packed(ociLayer, func(s *shaper, b []byte) []byte { return append(zipped(s, b), make([]byte, 5000)...) })},
		{row: parts, name: "zstd in two frames", make: packed(ociImage+"layer.v1.tar+zstd", func(s *shaper, b []byte) []byte { return append(s.zstd(b[:700]), s.zstd(b[700:])...) })},
		{row: parts, name: "zstd:chunked", make: packed(ociImage+"layer.v1.tar+zstd", chunked)},
		{row: parts, name: "gzip of level 0 with a name and a comment", make: packed(ociLayer, func(s *shaper, b []byte) []byte {
			var out bytes.Buffer
			w, err := gzip.NewWriterLevel(&out, gzip.NoCompression)
			if err != nil {
				s.t.Fatal(err)
			}
			w.Name, w.Comment, w.Extra = "layer.tar", "comment", []byte("extra")
			if _, err := w.Write(b); err != nil {
				s.t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				s.t.Fatal(err)
			}
			return out.Bytes()
		})},
	}
	for layerType, pack := range layerTypes() {
		all = append(all, imageShape{row: types, name: layerType, answer: asUsual, make: func(s *shaper) object {
			i := shapedImage{layerType: layerType, pack: func(b []byte) []byte { return pack(s, b) }}
			if !strings.Contains(layerType, "vnd.oci") {
				i.manifestType, i.configType = dockerManifest, dockerConfig
			}
			return s.image(i)
		}})
	}
	return append(append(all, emptyLayerShapes()...), refusedLayerShapes()...)
}

// estargz has a member for each part, and at the end one without content that says where the table of contents begins
// (stargz-snapshotter, docs/estargz.md).
func estargz(s *shaper, b []byte) []byte {
	var out bytes.Buffer
	for _, part := range [][]byte{b[:512], b[512:1024], b[1024:]} {
		out.Write(gzipOfImage(s.t, part))
	}
	w := gzip.NewWriter(&out)
	w.Extra = append([]byte("SG\x16\x00"), "0000000000000400STARGZ"...)
	if err := w.Close(); err != nil {
		s.t.Fatal(err)
	}
	return out.Bytes()
}

// chunked has a frame for each part, and at the end frames with a manifest and a footer that decoders skip.
func chunked(s *shaper, b []byte) []byte {
	skipped := func(content []byte) []byte {
		return append(littleendian.LittleEndian.AppendUint32([]byte("\x50\x2a\x4d\x18"), uint32(len(content))), content...)
	}
	out := append(s.zstd(b[:512]), s.zstd(b[512:])...)
	return append(append(out, skipped(s.zstd([]byte("{}")))...), skipped(make([]byte, 64))...)
}

// emptyGzip is the layer without entries that Docker has for instructions that change no file:
// sha256:a3ed95caeb02ffe68cdd9fd84406680ae93d633cb16422d00e8a7c22955b46d4.
const emptyGzip = "\x1f\x8b\x08\x00\x00\x09\x6e\x88\x00\xff\x62\x18\x05\xa3\x60\x14\x8c\x58\x00\x08\x00\x00\xff\xff\x2e\xaf\xb5\xef\x00\x04\x00\x00"

func emptyLayerShapes() []imageShape {
	const row = "image without layers, with empty ones, with one layer twice, or with `empty_layer` in its history"
	end := make([]byte, 1024) // the end of an archive
	return []imageShape{
		{row: row, name: "empty layer of Docker", make: func(s *shaper) object {
			return s.image(shapedImage{tars: [][]byte{end, s.own(), end, end}, pack: func(b []byte) []byte {
				if len(b) == len(end) {
					return []byte(emptyGzip)
				}
				return gzipOfImage(s.t, b)
			}})
		}},
		{row: row, name: "layers of 1,024 and of 0 bytes", answer: asUsual, make: func(s *shaper) object {
			return s.image(shapedImage{tars: [][]byte{end, s.own(), {}}, layerType: ociImage + "layer.v1.tar", pack: func(b []byte) []byte { return b }})
		}},
		{row: row, name: "gzip of nothing", make: func(s *shaper) object { return s.image(shapedImage{tars: [][]byte{{}, s.own()}}) }},
		{row: row, name: "one layer twice", make: func(s *shaper) object {
			return s.image(shapedImage{tars: [][]byte{s.own(), tarOfImage(s.t, imageFile(".wh.shape", "")), s.own()}})
		}},
		{row: row, name: "history with empty_layer", make: image(shapedImage{config: func(o object) {
			o["history"] = []object{{"created_by": "ADD busybox"}, {"created_by": "ENV a=b", "empty_layer": true}, {"created_by": "COPY shape"}, {"created_by": "CMD sh", "empty_layer": true}}
		}})},
		{row: row, name: "no layers", make: image(shapedImage{alone: true, tars: [][]byte{}}), run: func(s *shaper) []string {
			dir := s.t.TempDir()
			copyFile(s.t, peer("bin/busybox"), filepath.Join(dir, "busybox"))
			return []string{"--workspace", dir, "--", "/workspace/busybox", "echo", s.name}
		}},
	}
}

func refusedLayerShapes() []imageShape {
	const foreign, sealed, lying = "layer that the registry lacks, whose `urls` name other servers", "layer that is encrypted, or packed by xz or bzip2", "layer or config with another content than its digest says"
	return []imageShape{
		{row: foreign, name: "foreign", make: func(s *shaper) object {
			return s.image(shapedImage{layerType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", layer: func(o object) {
				o["urls"] = []string{"https://other.test/layer"}
				s.missing[o["digest"].(string)] = true
			}})
		}, answer: asUsual, refused: "marked as not for distribution: only registries with a copy have it, and its urls are not used"},
		{row: sealed, name: "encrypted", make: image(shapedImage{layerType: ociLayer + "+encrypted"}), answer: asUsual, refused: "it is encrypted; decrypt the image first"},
		{row: sealed, name: "xz", make: image(shapedImage{pack: func([]byte) []byte { return []byte("\xfd7zXZ\x00 and more") }}), refused: "compressed by xz, not by gzip or zstd"},
		{row: sealed, name: "bzip2", make: image(shapedImage{pack: func([]byte) []byte { return []byte("BZh91AY and more") }}), refused: "compressed by bzip2"},
		{row: lying, name: "another layer", make: func(s *shaper) object {
			return s.image(shapedImage{layer: func(o object) { s.blobs[o["digest"].(string)] = bytes.Repeat([]byte("x"), o["size"].(int)) }})
		}, answer: asUsual, refused: "the server sent another content"},
		{row: lying, name: "another DiffID", make: func(s *shaper) object {
			return s.image(shapedImage{pack: func([]byte) []byte { return gzipOfImage(s.t, s.own(imageFile("more", ""))) }})
		}, refused: "the content is another layer"},
		{row: lying, name: "another size", make: image(shapedImage{layer: func(o object) { o["size"] = o["size"].(int) + 1 }}), answer: asUsual, refused: "bytes, and the manifest says"},
	}
}
