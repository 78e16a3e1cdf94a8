package integration

import (
	"crypto/sha512"
	"fmt"
	"net/http"
	"runtime"
	"strings"
)

// ofDocker is an image whose types are all of Docker's.
func ofDocker() shapedImage {
	return shapedImage{manifestType: dockerManifest, configType: dockerConfig, layerType: dockerLayer}
}

func image(i shapedImage) func(*shaper) object {
	return func(s *shaper) object { return s.image(i) }
}

// answerManifests answers requests for manifests with a header.
func answerManifests(header http.Header) func(*shaper, http.ResponseWriter, *http.Request) bool {
	return func(s *shaper, w http.ResponseWriter, r *http.Request) bool {
		_, id, ok := strings.Cut(r.URL.Path, "/manifests/")
		if !ok {
			return false
		}
		for name, values := range header {
			w.Header()[name] = values
		}
		w.Write(s.documents[id].text)
		return true
	}
}

// asUsual is a server without own answers, for images that Debian's registry refuses.
func asUsual(*shaper, http.ResponseWriter, *http.Request) bool { return false }

func manifestShapes() []imageShape {
	without := func(keys ...string) func(*shaper) object {
		return func(s *shaper) object {
			return s.image(shapedImage{manifest: func(o object) {
				for _, key := range keys {
					delete(o, key)
				}
			}})
		}
	}
	formats, bare := "manifest of Docker schema 2, OCI 1.0 or OCI 1.1", "manifest without `mediaType` or `schemaVersion`"
	sent, references := "manifest that is sent as another type of manifest, as any JSON, or without a type", "by tag, digest, or both"
	all := []imageShape{
		{row: formats, name: "OCI 1.0", make: image(shapedImage{})},
		{row: formats, name: "Docker schema 2", make: image(ofDocker())},
		{row: formats, name: "OCI 1.1 with subject, annotations and artifactType", make: func(s *shaper) object {
			subject := s.plain()
			return s.image(shapedImage{tars: [][]byte{s.own(imageFile("other", ""))}, manifest: func(o object) {
				o["subject"], o["annotations"], o["artifactType"] = subject, object{"a": "b"}, "application/vnd.example"
			}})
		}},
		{row: formats, name: "inline data of descriptors", make: image(shapedImage{layer: func(o object) { o["data"] = "bm90IHRoZSBsYXllcg==" }})},
		{row: formats, name: "OCI manifest of Docker's config and layers", make: image(shapedImage{configType: dockerConfig, layerType: dockerLayer})},
		{row: formats, name: "Docker manifest of OCI's config and layers", make: image(shapedImage{manifestType: dockerManifest}), answer: asUsual},
		{row: bare, name: "without mediaType", make: without("mediaType")},
		{row: bare, name: "without schemaVersion", make: without("schemaVersion"), answer: asUsual},
		{row: bare, name: "without both", make: without("mediaType", "schemaVersion"), answer: asUsual},
		{row: references, name: "by digest", make: image(shapedImage{}), reference: func(digest string) string { return "@" + digest }},
		{row: references, name: "by tag and digest", make: image(shapedImage{}), reference: func(digest string) string { return ":any@" + digest }},
		{row: references, name: "index by digest", make: func(s *shaper) object { return s.index(s.plain().on("linux/" + runtime.GOARCH)) },
			reference: func(digest string) string { return "@" + digest }},
		{row: references, name: "manifest of an index by digest", make: func(s *shaper) object {
			d := s.plain()
			s.index(d.on("linux/s390x"))
			return d
		}, reference: func(digest string) string { return "@" + digest }},
	}
	for name, header := range map[string]http.Header{
		"no Content-Type":          {"Content-Type": nil},
		"JSON with a charset":      {"Content-Type": {"application/json; charset=utf-8"}},
		"HTML":                     {"Content-Type": {"text/html"}},
		"Docker for OCI":           {"Content-Type": {dockerManifest}},
		"octet-stream":             {"Content-Type": {"application/octet-stream"}},
		"no Docker-Content-Digest": {"Content-Type": {ociManifest}},
	} {
		all = append(all, imageShape{row: sent, name: name, make: image(shapedImage{}), answer: answerManifests(header)})
	}
	all = append(all, imageShape{row: sent, name: "without answers to HEAD", make: image(shapedImage{}), answer: func(_ *shaper, w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
		return r.Method == http.MethodHead
	}})
	return append(all, refusedManifestShapes()...)
}

