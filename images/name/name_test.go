package name_test

import (
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/sandbox-runtime/sandbox-runtime/images/name"
)

var digest = "@sha256:" + strings.Repeat("0a", 32)

var seeds = []string{
	"busybox", "busybox:1", "busybox" + digest, "busybox:1" + digest, "a/b", "a/b/c:tag", "localhost/x", "localhost:5000/x:1", "LOCAL/x",
	"docker.io/x", "docker.io/library/x", "docker.io/library/a/b", "index.docker.io/x", "index.docker.io/a/b", "quay.io/org/name:v1.2-3_4", "[::1]:5000/x", "[::1]/x",
	"127.0.0.1/a__b/c--d/e.f:X", "a___b", "a..b", "-a", "a-", "a._b", "A", "a/B", "x:", "x:-", "x:.a", "x@", "x@sha256:00", "x@md5:" + strings.Repeat("0", 32),
	"", "/", "a/", "/a", "a//b", "a:b/c", "a.b:c/d", "a.b:1/c", "a.b:/c", "-a.b/c", "a-.b/c", "http://a/b", "x:1:2", "x@y@z", strings.Repeat("ab", 32), "ü", "a\n", "a:b\n",
	"host.test/" + strings.Repeat("a", 255), "host.test/" + strings.Repeat("a", 256), "a:" + strings.Repeat("t", 128), "a:" + strings.Repeat("t", 129), "library/a", "a.b/library/c",
	"docker.io/docker.io/a", "sha256:" + strings.Repeat("0a", 32), "x" + digest + ":1", "x:a@b:c/d", "localhost", "[a/b", "[]/b", "a]/b", "a.b./c", "i_d.d/x", "a_b:1/c",
}

// same compares with Docker's parser. Docker also takes digests of other kinds, hosts of any length, and names with a dot or a
// colon before the first slash that have no host.
func same(t *testing.T, text string) {
	t.Helper()
	got, err := name.Parse(text)
	want, wantErr := reference.ParseNormalizedNamed(text)
	if canonical, ok := want.(reference.Digested); ok && !strings.HasPrefix(canonical.Digest().String(), "sha256:") {
		if err == nil {
			t.Errorf("%q was read with another digest", text)
		}
		return
	}
	if want != nil && len(reference.Domain(want)) > 255 {
		return
	}
	if want != nil && reference.Domain(want) == "" { // a part with a dot that cannot be a host: i_d.d/x
		if err == nil {
			t.Errorf("%q was read without a host", text)
		}
		return
	}
	if (err == nil) != (wantErr == nil) {
		t.Errorf("%q: %v, and Docker: %v", text, err, wantErr)
	}
	if err != nil || wantErr != nil {
		return
	}
	want = reference.TagNameOnly(want)
	if got.String() != want.String() || got.Familiar() != reference.FamiliarString(want) || got.Host != reference.Domain(want) ||
		got.Repository != reference.Path(want) || got.FamiliarRepository() != reference.FamiliarName(want) {
		t.Errorf("%q: %+v, and Docker: %v", text, got, want)
	}
	full, err := reference.ParseDockerRef(text)
	if err != nil || got.Full() != full.String() {
		t.Errorf("%q: %s, and Docker: %v, %v", text, got.Full(), full, err)
	}
}

func TestNamesAreReadAsDockerDoes(t *testing.T) {
	for _, text := range seeds {
		same(t, text)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range seeds {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { same(t, text) })
}
