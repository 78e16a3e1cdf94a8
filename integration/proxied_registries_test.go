package integration

import (
	"archive/zip"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// serveGo makes a module proxy with one module. The archive of the module is for another host.
func serveGo(t *testing.T, root string) {
	t.Helper()
	const module = "module hello.test/word\n\ngo 1.21\n"
	versions := filepath.Join(root, "hello.test/word/@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(versions, "list"), "v1.0.0\n")
	writeFile(t, filepath.Join(versions, "v1.0.0.info"), `{"Version": "v1.0.0", "Time": "2024-01-01T00:00:00Z"}`)
	writeFile(t, filepath.Join(versions, "v1.0.0.mod"), module)
	writeFile(t, filepath.Join(root, "word.zip"), zipped(t, [][2]string{
		{"hello.test/word@v1.0.0/go.mod", module},
		{"hello.test/word@v1.0.0/word.go", "package word\n\nconst Word = \"a word of Go\"\n"},
	}))
}

func zipped(t *testing.T, files [][2]string) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		e, err := z.Create(f[0])
		if err == nil {
			_, err = e.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// serveApt makes a repository with one package.
func serveApt(t *testing.T, root string) {
	t.Helper()
	const build = `mkdir -p hello/DEBIAN hello/usr/share/hello-apt "$0/debian" && echo a word of apt > hello/usr/share/hello-apt/word &&
		printf 'Package: hello-apt\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: a word\n' > hello/DEBIAN/control &&
		dpkg-deb --build --root-owner-group -Zgzip hello "$0/debian/hello-apt.deb" && cd "$0/debian" &&
		{ dpkg-deb --field hello-apt.deb && printf 'Filename: ./hello-apt.deb\nSize: %s\nSHA256: %s\n' "$(stat -c %s hello-apt.deb)" "$(sha256sum hello-apt.deb | cut -d ' ' -f 1)"; } > Packages &&
		printf 'Suite: test\nDate: %s\nSHA256:\n %s %s Packages\n' "$(date -Ru)" "$(sha256sum Packages | cut -d ' ' -f 1)" "$(stat -c %s Packages)" > Release`
	cmd := exec.Command("sh", "-c", build, root)
	cmd.Dir = t.TempDir()
	if got := run(t, cmd); got.code != 0 {
		t.Fatalf("%+v", got)
	}
}
