package source

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// blobHook answers requests for large blobs.
func blobHook(f *fakeRegistry, answer func(w http.ResponseWriter, r *http.Request, content []byte)) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(f, r, 50_000) {
			return false
		}
		answer(w, r, f.objects[filepath.Base(r.URL.Path)])
		return true
	}
}

func TestLyingLayersAreRefused(t *testing.T) {
	tests := map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, content []byte)
		says   string
	}{
		"another content": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
			lie := bytes.Clone(content)
			lie[len(lie)-1] ^= 1
			w.Write(lie)
		}, "its digest is wrong"},
		"a longer one": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
			w.Header().Set("Content-Length", fmt.Sprint(len(content)+1))
			w.Write(append(bytes.Clone(content), 0))
		}, "the manifest says"},
		"a longer one without length": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
			w.(http.Flusher).Flush()
			w.Write(append(bytes.Clone(content), 0))
		}, "more than"},
		"a shorter one": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
			w.Header().Set("Content-Length", fmt.Sprint(len(content)-1))
			w.Write(content[1:])
		}, "the manifest says"},
		"one that always ends early": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
			w.(http.Flusher).Flush()
			w.Write(content[:1000])
		}, "tries"},
		"a wrong range": {func(w http.ResponseWriter, r *http.Request, content []byte) {
			if r.Header.Get("Range") == "" {
				w.(http.Flusher).Flush()
				w.Write(content[:1000])
				return
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(content)-1, len(content)))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(content)
		}, "tries"},
		"an unknown status": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
			w.WriteHeader(http.StatusNonAuthoritativeInfo)
			w.Write(content)
		}, "203"},
		"terminal escapes": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"errors":[{"code":"\u001b[31mDENIED\n","message":"`+strings.Repeat("x", 3000)+`"}]}`)
		}, "403"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			f.putImage(t, "tag", "amd64", noise(t, 1, 100_000))
			f.set(blobHook(f, test.answer))
			o := testOptions(t)
			refuses(t, f.ref(), o, test.says)
			if whole, _ := filepath.Glob(filepath.Join(o.Cache, blobsDir, "*")); len(whole) != 2 {
				t.Errorf("%q are in the cache, not only the manifest and the config", whole)
			}
			// The next pull from an honest server succeeds.
			f.set(nil)
			mustRead(t, f.ref(), o, noise(t, 1, 100_000))
		})
	}
}

func TestStallsEnd(t *testing.T) {
	stops := map[string]func(w http.ResponseWriter, r *http.Request, content []byte){
		"without an answer": func(http.ResponseWriter, *http.Request, []byte) {},
		"in the body": func(w http.ResponseWriter, _ *http.Request, content []byte) {
			w.Write(content[:1000])
			w.(http.Flusher).Flush()
		},
	}
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 100_000)
			f.putImage(t, "tag", "amd64", layer)
			end := make(chan struct{})
			var stalls atomic.Int32
			f.set(blobHook(f, func(w http.ResponseWriter, r *http.Request, content []byte) {
				stalls.Add(1)
				stop(w, r, content)
				select {
				case <-r.Context().Done():
				case <-end:
				}
			}))
			o := testOptions(t)
			if name == "in the body" {
				o.patience.stall = shortStall
			} else {
				o.patience.answer = shortStall
			}
			refuses(t, f.ref(), o, map[string]string{"without an answer": "timeout", "in the body": "stalls"}[name])
			if n := stalls.Load(); n != 5 {
				t.Errorf("%d tries", n)
			}
			close(end)
		})
	}
}

// A server that sends a byte now and then is a stall, too.
func TestDripEnds(t *testing.T) {
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64", noise(t, 1, 100_000))
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v2/some/image/manifests/tag" || r.Method != http.MethodGet {
			w.Header().Set("Docker-Content-Digest", "none")
			return r.Method == http.MethodHead
		}
		for r.Context().Err() == nil {
			io.WriteString(w, " ")
			w.(http.Flusher).Flush()
			time.Sleep(5 * time.Millisecond)
		}
		return true
	})
	o := testOptions(t)
	o.patience.stall = shortStall
	refuses(t, f.ref(), o, "read manifest", "stalls")
	if n := f.count("GET /v2/some/image/manifests/tag"); n != 5 {
		t.Errorf("%d tries", n)
	}
}

func TestCutManifestIsAskedAgain(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 1000)
	f.putImage(t, "tag", "amd64", layer)
	var asked atomic.Int32
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/sha256:") || asked.Add(1) > 2 {
			return false
		}
		f.answer(&cutWriter{ResponseWriter: w, left: 100}, r)
		panic(http.ErrAbortHandler)
	})
	mustRead(t, f.ref(), testOptions(t), layer)
	if n := asked.Load(); n != 3 {
		t.Errorf("%d requests", n)
	}
}

func TestBusyServerIsAskedAgain(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 100_000)
			f.putImage(t, "tag", "amd64", layer)
			var asked atomic.Int32
			f.set(func(w http.ResponseWriter, _ *http.Request) bool {
				if asked.Add(1)%3 == 0 {
					return false
				}
				w.WriteHeader(status)
				return true
			})
			mustRead(t, f.ref(), testOptions(t), layer)
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/blobs/") {
					w.WriteHeader(status)
					return true
				}
				return false
			})
			before := f.count("blobs")
			refuses(t, f.ref(), testOptions(t), fmt.Sprint(status))
			if n := f.count("blobs") - before; n != 5 {
				t.Errorf("%d tries", n)
			}
		})
	}
}

func TestRetryAfterIsKeptAndBounded(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 100_000)
	f.putImage(t, "tag", "amd64", layer)
	var first, second time.Time
	f.set(blobHook(f, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		if first.IsZero() {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		second = time.Now()
		f.answer(w, r)
	}))
	mustRead(t, f.ref(), testOptions(t), layer)
	if d := second.Sub(first); d < time.Second {
		t.Errorf("asked again after %v", d)
	}
	f.set(blobHook(f, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Retry-After", "86400")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	before := f.count("blobs")
	refuses(t, f.ref(), testOptions(t), "429", "24h0m0s; try again later")
	if n := f.count("blobs") - before; n != 2 { // with the config
		t.Errorf("%d requests", n)
	}
	if d := retryAfter(time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), time.Now()); d < 59*time.Minute || d > time.Hour {
		t.Errorf("a date is %v", d)
	}
}

// The digest of a tag is fixed once.
func TestTagThatChangesDuringThePull(t *testing.T) {
	f := newFakeRegistry(t)
	old, after := noise(t, 1, 1000), noise(t, 2, 1000)
	first := f.putImage(t, "tag", "amd64", old)
	second := f.putImage(t, "", "amd64", after)
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		f.answer(w, r)
		if strings.Contains(r.URL.Path, "/manifests/tag") {
			f.mu.Lock()
			f.tags["tag"] = second.Digest
			f.mu.Unlock()
		}
		return true
	})
	o := testOptions(t)
	if image := mustRead(t, f.ref(), o, old); image.Digest != first.Digest {
		t.Errorf("%s was read", image.Digest)
	}
	if image := mustRead(t, f.ref(), o, after); image.Digest != second.Digest {
		t.Errorf("%s was read", image.Digest)
	}
}

// A registry that lies about the digest of a tag, or sends another manifest for a digest.
func TestManifestOfAnotherDigest(t *testing.T) {
	f := newFakeRegistry(t)
	d := f.putImage(t, "tag", "amd64", noise(t, 1, 1000))
	other := f.putImage(t, "other", "amd64", noise(t, 2, 1000))
	f.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/sha256:") {
			r.URL.Path = "/v2/some/image/manifests/" + other.Digest
		}
		return false
	})
	refuses(t, f.ref(), testOptions(t), d.Digest, "another content")
	refuses(t, f.host+"/some/image@"+d.Digest, testOptions(t), "another content")
}

func TestHugeManifest(t *testing.T) {
	f := newFakeRegistry(t)
	var sent atomic.Int64
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") || r.Method != http.MethodGet {
			return r.Method == http.MethodHead
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		chunk := bytes.Repeat([]byte("{"), 1<<20)
		for range 100 {
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				break
			}
		}
		return true
	})
	refuses(t, f.ref(), testOptions(t), "larger than 4194304 bytes")
	if n := sent.Load(); n > 20<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}

// The memory for a manifest stays near its size.
func TestManifestWithAMillionLayers(t *testing.T) {
	for _, key := range []string{"layers", "manifests"} {
		text := []byte(`{"schemaVersion":2,"` + key + `":[` + strings.Repeat("{},", 1_300_000) + `{}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := parseDocument(text, "")
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "more than 1000") {
			t.Error(err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("%d bytes of memory", used)
		}
	}
}

