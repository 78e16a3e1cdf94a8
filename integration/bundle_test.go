package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// busyboxRoot is a root file system of busybox with all its applets, made once
// for all tests. Whoever writes into it makes a copy (newBusyboxRoot).
var busyboxRoot = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "rootfs")
	if err != nil {
		return "", err
	}
	return dir, ocibundle.MakeRoot(dir, peer("bin/busybox"))
})

func newBusyboxRoot(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rootfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ocibundle.MakeRoot(dir, peer("bin/busybox")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A bundle is an OCI bundle: a directory with a config.json.
type bundle struct {
	dir  string
	spec *specs.Spec
}

// newBundle writes a bundle that runs args in busybox, with the spec Docker
// 20.10 writes on a cgroup v1 host, but for seccomp and hooks. Each change is
// applied before.
func newBundle(t testing.TB, args []string, changes ...func(*specs.Spec)) *bundle {
	t.Helper()
	need(t, peers())
	root, err := busyboxRoot()
	if err != nil {
		t.Fatal(err)
	}
	b := &bundle{dir: t.TempDir(), spec: ocibundle.DockerSpec(root, args)}
	for _, change := range changes {
		change(b.spec)
	}
	config, err := json.Marshal(b.spec)
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, string(config))
	return b
}

// write replaces the bundle's config.json.
func (b *bundle) write(t testing.TB, config string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
}
