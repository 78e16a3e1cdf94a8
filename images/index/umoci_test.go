package index_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// umoci is the path of the program, from integration/setup.
func umoci(t testing.TB) string {
	t.Helper()
	testhost.NeedRoot(t, "umoci sets owners and makes devices")
	folder, err := exec.Command("../../integration/setup", "-n").Output()
	if err != nil {
		t.Skip("no peers: run integration/setup")
	}
	return filepath.Join(strings.TrimSpace(string(folder)), "usr/bin/umoci")
}

// unpack has umoci unpack an image of the layers, and returns the root.
func unpack(t testing.TB, layers ...*os.File) string {
	t.Helper()
	program, dir := umoci(t), t.TempDir()
	image, root := filepath.Join(dir, "image"), filepath.Join(dir, "root")
	writeLayout(t, image, layers...)
	if out, err := exec.Command(program, "raw", "unpack", "--image", image+":it", root).CombinedOutput(); err != nil {
		t.Fatalf("umoci: %v\n%s", err, out)
	}
	return root
}

// writeLayout makes an OCI layout with one image, "it".
func writeLayout(t testing.TB, dir string, layers ...*os.File) {
	t.Helper()
	type descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		t.Fatal(err)
	}
	store := func(kind string, content []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		testhost.WriteFile(t, filepath.Join(blobs, sum), string(content))
		return descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: "sha256:" + sum, Size: int64(len(content))}
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	manifest := map[string]any{"schemaVersion": 2}
	var ids []string
	var described []descriptor
	for _, l := range layers {
		b, err := io.ReadAll(io.NewSectionReader(l, 0, 1<<40))
		if err != nil {
			t.Fatal(err)
		}
		d := store("layer.v1.tar", b)
		ids, described = append(ids, d.Digest), append(described, d)
	}
	manifest["layers"] = described
	manifest["config"] = store("config.v1+json", encode(map[string]any{"architecture": "amd64", "os": "linux",
		"rootfs": map[string]any{"type": "layers", "diff_ids": ids}}))
	top := store("manifest.v1+json", encode(manifest))
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": "it"}
	testhost.WriteFile(t, filepath.Join(dir, "index.json"), string(encode(map[string]any{"schemaVersion": 2, "manifests": []descriptor{top}})))
	testhost.WriteFile(t, filepath.Join(dir, "oci-layout"), `{"imageLayoutVersion":"1.0.0"}`)
}

// added are the mount points that the index adds to an image.
var added = []string{"/dev", "/etc", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/home", "/home/sandbox", "/proc", "/run",
	"/sys", "/tmp", "/var", "/var/tmp", "/workspace"}

// compare finds the differences between an index and umoci's root. Directories that no layer
// has an entry of get the time of the unpacking from umoci; here they have none.
func compare(t *testing.T, ours, theirs string, start time.Time) {
	t.Helper()
	got, want := listing(t, ours), listing(t, theirs)
	for path, w := range want {
		g, ok := got[path]
		switch {
		case !ok:
			t.Errorf("%s is missing; umoci: %s", path, w)
		case g != w && (!madeAfter(w, start) || withoutTime(g) != withoutTime(w)):
			t.Errorf("%s\nindex: %s\numoci: %s", path, g, w)
		}
	}
	for path, g := range got {
		if _, ok := want[path]; !ok && !slices.Contains(added, path) {
			t.Errorf("%s is too much: %s", path, g)
		}
	}
}

// madeAfter says that a described file is younger than the test.
func madeAfter(description string, start time.Time) bool {
	var mode, uid, gid int
	var second int64
	if _, err := fmt.Sscanf(description, "%o %d:%d time %d.", &mode, &uid, &gid, &second); err != nil {
		return false
	}
	return second >= start.Unix()
}

func withoutTime(description string) string {
	before, rest, _ := strings.Cut(description, "time ")
	_, after, _ := strings.Cut(rest, " ")
	return before + after
}

func TestIndexesShowWhatUmociUnpacks(t *testing.T) {
	for name, layers := range corners() {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			var files []*os.File
			for _, items := range layers {
				files = append(files, layer(t, items...))
			}
			compare(t, mounted(t, files...), unpack(t, files...), start)
		})
	}
}

// GNU tar writes long names, times and attributes in other ways than archive/tar does.
func TestFilesOfTheHostAreShownAsUmociUnpacksThem(t *testing.T) {
	umoci(t)
	for _, format := range []string{"--format=pax", "--format=gnu"} {
		t.Run(format, func(t *testing.T) {
			l := newFile(t)
			cmd := exec.Command("tar", format, "--xattrs", "--xattrs-include=*", "--warning=no-file-changed", "-C", "/", "-c", "etc", "usr/sbin", "usr/share/perl5")
			cmd.Stdout = l
			if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != 1 { // 1: a file has changed meanwhile
				t.Fatalf("tar: %v", err)
			}
			start := time.Now()
			compare(t, mounted(t, l), unpack(t, l), start)
		})
	}
}
