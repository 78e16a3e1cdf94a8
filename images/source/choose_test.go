package source

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// putIndex stores an index of these entries.
func (f *fakeRegistry) putIndex(t *testing.T, tag string, entries ...descriptor) descriptor {
	t.Helper()
	return f.putManifest(t, document{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: append(descriptors{}, entries...)}, types.OCIImageIndex, tag)
}

func (d descriptor) forPlatform(p string) descriptor {
	parts := append(strings.Split(p, "/"), "")
	d.Platform = &platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}
	return d
}

// Each image is a list of platforms, the wanted one, and the chosen one. The order is that of
// containerd's platforms.Only, but without older architectures.
func TestTheBestPlatformIsChosen(t *testing.T) {
	for _, test := range []struct{ all, want, chosen string }{
		{"linux/arm/v5 linux/arm/v6 linux/arm/v7", "linux/arm", "linux/arm/v7"},
		{"linux/arm/v5 linux/arm/v6 linux/arm/v8", "linux/arm", "linux/arm/v6"},
		{"linux/arm/v5 linux/arm/v6", "linux/arm/v7", "linux/arm/v6"},
		{"linux/arm/v6 linux/arm", "linux/arm/v7", "linux/arm"},
		{"linux/arm/v7", "linux/arm/v6", ""},
		{"linux/arm64", "linux/arm64/v8", "linux/arm64"},
		{"linux/arm64/v8", "linux/arm64", "linux/arm64/v8"},
		{"linux/arm64/8", "linux/aarch64", "linux/arm64/8"},
		{"linux/arm64/v9 linux/arm64/v8.1 linux/arm64", "linux/arm64/v8.2", "linux/arm64/v8.1"},
		{"linux/arm64/v9", "linux/arm64", ""},
		{"linux/arm/v7 linux/arm/v8", "linux/arm64", ""},
		{"linux/arm64 linux/arm", "linux/arm", "linux/arm"},
		{"linux/amd64/v3 linux/amd64/v2 linux/amd64", "linux/amd64/v2", "linux/amd64/v2"},
		{"linux/amd64/v3 linux/amd64", "linux/amd64/v2", "linux/amd64"},
		{"linux/386 linux/amd64", "linux/amd64", "linux/amd64"},
		{"linux/386", "linux/amd64", ""},
		{"linux/amd64", "linux/386", ""},
		{"Linux/x86_64", "linux/amd64", "Linux/x86_64"},
		{"linux/ppc64le/power9 linux/ppc64le", "linux/ppc64le/power9", "linux/ppc64le/power9"},
		{"linux/riscv64", "linux/riscv64", "linux/riscv64"},
		{"windows/amd64 unknown/unknown", "linux/amd64", ""},
	} {
		want, err := parsePlatform(test.want)
		if err != nil {
			t.Fatal(err)
		}
		var entries []descriptor
		for _, p := range strings.Fields(test.all) {
			entries = append(entries, descriptor{}.forPlatform(p))
		}
		chosen := ""
		if named := (&chooser{want: want}).candidates(entries); len(named) > 0 {
			chosen = named[0].Platform.String()
		}
		if chosen != test.chosen {
			t.Errorf("of %s for %s: %q, want %q", test.all, test.want, chosen, test.chosen)
		}
	}
}

// This processor gets the highest level that it has, and no higher one.
func TestTheProcessorsLevelIsChosen(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("levels are of amd64")
	}
	var entries []descriptor
	for level := 9; level > 0; level-- {
		entries = append(entries, descriptor{}.forPlatform(fmt.Sprintf("linux/amd64/v%d", level)))
	}
	want, err := parsePlatform("")
	if err != nil {
		t.Fatal(err)
	}
	named := (&chooser{want: want}).candidates(entries)
	if len(named) != amd64Level() || named[0].Platform.Variant != fmt.Sprintf("v%d", amd64Level()) {
		t.Errorf("level %d: %+v", amd64Level(), named)
	}
}

func TestAnIndexInAnIndex(t *testing.T) {
	f := newFakeRegistry(t)
	right, wrong := noise(t, 1, 10), noise(t, 2, 10)
	image, other := f.putImage(t, "", "amd64", right), f.putImage(t, "", "arm64", wrong)
	inner := f.putIndex(t, "", other.forPlatform("linux/arm64"), image.forPlatform("linux/amd64"))
	empty := f.putIndex(t, "", other.forPlatform("linux/arm64"))
	o := testOptions(t)
	for name, entries := range map[string][]descriptor{
		"alone":                  {inner},
		"with a platform":        {other.forPlatform("linux/arm64"), inner.forPlatform("linux/amd64")},
		"behind one without":     {empty, inner},
		"behind a named without": {empty.forPlatform("linux/amd64"), inner},
		"manifests only":         {other, image},
		"3 more":                 {f.putIndex(t, "", f.putIndex(t, "", inner))},
	} {
		d := f.putIndex(t, "tag", entries...)
		if got := mustRead(t, f.ref(), o, right); got.Resolved != d.Digest || got.Digest != image.Digest {
			t.Errorf("%s: %+v", name, got)
		}
	}
	f.putIndex(t, "tag", f.putIndex(t, "", f.putIndex(t, "", f.putIndex(t, "", inner))))
	refuses(t, f.ref(), o, "more than 4 indexes")
	f.putIndex(t, "tag", empty, other)
	refuses(t, f.ref(), o, "no image for linux/amd64; the platforms are linux/arm64: choose one with --platform")
}

// An index full of manifests without a platform costs a bounded number of requests.
func TestManifestsWithoutPlatformsAreBounded(t *testing.T) {
	f := newFakeRegistry(t)
	var entries []descriptor
	for i := range 3 * maxDocuments {
		entries = append(entries, f.putImage(t, "", "arm64", noise(t, uint64(i), 1)))
	}
	f.putIndex(t, "tag", entries...)
	refuses(t, f.ref(), testOptions(t), "to choose from; pull one of them by its digest")
	if n := f.count("GET /v2/some/image/manifests"); n > maxDocuments+1 {
		t.Errorf("%d requests", n)
	}
}

// Servers send many types, but not those of the other kind.
func TestTypesOfServers(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 10)
	d := f.putImage(t, "tag", "amd64", layer)
	send := func(contentType string) {
		f.set(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header()["Content-Type"] = []string{contentType}
			f.mu.Lock()
			defer f.mu.Unlock()
			w.Write(f.objects[d.Digest])
			return true
		})
	}
	for _, contentType := range []string{"", "application/json; charset=utf-8", "text/plain", "text/html", "application/octet-stream", "application/x-odd",
		string(types.DockerManifestSchema2), string(types.OCIManifestSchema1) + ";charset=UTF-8"} {
		send(contentType)
		mustRead(t, f.ref(), testOptions(t), layer)
	}
	send(string(types.OCIImageIndex))
	refuses(t, f.ref(), testOptions(t), "does not fit")
}
