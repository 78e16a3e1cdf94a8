package engine

import (
	"os"
	"path/filepath"
	"slices"
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

// podmanList is the list of the runtimes whose log podman reads.
func podmanList(names string) string {
	return `
# begin sandbox-runtime register (runtimes whose log podman reads)
engine.runtime_supports_json = [` + names + `]
# end sandbox-runtime register (runtimes whose log podman reads)
`
}

var (
	podmanOurs = podmanList(`"crun", "runc", "kata", "runsc", "youki", "krun", "sandbox"`)
	podmanBoth = podmanList(`"crun", "runc", "kata", "runsc", "youki", "krun", "other", "sandbox"`)
)

func TestPodmanAdd(t *testing.T) {
	other := strings.ReplaceAll(podmanSandbox, "sandbox =", "other =")
	other = strings.ReplaceAll(other, "register sandbox", "register other")
	otherList := podmanList(`"crun", "runc", "kata", "runsc", "youki", "krun", "other"`)
	list := podmanList(`"a", "sandbox"`)
	checkAdd(t, &Podman{}, sandbox, []edit{
		{name: "no file", after: podmanSandbox + podmanOurs},
		{name: "comments", before: "# mine", after: "# mine\n" + podmanSandbox + podmanOurs},
		{name: "another name", before: other + otherList, after: other + podmanBoth + "\n" + podmanSandbox},
		{name: "there already", before: podmanSandbox + podmanOurs, after: podmanSandbox + podmanOurs},
		{name: "by a release that wrote no list", before: podmanSandbox, after: podmanSandbox + podmanOurs},
		{name: "the default stays", before: podmanDefault + podmanOurs, after: podmanDefault + podmanOurs},
		{name: "ours, elsewhere before", before: strings.Replace(podmanSandbox, "/usr/local/bin", "/old", 1), after: podmanSandbox + podmanOurs},
		{name: "somebody else's", before: "[engine.runtimes]\nsandbox = [\"/usr/bin/runsc\"]\n", words: "as /usr/bin/runsc: choose another name with --name"},
		{name: "ours, edited", before: strings.Replace(podmanSandbox, "[\"", "[\"/first\", \"", 1), line: 1, words: "by hand"},
		{name: "our list, edited", before: podmanSandbox + strings.Replace(list, ", ", ",", 1), line: 5, words: "by hand"},
		{name: "somebody else's list", before: "engine.runtime_supports_json = [\"a\"]\n", words: `write "sandbox" into it by hand`},
		{
			name: "somebody else's list has it", before: "engine.runtime_supports_json = [\"sandbox\"]\n",
			after: "engine.runtime_supports_json = [\"sandbox\"]\n\n" + podmanSandbox,
		},
		{name: "tables", before: "[containers]\ntz = \"local\"\n", words: "leave --config out"},
		{name: "another default", before: "engine.runtime = \"crun\"\n", after: "engine.runtime = \"crun\"\n\n" + podmanSandbox + podmanOurs},
		{name: "broken", before: "\n[engine\n", line: 2, words: "not TOML"},
	})
	checkAdd(t, &Podman{logs: []string{"a"}}, sandbox, []edit{{name: "the lists of other files", after: podmanSandbox + list}})
	r := sandbox
	r.Default = true
	checkAdd(t, &Podman{}, r, []edit{
		{name: "as default", after: podmanDefault + podmanOurs},
		{name: "now as default", before: podmanSandbox, after: podmanDefault + podmanOurs},
		{name: "another default in the same file", before: "engine.runtime = \"crun\"\n", words: "by hand"},
	})
}

func TestPodmanRemove(t *testing.T) {
	other := strings.ReplaceAll(strings.ReplaceAll(podmanSandbox, "sandbox =", "other ="), "register sandbox", "register other")
	checkRemove(t, &Podman{}, sandbox, []edit{
		{name: "no file"},
		{name: "the only one", before: podmanSandbox + podmanOurs},
		{name: "by a release that wrote no list", before: podmanSandbox},
		{name: "as default", before: podmanDefault + podmanOurs},
		{
			name: "another name stays in the list", before: other + podmanBoth + "\n" + podmanSandbox,
			after: other + podmanList(`"crun", "runc", "kata", "runsc", "youki", "krun", "other"`),
		},
		{name: "the rest stays", before: "# mine\n\n" + podmanSandbox + "# end\n" + podmanOurs, after: "# mine\n# end\n"},
		{name: "our list, edited", before: podmanSandbox + podmanList(`"a",`), line: 5, words: "by hand"},
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
		err := (&Podman{}).Elsewhere(file, nil, sandbox)
		if c.words == "" && err != nil || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v; want %q", c.path, err, c.words)
		}
		os.Remove(path)
	}
	if err := unix.Mkfifo(filepath.Join(drop, "fifo.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Not waited for, as the reader of a FIFO would.
	if err := (&Podman{}).Elsewhere(file, nil, sandbox); err == nil || !strings.Contains(err.Error(), "fifo.conf is not a regular file") {
		t.Error(err)
	}
}

// TestPodmanKeepsTheListsOfOtherFiles: a list of ours replaces theirs.
// A file with two lists is no TOML, so a file that has one gets no other.
func TestPodmanPieceHasOneList(t *testing.T) {
	for config, want := range map[string]string{
		"":                         podmanSandbox + podmanOurs,
		podmanSandbox + podmanOurs: podmanSandbox,
		"engine.runtime_supports_json = [\"a\"]\n": podmanSandbox,
	} {
		if got, err := (&Podman{}).Piece([]byte(config), sandbox); err != nil || got != want {
			t.Errorf("%q: %v, %q, want %q", config, err, got, want)
		}
	}
}

func TestPodmanKeepsTheListsOfOtherFiles(t *testing.T) {
	dir := t.TempDir()
	drop := filepath.Join(dir, "containers.conf.d")
	if err := os.Mkdir(drop, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(drop, "sandbox-runtime.conf")
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"the main file's", map[string]string{"../containers.conf": `["a", "b"]`}, `"a", "b", "sandbox"`},
		{"a later file's", map[string]string{"../containers.conf": `["a"]`, "c.conf": `["c"]`}, `"c", "sandbox"`},
		{"the last file's", map[string]string{"b.conf": `["b"]`, "c.conf": `["c"]`}, `"c", "sandbox"`},
		{"appended", map[string]string{"b.conf": `["b"]`, "c.conf": `["c", {append=true}]`}, `"b", "c", "sandbox"`},
		{"appended to the defaults", map[string]string{"c.conf": `["c", {append=true}]`}, `"crun", "runc", "kata", "runsc", "youki", "krun", "c", "sandbox"`},
		{"an empty one", map[string]string{"c.conf": `[]`}, `"sandbox"`},
		{"a file after ours", map[string]string{"../containers.conf": `["a"]`, "zz.conf": `["z"]`}, `"a", "sandbox"`},
		{"has it already", map[string]string{"c.conf": `["sandbox"]`}, `"sandbox"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, list := range c.files {
				path := filepath.Join(drop, name)
				if err := os.WriteFile(path, []byte("[engine]\nruntime_supports_json = "+list+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				defer os.Remove(path)
			}
			p := &Podman{}
			for range 2 { // the lists are those of the last call
				if err := p.Elsewhere(file, nil, sandbox); err != nil {
					t.Fatal(err)
				}
			}
			got, err := p.Add(nil, sandbox)
			if want := podmanSandbox + podmanList(c.want); err != nil || string(got) != want {
				t.Errorf("%v, got\n%swant\n%s", err, got, want)
			}
		})
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
		for _, of := range []string{"sandbox", podmanLogs} {
			if b, err := findBlock(config, of); b != nil || err != nil {
				return
			}
		}
		if _, err := (&Podman{}).Add(config, r); err != nil {
			return
		}
		with, without := addAndRemove(t, &Podman{}, config, r)
		if string(without) != string(config) {
			t.Fatalf("%q became %q by way of\n%s", config, without, with)
		}
		tree, err := parseTOML(with)
		if err != nil || podmanPath(tree, "sandbox") != path || !slices.Contains(loggingIn(tree, nil), "sandbox") {
			t.Fatalf("not there (%v):\n%s", err, with)
		}
	})
}