func TestUnsupportedImagesAreRefused(t *testing.T) {
	digest := digestOf(nil)
	manifest := func(text string) []byte {
		return []byte(strings.NewReplacer("DIGEST", digest, "OCI", "application/vnd.oci.image.",
			"CONFIG", `"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"`+digest+`","size":2}`).Replace(text))
	}
	tests := map[string]struct {
		text, says string
		declared   types.MediaType
	}{
		"encrypted layer":     {`{"schemaVersion":2,CONFIG,"layers":[{"mediaType":"OCIlayer.v1.tar+gzip+encrypted","digest":"DIGEST","size":1}]}`, "it is encrypted; decrypt the image first", ""},
		"artifact":            {`{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"DIGEST","size":2},"layers":[]}`, "not an image: the config has the media type \"application/vnd.cncf.helm.config.v1+json\"", ""},
		"schema version 1":    {`{"schemaVersion":1}`, "schema version 1", types.DockerManifestSchema1Signed},
		"unknown type":        {`{"schemaVersion":2}`, "neither a manifest of an image nor an index", "text/html"},
		"two kinds, declared": {`{"schemaVersion":2,CONFIG,"layers":[],"manifests":[]}`, "that of an index, too", types.OCIManifestSchema1},
		"two kinds":           {`{"schemaVersion":2,CONFIG,"layers":[],"manifests":[]}`, "that of an index, too", ""},
		"index as manifest":   {`{"schemaVersion":2,"manifests":[]}`, "does not fit", types.OCIManifestSchema1},
		"manifest as index":   {`{"schemaVersion":2,CONFIG,"layers":[]}`, "does not fit", types.OCIImageIndex},
		"two types":           {`{"schemaVersion":2,"mediaType":"OCIindex.v1+json","manifests":[]}`, "does not fit", types.OCIManifestSchema1},
		"no config":           {`{"schemaVersion":2,"layers":[]}`, "no config", ""},
		"no JSON":             {`<html>`, "parse manifest", ""},
		"path as digest":      {`{"schemaVersion":2,CONFIG,"layers":[{"mediaType":"OCIlayer.v1.tar","digest":"sha256:../../../etc/passwd","size":1}]}`, "unsupported digest", ""},
		"weak digest":         {`{"schemaVersion":2,CONFIG,"layers":[{"mediaType":"OCIlayer.v1.tar","digest":"md5:00","size":1}]}`, "unsupported digest", ""},
		"negative size":       {`{"schemaVersion":2,CONFIG,"layers":[{"mediaType":"OCIlayer.v1.tar","digest":"DIGEST","size":-1}]}`, "invalid size -1", ""},
		"large config":        {`{"schemaVersion":2,"config":{"mediaType":"OCIconfig.v1+json","digest":"DIGEST","size":4194305},"layers":[]}`, "at most 4194304", ""},
		"too many layers":     {`{"schemaVersion":2,CONFIG,"layers":[` + strings.Repeat("{},", 1000) + `{}]}`, "more than 1000 layers", ""},
		"layers of no array":  {`{"schemaVersion":2,CONFIG,"layers":{"a":1}}`, "not an array", ""},
		"null instead of all": {`null`, "neither a manifest of an image nor an index", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parseDocument(manifest(test.text), test.declared)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v lacks %q", err, test.says)
			}
		})
	}
}

