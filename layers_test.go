package sandboxruntime_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sandbox-runtime/sandbox-runtime"

// layers are the packages from the bottom up, without the module's path. A
// package may import those of lower layers and those below its own path, as
// seccomp/compile is below seccomp; see ARCHITECTURE.md.
var layers = [][]string{
	{"internal/descriptor", "internal/disk/draft", "internal/disk/fsmount", "internal/testing/golden"},
	{"internal/process"},
	{"internal/inside/streams", "internal/kernel", "internal/network/nameserver", "internal/disk/store", "internal/testing/testhost", "internal/disk/erase", "internal/disk/watch", "internal/process/worker", "rootfs/devices", "rootfs/etcfiles", "rootfs/hostpaths", "rootfs/overlays", "rootfs/rights", "rootfs/userns", "images/name"},
	{"rootfs/languages", "rootfs/conffiles", "rootfs/stamps"},
	{"rootfs/copies"},
	{"spec", "cgroups", "seccomp", "seccomp/compile", "rootfs", "netns", "netns/resolver", "netns/publisher", "internal/cli/engine", "internal/inside/files", "internal/network/egress/names", "internal/network/egress/sniff", "netns/special",
		"images/index", "images/inflate"},
	{"internal/changes/autorun", "internal/fault"},
	{"internal/changes/layer", "internal/network/rules", "internal/network/egress/upstream", "netns/netnstest", "netns/sockets", "internal/network/egress/answer", "images/builder", "images/source"},
	{"internal/channel", "internal/testing/layertest", "internal/changes/patch", "internal/changes/apply", "netns/capture", "internal/network/egress/proxy"},
	{"internal/inside/agent", "internal/protocol"},
	{"internal/disk/statedir", "internal/inside/mountns", "internal/network/egress/link"},
	{"images/store", "internal/container", "internal/network/egress", "internal/network/egress/gateway", "internal/launcher/idrange", "netns/router"},
	{"sandbox", "sandbox/sandboxtest", "internal/launcher/takeover"},
	{"internal/container/filtercache", "internal/launcher/images", "internal/launcher/ratchet", "internal/launcher/record"},
	{"internal/launcher/filewatch", "internal/launcher/handed", "internal/launcher/integrity", "internal/network/networks", "internal/launcher/pool", "internal/launcher/throttle", "internal/launcher/trash"},
	{"internal/changes/overlay"},
	{"internal/launcher/jobs"},
	{"internal/launcher/part"},
	{"internal/launcher", "internal/launcher/server"},
	{"sandbox/launcher", "sandbox/tenant", "internal/cli/configflags", "internal/cli/copying", "internal/cli/doctor", "internal/container/frontend", "internal/cli/processes", "internal/cli/relay", "internal/cli/resourceflags"},
	{"internal/changes/review"},
	{"internal/cli/commandline"},
	{"internal/cli/completion", "internal/container/oci", "internal/cli/registration", "internal/cli/connection"},
	{"internal/cli/admin", "internal/cli/changes", "internal/cli/images"},
	{"internal/cli/sandboxes"},
	{"internal/cli/containers"},
	{"cmd/sandbox-runtime", "cmd/sandbox-oci", "cmd/sandbox-files", "examples/embed"},
}

// onlyImporter of a foreign module tree.
var onlyImporter = map[string]string{
	"github.com/opencontainers/runc": "internal/container",
}

// needCgo are the packages that may. All others build without, and so do
// those that import only them.
var needCgo = []string{"seccomp/compile", "internal/container", "internal/container/filtercache", "internal/launcher/handed", "internal/launcher/record", "internal/launcher/filewatch",
	"internal/launcher/integrity", "internal/network/networks", "internal/launcher/throttle", "internal/launcher/trash", "internal/changes/overlay", "internal/launcher/jobs", "internal/launcher/part", "internal/launcher", "internal/launcher/server",
	"internal/cli/doctor", "internal/container/frontend", "sandbox/launcher", "internal/cli/commandline", "internal/cli/completion", "internal/container/oci", "internal/cli/registration",
	"internal/cli/connection", "internal/cli/admin", "internal/cli/changes", "internal/cli/images", "internal/cli/sandboxes", "internal/cli/containers", "cmd/sandbox-runtime", "cmd/sandbox-oci"}

// outside are test suites and their tools, which import what they test.
var outside = []string{"", "internal/testing/failpoint"}

type goPackage struct {
	ImportPath, Doc, Dir string
	Imports, GoFiles     []string
}

func (p goPackage) name() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Dir,Imports,GoFiles", "-tags", "seccomp", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		// go test remembers a result until a file changes that the test itself has looked at. go list is another process.
		for _, file := range p.GoFiles {
			if _, err := os.Stat(filepath.Join(p.Dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		if !isOutside(p.name()) {
			all = append(all, p)
		}
	}
}

func isOutside(name string) bool {
	return slices.ContainsFunc(outside, func(o string) bool {
		return name == o || o != "" && strings.HasPrefix(name, o+"/")
	})
}

func layerOf(name string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, name) })
}

// violations are the imports that the layers forbid.
func violations(packages []goPackage) []string {
	var found []string
	for _, p := range packages {
		layer := layerOf(p.name())
		if layer < 0 {
			found = append(found, fmt.Sprintf("%s is in no layer", p.name()))
			continue
		}
		for _, imported := range p.Imports {
			if fault := forbidden(p.name(), layer, imported); fault != "" {
				found = append(found, fault)
			}
		}
	}
	return found
}

func forbidden(name string, layer int, imported string) string {
	if own, ok := strings.CutPrefix(imported, module+"/"); ok {
		parent := strings.HasPrefix(name, own+"/")
		if layerOf(own) >= layer && !parent {
			return fmt.Sprintf("%s imports %s, which is not below it", name, own)
		}
	}
	for tree, importer := range onlyImporter {
		if (imported == tree || strings.HasPrefix(imported, tree+"/")) && name != importer {
			return fmt.Sprintf("%s imports %s, which only %s may", name, imported, importer)
		}
	}
	return ""
}

func TestImportsPointDownward(t *testing.T) {
	for _, v := range violations(listPackages(t)) {
		t.Error(v)
	}
}

func TestLayerCheckFindsViolations(t *testing.T) {
	tests := map[string]struct{ name, imported string }{
		"upward":        {"spec", module + "/internal/launcher"},
		"sideways":      {"rootfs", module + "/spec"},
		"into a parent": {"seccomp", module + "/seccomp/compile"},
		"libcontainer":  {"internal/launcher", "github.com/opencontainers/runc/libcontainer"},
		"unknown layer": {"internal/nowhere", "fmt"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := goPackage{ImportPath: module + "/" + test.name, Imports: []string{"os", test.imported}}
			if len(violations([]goPackage{p})) == 0 {
				t.Errorf("%s importing %s was let through", test.name, test.imported)
			}
		})
	}
}

func TestEachPackageHasAComment(t *testing.T) {
	for _, p := range listPackages(t) {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.name())
		}
	}
}

func TestPureGoBuildsWithoutCgo(t *testing.T) {
	args := []string{"build"}
	for _, p := range listPackages(t) {
		if !slices.Contains(needCgo, p.name()) {
			args = append(args, p.ImportPath)
		}
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