func refusedManifestShapes() []imageShape {
	schema1, two := "manifest of schema 1, signed or not", "manifest that has the fields or the type of an index, too; manifest with a wrong digest"
	artifact, hash := "artifact, such as a chart, a module, a signature or an attestation", "digest other than sha256"
	old := object{"schemaVersion": 1, "name": "shapes/image", "tag": "1", "architecture": "amd64", "fsLayers": []object{{"blobSum": digestOfImage(nil)}},
		"history": []object{{"v1Compatibility": "{}"}}}
	document := func(mediaType string, o object) func(*shaper) object {
		return func(s *shaper) object { return s.document(mediaType, o) }
	}
	artifactOf := func(configType, layerType, artifactType string) func(*shaper) object {
		return image(shapedImage{alone: true, configType: configType, layerType: layerType, manifest: func(o object) {
			if artifactType != "" {
				o["artifactType"] = artifactType
			}
		}})
	}
	const empty = "application/vnd.oci.empty.v1+json"
	return []imageShape{
		{row: schema1, name: "plain", make: document(dockerDistribution+"v1+json", old), answer: asUsual, refused: "schema version 1, as Docker wrote before 2016; convert"},
		{row: schema1, name: "signed", make: document(dockerDistribution+"v1+prettyjws", old.with(object{"signatures": []object{{"protected": "x"}}})), answer: asUsual, refused: "schema version 1"},
		{row: schema1, name: "in an index", make: func(s *shaper) object {
			return s.index(s.document(ociManifest, old).on("linux/" + runtime.GOARCH))
		}, answer: asUsual, refused: "schema version 1"},
		{row: two, name: "of two kinds", make: image(shapedImage{manifest: func(o object) { o["manifests"] = []object{} }}), answer: asUsual, refused: "is that of an index, too"},
		{row: two, name: "sent as an index", make: image(shapedImage{}), answer: answerManifests(http.Header{"Content-Type": {ociIndex}}), refused: "does not fit the media type"},
		{row: two, name: "of another digest", make: image(shapedImage{}), answer: answerManifests(http.Header{"Docker-Content-Digest": {digestOfImage([]byte("x"))}}), refused: "another content"},
		{row: two, name: "page of a portal", make: image(shapedImage{}), answer: func(_ *shaper, w http.ResponseWriter, _ *http.Request) bool {
			w.Write([]byte("<html>log in</html>"))
			return true
		}, refused: "parse manifest"},
		{row: artifact, name: "Helm chart", make: artifactOf("application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", ""),
			refused: `not an image: the config has the media type "application/vnd.cncf.helm.config.v1+json"; use the tool for such artifacts, or name another tag`},
		{row: artifact, name: "WebAssembly module", make: artifactOf("application/vnd.wasm.config.v0+json", "application/wasm", ""), refused: "application/vnd.wasm.config.v0+json"},
		{row: artifact, name: "OCI 1.1 artifact", make: artifactOf(empty, empty, "application/spdx+json"), refused: empty},
		{row: artifact, name: "config without a type and an artifactType", make: artifactOf("application/octet-stream", ociLayer, "application/spdx+json"), refused: `"application/spdx+json"`},
		{row: artifact, name: "signature of cosign", make: artifactOf("", "application/vnd.dev.cosign.simplesigning.v1+json", ""), refused: "the layer has the media type"},
		{row: artifact, name: "attestation of BuildKit", make: artifactOf("", "application/vnd.in-toto+json", ""), refused: "application/vnd.in-toto+json"},
		{row: artifact, name: "artifact manifest of ORAS", make: document("application/vnd.cncf.oras.artifact.manifest.v1+json",
			object{"mediaType": "application/vnd.cncf.oras.artifact.manifest.v1+json", "blobs": []object{}}), answer: asUsual, refused: "oras.artifact.manifest"},
		{row: artifact, name: "plugin of Docker", make: artifactOf("application/vnd.docker.plugin.v1+json", "", ""), refused: "application/vnd.docker.plugin.v1+json"},
		{row: artifact, name: "model of Docker", make: artifactOf("application/vnd.docker.ai.model.config.v0.1+json", "application/vnd.docker.ai.gguf.v3", ""), refused: "application/vnd.docker.ai.model"},
		{row: hash, name: "layer of sha512", make: image(shapedImage{layer: func(o object) { o["digest"] = fmt.Sprintf("sha512:%x", sha512.Sum512(nil)) }}), answer: asUsual, refused: "unsupported digest; sha256 is supported"},
		{row: hash, name: "reference of sha512", make: image(shapedImage{}), answer: asUsual,
			reference: func(string) string { return fmt.Sprintf("@sha512:%x", sha512.Sum512(nil)) }, refused: "digest"},
	}
}

