package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// pullVariable makes the test binary a process that pulls an image: "REFERENCE CACHE".
const pullVariable = "SOURCE_TEST_PULL"

func pullAsProcess() int {
	reference, cache, _ := strings.Cut(os.Getenv(pullVariable), " ")
	ctx := context.Background()
	image, err := Open(ctx, reference, Options{Platform: "linux/amd64", Cache: cache})
	if err == nil {
		err = errors.Join(image.Fetch(ctx, image.Layers...), image.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func pullProcess(t *testing.T, reference, cache string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), pullVariable+"="+reference+" "+cache)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestTwentyPullsCauseTheTrafficOfOne(t *testing.T) {
	f := newFakeRegistry(t)
	layers := [][]byte{noise(t, 1, 2_000_000), noise(t, 2, 1_000_000), noise(t, 3, 10)}
	d := f.putImage(t, "tag", "amd64", layers...)
	cache := t.TempDir()
	var pulls []*exec.Cmd
	for range 5 { // processes
		pulls = append(pulls, pullProcess(t, f.ref(), cache))
	}
	var group errgroup.Group
	for range 15 { // and callers in this one
		group.Go(func() error {
			o := testOptions(t)
			o.Cache = cache
			image, err := Open(t.Context(), f.ref(), o)
			if err != nil {
				return err
			}
			defer image.Close()
			if err := image.Fetch(t.Context(), image.Layers...); err != nil {
				return err
			}
			for i, l := range image.Layers {
				content, err := readLayer(t.Context(), l)
				if err != nil || digestOf(content) != image.Layers[i].Digest {
					return fmt.Errorf("layer %d: %w", i, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	for _, p := range pulls {
		if err := p.Wait(); err != nil {
			t.Errorf("process: %v", err)
		}
	}
	if n := f.count("GET /v2/some/image/blobs/"); n != len(layers)+1 {
		t.Errorf("%d requests for %d blobs", n, len(layers)+1)
	}
	if n := f.count("GET /v2/some/image/manifests/"); n != 1 {
		t.Errorf("%d requests for the manifest %s", n, d.Digest)
	}
}

// A process that is killed while it downloads leaves its part, and blocks no other process.
func TestKilledPullIsResumed(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 3_000_000)
	f.putImage(t, "tag", "amd64", layer)
	release := make(chan struct{})
	var held atomic.Bool
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") != "" || !isBlob(f, r, 1_000_000) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(f.objects[filepath.Base(r.URL.Path)])))
		w.Write(f.objects[filepath.Base(r.URL.Path)][:1_000_000])
		w.(http.Flusher).Flush()
		held.Store(true)
		<-release
		return true
	})
	o := testOptions(t)
	p := pullProcess(t, f.ref(), o.Cache)
	testhost.Eventually(t, "the process has a part of the layer", func() bool {
		parts, _ := filepath.Glob(filepath.Join(o.Cache, partialDir, "*"))
		for _, part := range parts {
			if info, err := os.Stat(part); err == nil && info.Size() == 1_000_000 {
				return true
			}
		}
		return false
	})
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Wait()
	close(release)
	before := f.count("blobs")
	mustRead(t, f.ref(), o, layer)
	if n := f.count("blobs") - before; n != 1 {
		t.Errorf("%d requests for blobs after the kill instead of 1 (the config is in the cache)", n)
	}
	if n := f.bytesSent(); n > 2_100_000 {
		t.Errorf("%d bytes were sent for the rest", n)
	}
}

// isBlob says whether a request is for a blob of at least a size.
func isBlob(f *fakeRegistry, r *http.Request, size int) bool {
	return strings.Contains(r.URL.Path, "/blobs/") && len(f.objects[filepath.Base(r.URL.Path)]) >= size
}

func TestCutDownloadIsResumed(t *testing.T) {
	for name, ranges := range map[string]bool{"with ranges": true, "without ranges": false} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 3_000_000)
			f.putImage(t, "tag", "amd64", layer)
			var cuts atomic.Int32
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				if !isBlob(f, r, 1_000_000) {
					return false
				}
				if !ranges {
					r.Header.Del("Range")
				}
				if cuts.Add(1) > 2 {
					return false
				}
				f.answer(&cutWriter{ResponseWriter: w, left: 1_000_000}, r)
				panic(http.ErrAbortHandler)
			})
			mustRead(t, f.ref(), testOptions(t), layer)
			if n := f.bytesSent(); ranges && n > 3_100_000 {
				t.Errorf("%d bytes were sent", n)
			}
			if n := cuts.Load(); n != 3 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// cutWriter sends no more than a number of bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if len(p) > c.left {
		p = p[:c.left]
	}
	n, err := c.ResponseWriter.Write(p)
	c.left -= n
	if err == nil && c.left == 0 {
		c.ResponseWriter.(http.Flusher).Flush()
		err = http.ErrAbortHandler
	}
	return n, err
}

func TestDamagedCacheIsRepaired(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 100_000)
	f.putImage(t, "tag", "amd64", layer)
	o := testOptions(t)
	image := mustRead(t, f.ref(), o, layer)
	name := digits(image.Layers[0].Digest)
	whole := filepath.Join(o.Cache, blobsDir, name)
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(content)
	damaged[len(damaged)/2] ^= 1
	os.WriteFile(whole, damaged, 0o600)
	refuses(t, f.ref(), o, "another digest")
	mustRead(t, f.ref(), o, layer)
	os.WriteFile(whole, content[:100], 0o600)
	mustRead(t, f.ref(), o, layer)
	// So may be the part of an earlier download.
	os.Remove(whole)
	os.WriteFile(filepath.Join(o.Cache, partialDir, name), damaged[:len(damaged)-10], 0o600)
	mustRead(t, f.ref(), o, layer)
	os.Remove(whole)
	os.WriteFile(filepath.Join(o.Cache, partialDir, name), append(content, 0), 0o600)
	mustRead(t, f.ref(), o, layer)
}

