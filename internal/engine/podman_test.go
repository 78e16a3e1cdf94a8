package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const podmanSandbox = `# begin sandbox-runtime register sandbox
engine.runtimes.sandbox = ["/usr/local/bin/sandbox-runtime"]
# end sandbox-runtime register sandbox
`

var podmanDefault = strings.Replace(podmanSandbox, "# end", "engine.runtime = \"sandbox\"\n# end", 1)

func TestPodmanAdd(t *testing.T) {
	other := strings.ReplaceAll(podmanSandbox, "sandbox =", "other =")
	other = strings.ReplaceAll(other, "register sandbox", "register other")
	checkAdd(t, Podman{}, sandbox, []edit{
		{name: "no file", after: podmanSandbox},
		{name: "comments", before: "# mine", after: "# mine\n" + podmanSandbox},
		{name: "another name", before: other, after: other + "\n" + podmanSandbox},
		{name: "there already", before: podmanSandbox, after: podmanSandbox},
		{name: "the default stays", before: podmanDefault, after: podmanDefault},
		{name: "ours, elsewhere before", before: strings.Replace(podmanSandbox, "/usr/local/bin", "/old", 1), after: podmanSandbox},
		{name: "somebody else's", before: "[engine.runtimes]\nsandbox = [\"/usr/bin/runsc\"]\n", words: "as /usr/bin/runsc: choose another name with --name"},
		{name: "ours, edited", before: strings.Replace(podmanSandbox, "[\"", "[\"/first\", \"", 1), line: 1, words: "by hand"},
		{name: "tables", before: "[containers]\ntz = \"local\"\n", words: "leave --config out"},
		{name: "another default", before: "engine.runtime = \"crun\"\n", after: "engine.runtime = \"crun\"\n\n" + podmanSandbox},
		{name: "broken", before: "\n[engine\n", line: 2, words: "not TOML"},
	})
	r := sandbox
	r.Default = true
	checkAdd(t, Podman{}, r, []edit{
		{name: "as default", after: podmanDefault},
		{name: "now as default", before: podmanSandbox, after: podmanDefault},
		{name: "another default in the same file", before: "engine.runtime = \"crun\"\n", words: "by hand"},
	})
}

func TestPodmanRemove(t *testing.T) {
	checkRemove(t, Podman{}, sandbox, []edit{
		{name: "no file"},
		{name: "the only one", before: podmanSandbox},
		{name: "as default", before: podmanDefault},
		{name: "the rest stays", before: "# mine\n\n" + podmanSandbox + "# end\n", after: "# mine\n# end\n"},
		{name: "not there", before: "# mine\n", after: "# mine\n"},
		{name: "somebody else's", before: "engine.runtimes.sandbox = []\n", words: "by hand"},
		{name: "broken", before: "x", line: 1, words: "not TOML"},
	})
}

func TestPodmanReadsTheFilesBeside(t *testing.T) {
	dir := t.TempDir()
	drop := filepath.Join(dir, "containers.conf.d")
	if err := os.Mkdir(drop, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(drop, "sandbox-runtime.conf")
	for _, c := range []struct{ path, text, words string }{
		{file, "[engine.runtimes]\nsandbox = [\"/x\"]\n", ""}, // Add's own
		{"containers.conf", "[engine]\nruntime = \"crun\"\n", ""},
		{"containers.conf", "[engine.runtimes]\nsandbox = [\"/x\"]\n", "containers.conf: runtime \"sandbox\" is there already, as /x"},
		{"containers.conf", "[engine.runtimes]\nsandbox = [\"/usr/local/bin/sandbox-runtime\"]\n", ""},
		{"containers.conf", "[engine\n", "containers.conf:1: not TOML"},
		{"containers.conf.d/a.conf", "[engine.runtimes]\nsandbox = [\"/x\"]\n", "a.conf: runtime"},
		{"containers.conf.d/a.txt", "[engine\n", ""},
	} {
		path := c.path
		if path != file {
			path = filepath.Join(dir, path)
		}
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Podman{}.Elsewhere(file, nil, sandbox)
		if c.words == "" && err != nil || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v; want %q", c.path, err, c.words)
		}
		os.Remove(path)
	}
	if err := unix.Mkfifo(filepath.Join(drop, "fifo.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Not waited for, as the reader of a FIFO would.
	if err := (Podman{}).Elsewhere(file, nil, sandbox); err == nil || !strings.Contains(err.Error(), "fifo.conf is not a regular file") {
		t.Error(err)
	}
}

func FuzzPodmanKeepsTheRest(f *testing.F) {
	for _, c := range []string{"", "# x", "a = 1\n", "engine.cgroup_manager = \"cgroupfs\"\n", podmanSandbox, "engine.runtimes.x = [\"/x\"]"} {
		f.Add([]byte(c), "/usr/local/bin/sandbox-runtime")
	}
	f.Add([]byte(""), "/odd \"\\\x01é\u2028/sandbox-runtime")
	f.Fuzz(func(t *testing.T, config []byte, path string) {
		r := Runtime{Name: "sandbox", Path: path}
		if !utf8.ValidString(path) { // Self refuses it
			return
		}
		if b, err := findBlock(config, "sandbox"); b != nil || err != nil {
			return
		}
		if _, err := (Podman{}).Add(config, r); err != nil {
			return
		}
		with, without := addAndRemove(t, Podman{}, config, r)
		if string(without) != string(config) {
			t.Fatalf("%q became %q by way of\n%s", config, without, with)
		}
		tree, err := parseTOML(with)
		if err != nil || podmanPath(tree, "sandbox") != path {
			t.Fatalf("not there (%v):\n%s", err, with)
		}
	})
}
