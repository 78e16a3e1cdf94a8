package source

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// refusals are the ways in which a server does not go on behind a part.
func refusals(t *testing.T) map[string]func(w http.ResponseWriter, r *http.Request, content []byte) {
	status := func(code int) func(http.ResponseWriter, *http.Request, []byte) {
		return func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(code) }
	}
	partly := func(w http.ResponseWriter, first, last, whole int, body []byte) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, whole))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(body)
	}
	offset := func(r *http.Request) (n int) {
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &n)
		return n
	}
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, "<Error><Code>SignatureDoesNotMatch</Code></Error>")
	}))
	t.Cleanup(store.Close)
	all := map[string]func(w http.ResponseWriter, r *http.Request, content []byte){
		"redirect to a store that refuses": func(w http.ResponseWriter, r *http.Request, _ []byte) {
			http.Redirect(w, r, store.URL+"/blob?signature=x", http.StatusTemporaryRedirect)
		},
		"range of the whole": func(w http.ResponseWriter, _ *http.Request, content []byte) {
			partly(w, 0, len(content)-1, len(content), content)
		},
		"range of a smaller object": func(w http.ResponseWriter, r *http.Request, content []byte) {
			n := offset(r)
			partly(w, n, len(content)-2, len(content)-1, content[n:len(content)-1])
		},
		"no range": func(w http.ResponseWriter, r *http.Request, content []byte) {
			w.WriteHeader(http.StatusPartialContent)
			w.Write(content[offset(r):])
		},
		"several ranges": func(w http.ResponseWriter, r *http.Request, content []byte) {
			w.Header().Set("Content-Type", "multipart/byteranges; boundary=x")
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprintf(w, "--x\r\nContent-Range: bytes %d-%d/%[2]d\r\n\r\n%s\r\n--x--\r\n", offset(r), len(content)-1, content[offset(r):])
		},
		"encoded range": func(w http.ResponseWriter, r *http.Request, content []byte) {
			w.Header().Set("Content-Encoding", "br")
			n := offset(r)
			partly(w, n, len(content)-1, len(content), bytes.Repeat([]byte{1}, len(content)-n))
		},
		"whole of another size": func(w http.ResponseWriter, _ *http.Request, content []byte) {
			w.Write(content[:500])
		},
		"longer rest": func(w http.ResponseWriter, r *http.Request, content []byte) {
			n := offset(r)
			partly(w, n, len(content)-1, len(content), append(bytes.Clone(content[n:]), 0))
		},
		"rest that is cut each time": func(w http.ResponseWriter, r *http.Request, content []byte) {
			n := offset(r)
			partly(w, n, len(content)-1, len(content), nil)
		},
		"other rest": func(w http.ResponseWriter, r *http.Request, content []byte) {
			n := offset(r)
			partly(w, n, len(content)-1, len(content), make([]byte, len(content)-n))
		},
		"closed connection": func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) },
	}
	for _, code := range []int{400, 401, 403, 404, 405, 410, 412, 416, 429, 500, 501, 503} {
		all[fmt.Sprint(code)] = status(code)
	}
	return all
}

// cutAt answers whole requests, and cuts the first of them.
func cutAt(f *fakeRegistry, size int, refuse func(w http.ResponseWriter, r *http.Request, content []byte)) func(w http.ResponseWriter, r *http.Request) bool {
	var cut atomic.Bool
	return blobHook(f, func(w http.ResponseWriter, r *http.Request, content []byte) {
		switch {
		case r.Header.Get("Range") != "":
			refuse(w, r, content)
		case cut.CompareAndSwap(false, true):
			f.answer(&cutWriter{ResponseWriter: w, left: size}, r)
			panic(http.ErrAbortHandler)
		default:
			f.answer(w, r)
		}
	})
}

// A server that does not go on behind a part is asked for the whole in the same pull.
func TestRefusedPartIsDropped(t *testing.T) {
	for name, refuse := range refusals(t) {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 100_000)
			f.putImage(t, "tag", "amd64", layer)
			o := testOptions(t)
			f.set(cutAt(f, 50_000, refuse))
			mustRead(t, f.ref(), o, layer)
			if n := f.count("/blobs/"); n > 12 { // the config, the cut, at most five tries for the rest, and the whole
				t.Errorf("%d requests", n)
			}
			// So it is for a part that an earlier pull has left.
			leavePart(t, f, o, 50_000)
			mustRead(t, f.ref(), o, layer)
		})
	}
}