// attestation is the entry of an index that BuildKit writes for an image.
func (s *shaper) attestation(subject object) object {
	d := s.image(shapedImage{alone: true, layerType: "application/vnd.in-toto+json", config: func(o object) { o["os"], o["architecture"] = "unknown", "unknown" }})
	return d.on("unknown/unknown").with(object{"annotations": object{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": subject["digest"]}})
}

// other is an image for another architecture, without anything that runs.
func (s *shaper) other(platform string) object {
	return s.image(shapedImage{alone: true, tars: [][]byte{tarOfImage(s.t, imageFile("for", platform))}, config: func(o object) {
		o["architecture"] = strings.Split(platform, "/")[1]
	}})
}

func indexShapes() []imageShape {
	const nested, attested = "index or manifest list, also one in another up to 4 deep", "index with attestations, artifacts and unknown types, also before the image"
	const without, variants = "index whose entries have no platform", "index with variants, or odd names of architectures"
	const wrong = "index that has another platform for an image than its config"
	here := "linux/" + runtime.GOARCH
	all := []imageShape{
		{row: nested, name: "index", make: func(s *shaper) object { return s.index(s.other("linux/s390x").on("linux/s390x"), s.plain().on(here)) }},
		{row: nested, name: "manifest list", make: func(s *shaper) object { return s.list(s.image(ofDocker()).on(here)) }},
		{row: nested, name: "index in an index", make: func(s *shaper) object { return s.index(s.index(s.plain().on(here))) }},
		{row: nested, name: "index with a platform in an index", make: func(s *shaper) object {
			return s.index(s.index(s.other("linux/s390x").on("linux/s390x")).on("linux/s390x"), s.index(s.plain().on(here)).on(here))
		}},
		{row: nested, name: "manifest list in an index", make: func(s *shaper) object { return s.index(s.list(s.image(ofDocker()).on(here))) }},
		{row: nested, name: "index in a manifest list", make: func(s *shaper) object { return s.list(s.index(s.plain().on(here)).on(here)) }, answer: asUsual},
		{row: nested, name: "4 deep", make: func(s *shaper) object { return s.index(s.index(s.index(s.index(s.plain().on(here))))) }},
		{row: nested, name: "first inner index is for others", make: func(s *shaper) object {
			return s.index(s.index(s.other("linux/s390x").on("linux/s390x")), s.index(s.plain().on(here)))
		}},
		{row: nested, name: "OCI manifests in a manifest list", make: func(s *shaper) object { return s.list(s.plain().on(here)) }, answer: asUsual},
		{row: nested, name: "without mediaType and schemaVersion", make: func(s *shaper) object {
			return s.document(ociIndex, object{"manifests": []object{s.plain().on(here)}})
		}, answer: asUsual},
		{row: attested, name: "attestation behind", make: func(s *shaper) object { d := s.plain(); return s.index(d.on(here), s.attestation(d)) }},
		{row: attested, name: "attestation first", make: func(s *shaper) object { d := s.plain(); return s.index(s.attestation(d), d.on(here)) }},
		{row: attested, name: "attestation, image without platform", make: func(s *shaper) object { d := s.plain(); return s.index(s.attestation(d), d) }},
		{row: attested, name: "attestation by its annotation alone", make: func(s *shaper) object {
			d := s.plain()
			return s.index(s.attestation(d).without("platform"), d)
		}},
		{row: attested, name: "artifact with the same platform", make: func(s *shaper) object {
			chart := s.image(shapedImage{alone: true, configType: "application/vnd.cncf.helm.config.v1+json"})
			return s.index(chart.on(here), chart, s.plain().on(here))
		}},
		{row: attested, name: "artifactType of an entry", make: func(s *shaper) object {
			chart := s.image(shapedImage{alone: true, configType: "application/vnd.cncf.helm.config.v1+json"})
			return s.index(chart.with(object{"artifactType": "application/vnd.cncf.helm.config.v1+json"}), s.plain())
		}},
		{row: attested, name: "unknown type", make: func(s *shaper) object {
			return s.index(describeBlob("application/vnd.example.v1+json", []byte("x")).on(here), s.plain().on(here))
		}, answer: asUsual},
		{row: attested, name: "unsupported digest of another platform", make: func(s *shaper) object {
			return s.index(object{"mediaType": ociManifest, "size": 1, "digest": fmt.Sprintf("sha512:%x", sha512.Sum512(nil))}.on("linux/s390x"), s.plain().on(here))
		}, answer: asUsual},
		{row: without, name: "one", make: func(s *shaper) object { return s.index(s.plain()) }},
		{row: without, name: "several", make: func(s *shaper) object { return s.index(s.other("linux/s390x"), s.other("linux/arm64"), s.plain()) }},
		{row: without, name: "beside one with a platform", make: func(s *shaper) object { return s.index(s.other("linux/s390x"), s.plain().on(here)) }},
		{row: without, name: "empty platform", make: func(s *shaper) object { return s.list(s.other("linux/s390x"), s.plain().on("/")) }, answer: asUsual},
		{row: without, name: "config without a platform", make: func(s *shaper) object {
			return s.index(s.image(shapedImage{config: func(o object) { delete(o, "os"); delete(o, "architecture") }}))
		}},
		{row: wrong, name: "right in the index", make: func(s *shaper) object {
			return s.index(s.image(shapedImage{config: func(o object) { o["architecture"] = "s390x" }}).on(here))
		}},
		{row: wrong, name: "os.version and features", make: func(s *shaper) object {
			d := s.plain().on(here)
			d["platform"].(object)["os.version"], d["platform"].(object)["os.features"] = "1.2", []string{"x"}
			return s.index(d)
		}},
	}
	if runtime.GOARCH == "amd64" {
		all = append(all, imageShape{row: variants, name: "v1 and v9", make: func(s *shaper) object {
			return s.index(s.other("linux/s390x").on("linux/amd64/v9"), s.plain().on("linux/amd64/v1"))
		}}, imageShape{row: variants, name: "x86_64", make: func(s *shaper) object { return s.index(s.plain().on("Linux/x86_64")) }})
	}
	return append(all, refusedIndexShapes()...)
}

func refusedIndexShapes() []imageShape {
	const deep, others, none = "index that is 5 deep, or has more than 64 manifests to look into", "index for other platforms alone, as 386 for amd64", "index without an image"
	const alone = "image for another platform, until `--platform` names it"
	here := "linux/" + runtime.GOARCH
	return []imageShape{
		{row: deep, name: "5 deep", make: func(s *shaper) object { return s.index(s.index(s.index(s.index(s.index(s.plain().on(here)))))) }, refused: "more than 4 indexes"},
		{row: deep, name: "65 manifests without platform", make: func(s *shaper) object {
			var all []object
			for n := range 65 {
				all = append(all, s.other(fmt.Sprintf("linux/s390x/%d", n)))
			}
			return s.index(append(all, s.plain())...)
		}, answer: asUsual, refused: "more than 64 manifests"},
		{row: others, name: "s390x", make: func(s *shaper) object { return s.index(s.other("linux/s390x").on("linux/s390x")) },
			refused: "no image for " + here + "; the platforms are linux/s390x: choose one with --platform"},
		{row: others, name: "386", make: func(s *shaper) object { return s.index(s.other("linux/386").on("linux/386")) }, refused: "linux/386"},
		{row: others, name: "Windows", make: func(s *shaper) object { return s.index(s.other("windows/amd64").on("windows/amd64")) }, refused: "windows/amd64"},
		{row: none, name: "empty", make: func(s *shaper) object { return s.index([]object{}...) }, answer: asUsual, refused: "nor for any other platform"},
		{row: none, name: "attestations", make: func(s *shaper) object { return s.index(s.attestation(s.plain())) }, refused: "nor for any other platform"},
		{row: none, name: "chart", make: func(s *shaper) object {
			return s.index(s.image(shapedImage{alone: true, configType: "application/vnd.cncf.helm.config.v1+json"}))
		}, refused: "not an image: the config has the media type"},
		{row: none, name: "chart with a platform", make: func(s *shaper) object {
			return s.index(s.image(shapedImage{alone: true, configType: "application/vnd.cncf.helm.config.v1+json"}).on(here))
		}, refused: "not an image: the config has the media type"},
		{row: alone, name: "another architecture", make: func(s *shaper) object { return s.other("linux/s390x") },
			refused: "the image is for linux/s390x, not for " + here + "; choose it with --platform linux/s390x"},
		{row: alone, name: "another system", make: image(shapedImage{config: func(o object) { o["os"] = "windows" }}), refused: "windows"},
	}
}
