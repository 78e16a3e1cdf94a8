package engine

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const own2 = `# begin sandbox-runtime register (containerd's own runtime)
# with any runtime named here, containerd 1.x forgets the one it has by default
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
# end sandbox-runtime register (containerd's own runtime)
`

const sandbox2 = `# begin sandbox-runtime register sandbox
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.sandbox]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.sandbox.options]
    BinaryName = "/usr/local/bin/sandbox-runtime"
# end sandbox-runtime register sandbox
`

// ownBlank is own2 where the configuration had no version.
var ownBlank = strings.Replace(own2, "# with", "version = 2\n# with", 1)

func version3(text string) string {
	return strings.ReplaceAll(text, "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
}

// debian is what Debian's containerd package installs.
const debian = `version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni" # not /opt
`

// kubeadm is the part that matters of a node's.
const kubeadm = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
`

// A new file is for the installed containerd. An old one keeps its version.
func TestContainerdsNewFileHasTheVersionOfContainerd(t *testing.T) {
	of := func(major int) Containerd { return Containerd{Major: func() int { return major }} }
	three := strings.Replace(version3(ownBlank+"\n"+sandbox2), "version = 2", "version = 3", 1)
	for major, after := range map[int]string{0: ownBlank + "\n" + sandbox2, 1: ownBlank + "\n" + sandbox2, 2: three, 3: three} {
		checkAdd(t, of(major), sandbox, []edit{
			{name: "no file", after: after},
			{name: "Debian's", before: debian, after: debian + "\n" + own2 + "\n" + sandbox2},
		})
		checkRemove(t, of(major), sandbox, []edit{{name: "new", before: after}})
	}
}

func TestContainerdAdd(t *testing.T) {
	systemd := strings.Replace(sandbox2, "# end", "    SystemdCgroup = true\n# end", 1)
	checkAdd(t, Containerd{}, sandbox, []edit{
		{name: "no file", after: ownBlank + "\n" + sandbox2},
		{name: "comments only", before: "# nothing\n", after: "# nothing\n\n" + ownBlank + "\n" + sandbox2},
		{name: "Debian's", before: debian, after: debian + "\n" + own2 + "\n" + sandbox2},
		{name: "no end of the last line", before: "version = 2", after: "version = 2\n" + own2 + "\n" + sandbox2},
		{name: "version 3", before: "version = 3\n", after: "version = 3\n\n" + version3(own2+"\n"+sandbox2)},
		{name: "version 4, the tables of 3", before: "version = 4\n", after: "version = 4\n\n" + version3(own2+"\n"+sandbox2)},
		{name: "kubeadm's, cgroups by systemd", before: kubeadm, after: kubeadm + "\n" + systemd},
		{
			name:   "cgroups as the default runtime has them",
			before: strings.ReplaceAll(kubeadm, "runc", "kata"), after: strings.ReplaceAll(kubeadm, "runc", "kata") + "\n" + systemd,
		},
		{name: "there already", before: debian + sandbox2, after: debian + sandbox2},
		{name: "text after ours", before: "version = 2\n" + sandbox2 + "[debug]\n", after: "version = 2\n" + sandbox2 + "[debug]\n"},
		{
			name:   "ours, elsewhere before",
			before: debian + strings.ReplaceAll(sandbox2, "/usr/local/bin/sandbox-runtime", "/old"), after: debian + sandbox2,
		},
		{name: "cgroups changed since", before: kubeadm + sandbox2, after: kubeadm + systemd},
		{
			name:   "somebody else's",
			before: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.sandbox.options]\nBinaryName = \"/usr/bin/runsc\"\n",
			words:  "as /usr/bin/runsc: choose another name with --name",
		},
		{
			name:   "a shim",
			before: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes]\nsandbox = {runtime_type = \"io.containerd.x.v1\"}\n",
			words:  "choose another name",
		},
		{
			name: "ours, edited", before: "version = 2\n" + strings.Replace(sandbox2, "BinaryName", "Root = \"/r\"\n    BinaryName", 1),
			line: 2, words: "not as register wrote them",
		},
		{name: "ours, without its end", before: "version = 2\n" + strings.Split(sandbox2, "# end")[0], line: 2, words: "# end sandbox-runtime register sandbox"},
		{
			name:   "runtimes in a table on one line",
			before: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nruntimes = {runc = {runtime_type = \"io.containerd.runc.v2\"}}\n",
			words:  "by hand",
		},
		{name: "broken", before: "version = 2\n[plugins\n", line: 2, words: "not TOML"},
		{name: "a key twice", before: "version = 2\nroot = 1\nroot = 2\n", line: 3, words: "not TOML"},
		{name: "version 1", before: "version = 1\nroot = \"/x\"\n", words: "version is 1"},
		{name: "a version to come", before: "version = 5\n", words: "version is 5"},
		{name: "a version that is none", before: "version = \"2\"\n", words: "not a number"},
		{name: "Docker's package", before: "disabled_plugins = [\"cri\"]\n", words: "without a version"},
		{name: "CRI turned off", before: "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n", words: "disabled_plugins"},
		{name: "CRI turned off, version 3", before: "version = 3\ndisabled_plugins = [\"io.containerd.cri.v1.runtime\"]\n", words: "disabled_plugins"},
	})
	r := sandbox
	r.Default = true
	checkAdd(t, Containerd{}, r, []edit{{name: "default", before: debian, words: "RuntimeClass"}})
}

func TestContainerdRemove(t *testing.T) {
	other := strings.ReplaceAll(strings.ReplaceAll(sandbox2, "register sandbox", "register other"), "runtimes.sandbox", "runtimes.other")
	checkRemove(t, Containerd{}, sandbox, []edit{
		{name: "no file"},
		{name: "made by register", before: ownBlank + "\n" + sandbox2},
		{name: "Debian's", before: debian + "\n" + own2 + "\n" + sandbox2, after: debian},
		{name: "version 4", before: "version = 4\n\n" + version3(own2+"\n"+sandbox2), after: "version = 4\n"},
		{name: "not there", before: debian, after: debian},
		{name: "runc stays as long as another is there", before: debian + "\n" + own2 + "\n" + sandbox2 + "\n" + other, after: debian + "\n" + own2 + "\n" + other},
		{
			name:   "the version stays as long as something else is there",
			before: ownBlank + "\n" + sandbox2 + "[debug]\nlevel = \"info\"\n", after: ownBlank + "[debug]\nlevel = \"info\"\n",
		},
		{name: "text before and after", before: "version = 2\n" + sandbox2 + "[debug]\n", after: "version = 2\n[debug]\n"},
		{name: "written by hand", before: debian + strings.TrimPrefix(sandbox2, "# begin sandbox-runtime register sandbox\n"), words: "by hand"},
		{name: "edited", before: "version = 2\n" + strings.Replace(sandbox2, "v2", "v3", 2), line: 2, words: "by hand"},
		{name: "settings below ours belong to it", before: "version = 2\n" + sandbox2 + "Root = \"/r\"\n", words: "by hand"},
		{
			name:   "is the default",
			before: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"sandbox\"\n" + sandbox2,
			words:  "change it first",
		},
		{name: "broken", before: "version = 2\n=\n", line: 2, words: "not TOML"},
	})
}

func TestContainerdImports(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.toml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(config, words string) {
		t.Helper()
		err := Containerd{}.Elsewhere(file, []byte(config), sandbox)
		if words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%v; want %q", err, words)
		}
	}
	const imports = "version = 2\nimports = [\"conf.d/../*.toml\"]\n"
	write("config.toml", imports)
	check(imports, "")
	write("more.toml", "version = 2\n[debug]\n")
	check(imports, "")
	write("more.toml", "version = 2\n[debug\n")
	if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	check(imports, "more.toml:2: not TOML")
	check("version = 2\nimports = [\""+dir+"/more.toml\"]\n", "more.toml:2: not TOML")
	write("more.toml", debian)
	check(imports, "name this file with --config")
	check(strings.Replace(imports, "2", "3", 1), "")
	check(strings.Replace(imports, "2", "4", 1), "")
	write("more.toml", "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n")
	check(strings.Replace(imports, "2", "3", 1), "SystemdCgroup = true for the runtime runc")
	check(strings.Replace(imports, "2", "3", 1)+"[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n", "")
	write("more.toml", "version = 3\n"+strings.Replace(version3(sandbox2), sandbox.Path, "/usr/bin/runsc", 1))
	check(imports, "as /usr/bin/runsc")
	if err := unix.Mkfifo(filepath.Join(dir, "fifo.toml"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(imports, "fifo.toml is not a regular file") // it is not waited for
}

// FuzzContainerdKeepsTheRest: what is added and removed again leaves each byte.
func FuzzContainerdKeepsTheRest(f *testing.F) {
	for _, c := range []string{
		"", "version = 2", "version = 2\n\n\n", debian, kubeadm, version3(kubeadm), "version = 3\r\n# x",
		"version = 2\n" + sandbox2, "version = 2\na = '''\n" + blockBegin + "sandbox\n'''\n",
		"version = 2\n[[a]]\nb = 1\n[a.b]\n", "version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\".containerd.x = 1\n",
	} {
		f.Add([]byte(c))
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		if b, err := findBlock(config, "sandbox"); b != nil || err != nil {
			return
		}
		if b, err := findBlock(config, containerdOwn); b != nil || err != nil {
			return
		}
		if _, err := (Containerd{}).Add(config, sandbox); err != nil {
			return
		}
		with, after := addAndRemove(t, Containerd{}, config, sandbox)
		if string(after) != string(config) {
			t.Fatalf("%q became %q by way of\n%s", config, after, with)
		}
		c, err := Containerd{}.read(with)
		if err != nil || c.path("sandbox") != sandbox.Path {
			t.Fatalf("not there (%v):\n%s", err, with)
		}
		before, _ := parseTOML(config)
		delete(c.tree, "version")
		delete(before, "version")
		without(c.tree, before, append(c.runtimes(), "sandbox")...)
		if runc := append(c.runtimes(), "runc"); lookup(before, runc...) == nil {
			without(c.tree, before, runc...)
		}
		if !reflect.DeepEqual(c.tree, before) {
			t.Fatalf("other settings changed:\n%s\n%s", config, with)
		}
	})
}