// leavePart replaces the layer in the cache with a part.
func leavePart(t *testing.T, f *fakeRegistry, o Options, size int64) {
	t.Helper()
	for digest, content := range f.objects {
		whole := filepath.Join(o.Cache, blobsDir, digits(digest))
		if len(content) < 50_000 {
			continue
		}
		if err := os.Rename(whole, filepath.Join(o.Cache, partialDir, digits(digest))); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(o.Cache, partialDir, digits(digest)), size); err != nil {
			t.Fatal(err)
		}
	}
}

// The error of a server that refuses the whole, too, is the error of the pull. The part makes no later pull fail.
func TestServerThatRefusesAll(t *testing.T) {
	for _, code := range []int{400, 401, 403, 404, 416, 503} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 100_000)
			f.putImage(t, "tag", "amd64", layer)
			o := testOptions(t)
			mustRead(t, f.ref(), o, layer)
			leavePart(t, f, o, 50_000)
			refuse := func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(code) }
			f.set(blobHook(f, refuse))
			before := f.count("/blobs/")
			refuses(t, f.ref(), o, fmt.Sprint(code))
			if n := f.count("/blobs/") - before; n > 10 {
				t.Errorf("%d requests", n)
			}
			f.set(cutAt(f, 60_000, refuse))
			mustRead(t, f.ref(), o, layer)
		})
	}
}

// A refused rest at one server is no reason to leave the others out.
func TestRefusedPartWithADeadMirror(t *testing.T) {
	f, mirror := newFakeRegistry(t), newFakeRegistry(t)
	layer := noise(t, 1, 100_000)
	f.putImage(t, "tag", "amd64", layer)
	mirror.server.Close()
	o := testOptions(t)
	o.Mirrors = map[string][]string{f.host: {mirror.host}}
	f.set(cutAt(f, 50_000, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusForbidden) }))
	mustRead(t, f.ref(), o, layer)
}

// A server without ranges whose answers end at changing places ends the pull, and not never.
func TestCutsAtChangingPlacesEnd(t *testing.T) {
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64", noise(t, 1, 5_000_000))
	var asked atomic.Int32
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(f, r, 1_000_000) {
			return false
		}
		n := asked.Add(1)
		if n > 100 {
			w.WriteHeader(http.StatusGone)
			return true
		}
		r.Header.Del("Range")
		f.answer(&cutWriter{ResponseWriter: w, left: 1_000_000 + int(n%2)*3_000_000}, r)
		panic(http.ErrAbortHandler)
	})
	refuses(t, f.ref(), testOptions(t), "tries")
	if n := asked.Load(); n > 20 {
		t.Errorf("%d requests", n)
	}
}

// The part stays if the server cannot be reached, and the next pull goes on.
func TestUnreachedServerCostsNoPart(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 3_000_000)
	f.putImage(t, "tag", "amd64", layer)
	o := testOptions(t)
	mustRead(t, f.ref(), o, layer)
	leavePart(t, f, o, 2_000_000)
	image, err := Open(t.Context(), f.ref(), o)
	if err != nil {
		t.Fatal(err)
	}
	f.server.Close()
	if _, err := readLayer(t.Context(), image.Layers[0]); err == nil {
		t.Error("a layer was read from a server that has ended")
	}
	if err := image.Close(); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(filepath.Join(o.Cache, partialDir, digits(image.Layers[0].Digest)))
	if err != nil || info.Size() != 2_000_000 {
		t.Errorf("%v, %v", info, err)
	}
}

// Files in the cache that the user cannot open, such as those that root has left, are replaced.
func TestFilesThatCannotBeOpenedAreReplaced(t *testing.T) {
	testhost.NeedRoot(t, "a process of another user")
	const uid = 1000
	f := newFakeRegistry(t)
	layer := noise(t, 1, 100_000)
	f.putImage(t, "tag", "amd64", layer)
	cache, err := os.MkdirTemp("/tmp", "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(cache)
	if err := os.Chown(cache, uid, uid); err != nil {
		t.Fatal(err)
	}
	pull := func() {
		t.Helper()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), pullVariable+"="+f.ref()+" "+cache)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	pull()
	for _, path := range cacheFiles(t, cache) {
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	pull()
	for _, path := range cacheFiles(t, cache) {
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	pull()
	if n := f.count("GET /v2/some/image/blobs/"); n != 6 {
		t.Errorf("%d requests", n)
	}
}