// Other entries than regular files in the cache are replaced.
func TestForeignEntriesAreReplaced(t *testing.T) {
	foreign := map[string]func(path string) error{
		"directories": func(path string) error { return os.MkdirAll(filepath.Join(path, "full"), 0o700) },
		"pipes":       func(path string) error { return unix.Mkfifo(path, 0o600) },
		"links":       func(path string) error { return os.Symlink("/etc/passwd", path) },
	}
	for name, put := range foreign {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 100)
			f.putImage(t, "tag", "amd64", layer)
			o := testOptions(t)
			mustRead(t, f.ref(), o, layer)
			for _, path := range cacheFiles(t, o.Cache) {
				part := filepath.Join(o.Cache, partialDir, filepath.Base(path))
				if err := errors.Join(os.Remove(path), put(path)); err != nil {
					t.Fatal(err)
				}
				if err := put(part); err != nil && !errors.Is(err, fs.ErrExist) {
					t.Fatal(err)
				}
			}
			mustRead(t, f.ref(), o, layer)
		})
	}
	o := testOptions(t)
	if err := os.WriteFile(filepath.Join(o.Cache, locksDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64")
	refuses(t, f.ref(), o, "locks is not a directory; remove it")
}

func TestOldObjectsAreRemoved(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 100)
	f.putImage(t, "tag", "amd64", layer)
	o := testOptions(t)
	image := mustRead(t, f.ref(), o, layer)
	c, err := openCache(o.Cache)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := os.WriteFile(filepath.Join(o.Cache, partialDir, temporaryPrefix+"x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := c.lock(t.Context(), image.Layers[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(o.Cache, partialDir, strings.Repeat("0", 64))
	if err := os.WriteFile(part, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.prune(time.Now().Add(wholeAge - time.Minute)); err != nil {
		t.Fatal(err)
	}
	if all := cacheFiles(t, o.Cache); len(all) != 8 { // three objects with locks, a part and a temporary file
		t.Errorf("%q are there before the time", all)
	}
	if err := c.prune(time.Now().Add(partAge - time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(part); err != nil {
		t.Error(err)
	}
	if err := c.prune(time.Now().Add(2 * partAge)); err != nil {
		t.Fatal(err)
	}
	if left := cacheFiles(t, o.Cache); len(left) != 2 {
		t.Errorf("%q are left beside the blob with a lock", left)
	}
	lock.Close()
	if err := c.prune(time.Now().Add(2 * partAge)); err != nil {
		t.Fatal(err)
	}
	if left := cacheFiles(t, o.Cache); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// Pulls of several processes end at a time, and each prunes: a file that another one has removed is no error of a pull.
func TestManyPruneACacheAtATime(t *testing.T) {
	dir := t.TempDir()
	c, err := openCache(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 200 {
		f, _, err := c.create()
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	var group errgroup.Group
	for range 8 {
		group.Go(func() error { return c.prune(time.Now().Add(2 * partAge)) })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if left := cacheFiles(t, dir); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

func cacheFiles(t *testing.T, cache string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(cache, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCacheOfAnotherUserIsRefused(t *testing.T) {
	testhost.NeedRoot(t, "a directory of another user")
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64")
	o := testOptions(t)
	if err := os.Chown(o.Cache, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	refuses(t, f.ref(), o, "another user can change the directory")
	o = testOptions(t)
	if err := os.Chmod(o.Cache, 0o777); err != nil {
		t.Fatal(err)
	}
	refuses(t, f.ref(), o, "another user can change the directory")
}

// The part of a download that filled the disk is removed.
func TestFullDiskIsFreed(t *testing.T) {
	testhost.NeedRoot(t, "a mount")
	testhost.PrivateMounts(t)
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64", noise(t, 1, 2_000_000))
	o := testOptions(t)
	if err := unix.Mount("tmpfs", o.Cache, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(o.Cache, unix.MNT_DETACH)
	refuses(t, f.ref(), o, "no space left on device; make room")
	if parts, _ := filepath.Glob(filepath.Join(o.Cache, partialDir, "*")); len(parts) > 0 {
		t.Errorf("%q are left", parts)
	}
}