func TestConfigsThatDoNotFit(t *testing.T) {
	id := digestOf(nil)
	many := strings.Repeat(`"`+id+`",`, 2000) + `"` + id + `"`
	for name, test := range map[string]struct {
		text, says string
		layers     int
	}{
		"another architecture": {`{"os":"linux","architecture":"s390x","rootfs":{"type":"layers"}}`, "the image is for linux/s390x, not for linux/amd64", 0},
		"another system":       {`{"os":"windows","architecture":"amd64","rootfs":{"type":"layers"}}`, "windows/amd64", 0},
		"too few":              {`{"rootfs":{"type":"layers","diff_ids":["` + id + `"]}}`, "1 DiffIDs for 2 layers", 2},
		"too many":             {`{"rootfs":{"type":"layers","diff_ids":[` + many + `]}}`, "too many", 2001},
		"no DiffID":            {`{"rootfs":{"type":"layers","diff_ids":["../x"]}}`, "unsupported DiffID", 1},
		"another type":         {`{"rootfs":{"type":"merged"}}`, "\"layers\" is supported", 0},
		"no JSON":              {`[`, "parse config", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parseConfig([]byte(test.text), test.layers)
			if err == nil {
				err = c.check(platform{OS: "linux", Architecture: "amd64"})
			}
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v lacks %q", err, test.says)
			}
		})
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":2},"layers":[]}`), "")
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"","platform":{"os":"linux"}}]}`), string(types.OCIImageIndex))
	f.Fuzz(func(t *testing.T, text []byte, declared string) {
		d, err := parseDocument(text, types.MediaType(declared))
		if err != nil {
			readable(err)
			return
		}
		if d.isIndex() == (d.Config != nil) || d.isIndex() && d.Layers != nil || len(d.Layers) > maxLayers || len(d.Manifests) > maxLayers {
			t.Errorf("%+v", d)
		}
		for _, l := range d.Layers {
			if !validDigest(l.Digest) || l.Size < 0 {
				t.Errorf("%+v", l)
			}
		}
	})
}

// The resolver tries again itself, so a failed lookup ends the first contact at once.
func TestFailedLookupIsNotRepeated(t *testing.T) {
	asked := 0
	transport := roundTripper(func(*http.Request) (*http.Response, error) {
		asked++
		return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "server misbehaving", Name: "registry.test", IsTemporary: true}}
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://registry.test/v2/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&retrier{transport, impatient}).RoundTrip(request); err == nil || asked != 1 {
		t.Errorf("%d requests, %v", asked, err)
	}
}
