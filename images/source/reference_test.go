package source

import (
	"strings"
	"testing"
)

func TestReferences(t *testing.T) {
	digest := "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for text, want := range map[string]string{
		"debian":                              "docker.io/library/debian:latest",
		"debian:12":                           "docker.io/library/debian:12",
		"org/name":                            "docker.io/org/name:latest",
		"docker.io/debian":                    "docker.io/library/debian:latest",
		"index.docker.io/debian":              "docker.io/library/debian:latest",
		"localhost/name":                      "localhost/name:latest",
		"localhost:5000/name:x":               "localhost:5000/name:x",
		"quay.io/a/b/c:1.2":                   "quay.io/a/b/c:1.2",
		"[::1]:5000/name":                     "[::1]:5000/name:latest",
		"debian@" + digest:                    "docker.io/library/debian@" + digest,
		"debian:12@" + digest:                 "docker.io/library/debian:12@" + digest,
		"oci:dir":                             "oci:dir",
		"oci:/a/dir:tag":                      "oci:/a/dir:tag",
		"oci:/a:b/dir":                        "oci:/a:b/dir",
		"oci-archive:/a/file.tar:1.0":         "oci-archive:/a/file.tar:1.0",
		"docker-archive:/a/file:1.tar":        "docker-archive:/a/file:1.tar",
		"rootfs:root.tar.gz":                  "rootfs:root.tar.gz",
		"dir:.":                               "dir:.",
		"-":                                   "-",
		"dirs/name:1":                         "docker.io/dirs/name:1",
		"rootfs:x:y":                          "rootfs:x:y",
		"oci:dir:" + strings.Repeat("a", 128): "oci:dir:" + strings.Repeat("a", 128),
	} {
		ref, err := Parse(text)
		if err != nil || ref.String() != want {
			t.Errorf("%q is %q, %v, and not %q", text, ref, err, want)
		}
	}
	for text, says := range map[string]string{
		"":                         "invalid reference",
		"Debian":                   "lowercase",
		"https://docker.io/debian": "leave out \"https://\"",
		"docker://debian":          "leave out \"docker://\"",
		"a//b":                     "invalid reference",
		"../x":                     "invalid reference",
		"docker.io/a/../../b":      "invalid reference",
		"name:":                    "invalid reference",
		"name@sha256:12":           "invalid",
		"name@md5:00000000000000000000000000000000": "unsupported digest",
		"name@sha512:" + strings.Repeat("0", 128):   "unsupported digest",
		"oci:":                             "no path",
		"dir:":                             "no path",
		"oci:dir:":                         "invalid tag",
		"oci:dir:a b":                      "invalid tag",
		"oci:a\x00b":                       "zero byte",
		"dir:" + strings.Repeat("a", 5000): "too long",
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": "hexadecimal",
	} {
		if ref, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is %q, %v, and not %q", text, ref, err, says)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"-", "debian", "a.b:5000/c/d:e@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"oci:a:b", "oci-archive:/a:b/c", "dir:x", "rootfs:y", "docker-archive:z:w", "https://x", "[::1]:5/a", "[8:1]:5/a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(ref.String())
		if err != nil || again != ref {
			t.Errorf("%q is %+v, and %q is %+v, %v", text, ref, ref.String(), again, err)
		}
		if ref.Kind != Registry {
			return
		}
		if strings.Trim(ref.Repository, "abcdefghijklmnopqrstuvwxyz0123456789._-/") != "" || strings.Contains("/"+ref.Repository+"/", "/../") ||
			strings.Contains(ref.Repository, "//") || strings.ContainsAny(ref.Host, "/@?#\\ ") || ref.Host == "" {
			t.Errorf("%q leads to host %q and path %q", text, ref.Host, ref.Repository)
		}
		endpoints, err := newEndpoints(ref, Options{})
		if err != nil {
			return // such as an invalid address of IPv6
		}
		if host := endpoints[0].registry.RegistryStr(); host != ref.Host && host != "index.docker.io" {
			t.Errorf("%q leads to host %q, and %q is asked", text, ref.Host, host)
		}
	})
}
