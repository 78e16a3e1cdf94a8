package integration

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// parseVersion reads the output of --version as dockerd does, for "docker info"
// (moby v28.0.0, daemon/info_unix.go, parseRuntimeVersion).
func parseVersion(text string) (runtime, version, commit string) {
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if strings.Contains(line, "version") {
			parts := strings.Split(line, "version")
			runtime, version = strings.TrimSpace(parts[0]), strings.TrimSpace(parts[len(parts)-1])
			continue
		}
		if after, found := strings.CutPrefix(line, "commit:"); found {
			commit = strings.TrimSpace(after)
		}
	}
	return runtime, version, commit
}

// sourceCommit is the commit of the source, as the build stamps it.
func sourceCommit(t *testing.T) string {
	t.Helper()
	got := run(t, exec.Command("../scripts/commit"))
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got.stdout == "" {
		t.Skip("the checkout has no history")
	}
	return strings.TrimSpace(got.stdout)
}

func TestDockerReadsVersionAndCommit(t *testing.T) {
	sourceCommit(t)
	runtime, version, commit := parseVersion(run(t, exec.Command(binary(t), "--version")).stdout)
	if runtime != "sandbox-runtime" || !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(version) ||
		!regexp.MustCompile(`^[0-9a-f]{40}(-dirty)?$`).MatchString(commit) {
		t.Errorf("runtime %q, version %q, commit %q", runtime, version, commit)
	}
}

// A tarball of the source has no .git, and may lie in another repository.
func TestTarballIsStampedWithItsCommit(t *testing.T) {
	want := strings.TrimSuffix(sourceCommit(t), "-dirty")
	dir := filepath.Join(t.TempDir(), "source")
	unpack := exec.Command("sh", "-euc", `mkdir "$1"; git init -q "$1/.."; git -C .. archive HEAD | tar -x -C "$1"`, "sh", dir)
	if said, err := unpack.CombinedOutput(); err != nil {
		t.Logf("%s", said)
		t.Skip("the checkout has no history") // it is a tarball itself
	}
	const oci = "github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	if got := run(t, exec.Command("make", "-s", "-n", "-C", dir, "build")); !strings.Contains(got.stdout, "-X "+oci+".stamped="+want) {
		t.Errorf("the build has not %s: %+v", want, got)
	}
	got := run(t, exec.Command("make", "-s", "-n", "-C", dir, "build", "VERSION=1.2.3-4", "COMMIT=packager"))
	if !strings.Contains(got.stdout, "-X "+oci+".version=1.2.3-4 -X "+oci+".stamped=packager") {
		t.Errorf("the packager's values are not in the build: %+v", got)
	}
}
