package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// joined is a file with two small programs, made as make build makes bin/sandbox-runtime.
func joined(t *testing.T) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("scripts/join is for amd64")
	}
	dir := t.TempDir()
	for name, address := range map[string]string{"oci": "0x20000000", "whole": "0x400000"} {
		mustRun(t, exec.Command("cc", "-O1", "-static", "-no-pie", "-DNAME=\""+name+"\"", "-Wl,-Ttext-segment="+address,
			"-o", filepath.Join(dir, name), "testdata/part.c"))
	}
	both := filepath.Join(dir, "both")
	mustRun(t, exec.Command("../../scripts/join", filepath.Join(dir, "oci"), filepath.Join(dir, "whole"), both))
	return both
}

func mustRun(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", cmd.Args, err, out)
	}
	return string(out)
}

// Each program starts as alone: with its own headers, thread-local storage and zeros.
func TestEntryChoosesTheProgram(t *testing.T) {
	both := joined(t)
	for _, c := range []struct{ args, want string }{
		{"run --bundle b box", "oci"},
		{"init", "oci"},
		{"--version", "oci"},
		{"-v", "oci"},
		{"--root /r --log l --log-format json --debug --systemd-cgroup --rootless true create box", "oci"},
		{"--root=/r --log=l state box", "oci"},
		{"-root /r kill box 9", "oci"},
		{"exec --process p.json box", "oci"},
		{"exec --process=p.json box", "oci"},
		{"exec -d -p p.json box", "oci"},
		{"exec box run", "oci"},

		{"", "whole"},
		{"do -- run", "whole"},
		{"list", "whole"},
		{"--root run", "whole"},
		{"--root", "whole"},
		{"--roots /r run box", "whole"},
		{"--socket s state box", "whole"},
		{"--socket=s state box", "whole"},
		{"--data d run box", "whole"},
		{"--network-range 10.0.0.0/8 run box", "whole"},
		{"--help run", "whole"},
		{"-- run", "whole"},
		{"- run", "whole"},
		{"runs", "whole"},
		{"ru", "whole"},
	} {
		args := strings.Fields(c.args)
		want := c.want + " 42"
		for _, a := range args {
			want += " [" + a + "]"
		}
		if got := mustRun(t, exec.Command(both, args...)); got != want+"\n" {
			t.Errorf("%q ran %q, want %q", c.args, got, want)
		}
	}
}

func TestEntryChoosesTheWholeProgramForTheOther(t *testing.T) {
	cmd := exec.Command(joined(t), "run", "box")
	cmd.Env = []string{commandline.WholeVariable + "=1"}
	if got := mustRun(t, cmd); !strings.HasPrefix(got, "whole ") {
		t.Errorf("ran %q", got)
	}
	cmd = exec.Command(cmd.Path, "run", "box")
	cmd.Env = []string{commandline.WholeVariable + "S=1", "A=" + commandline.WholeVariable + "=1"}
	if got := mustRun(t, cmd); !strings.HasPrefix(got, "oci ") {
		t.Errorf("with other variables: ran %q", got)
	}
}

// A command on a sandbox needs no second start.
func TestEntryKnowsSandboxes(t *testing.T) {
	both, root := joined(t), t.TempDir()
	if err := os.MkdirAll(record.Roots{State: root}.Dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"whole", []string{"--root", root, "exec", "box", "ls"}},
		{"whole", []string{"--root=" + root, "exec", "--user", "1", "-d", "box", "ls", "-l"}},
		{"whole", []string{"-root", root, "state", "box"}},
		{"oci", []string{"--root", root, "exec", "boxer", "ls"}},
		{"oci", []string{"--root", root, "exec", "../@sandboxes/box", "ls"}},
		{"oci", []string{"--root", root, "exec", "", long}},
		{"oci", []string{"--root", long, "exec", "box", "ls"}},
		{"oci", []string{"--root", root + "/none", "exec", "box", "ls"}},
	} {
		if got := mustRun(t, exec.Command(both, c.args...)); !strings.HasPrefix(got, c.want+" ") {
			t.Errorf("%.200q ran %.10q, want %s", c.args, got, c.want)
		}
	}
}

// An ordinary user has the sandboxes of a launcher, unless flags say otherwise.
func TestEntryLeavesOrdinaryUsersToTheWholeProgram(t *testing.T) {
	testhost.NeedRoot(t, "becoming another user")
	both := joined(t)
	for dir := both; dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"state box": "whole", "--root /r state box": "oci", "--log l state box": "oci", "--debug state box": "oci",
		"--systemd-cgroup state box": "whole",
	} {
		cmd := exec.Command(both, strings.Fields(args)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if got := mustRun(t, cmd); !strings.HasPrefix(got, want+" ") {
			t.Errorf("%q ran %q, want %s", args, got, want)
		}
	}
}

// The table of entry.c is that of this program.
func TestEntryKnowsTheCommands(t *testing.T) {
	both := joined(t)
	for _, m := range makers() {
		if got := mustRun(t, exec.Command(both, m.name)); !strings.HasPrefix(got, "oci ") {
			t.Errorf("%s ran %q: add the command to cmd/sandbox-entry/entry.c", m.name, got)
		}
		if c := m.make(); c.Name != m.name || len(commands([]string{m.name})) != 1 {
			t.Errorf("the command %q has the name %q", m.name, c.Name)
		}
	}
}

// Packages whose initialisation takes long, or that bring such packages along. Each start of a container
// would take that time twice.
var tooHeavy = []string{
	"github.com/google/go-containerregistry", "github.com/klauspost/compress", "github.com/opencontainers/go-digest",
	"github.com/google/nftables", "github.com/sandbox-runtime/sandbox-runtime/sandbox",
	"github.com/sandbox-runtime/sandbox-runtime/images", "github.com/sandbox-runtime/sandbox-runtime/internal/launcher",
	"github.com/sandbox-runtime/sandbox-runtime/netns", "github.com/containerd/cgroups", "google.golang.org/protobuf",
	"golang.org/x/net/dns/dnsmessage", "crypto/tls", "encoding/gob", "net/http", "text/template", "html/template",
}

// light is a package of a heavy tree that initialises little.
const light = "github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"

func TestNoPackageIsTooHeavy(t *testing.T) {
	const tags = "seccomp netgo osusergo urfave_cli_no_template oci_program"
	importers := make(map[string][]string)
	for line := range strings.Lines(mustRun(t, exec.Command("go", "list", "-deps", "-tags", tags, "-f", `{{.ImportPath}} {{join .Imports " "}}`, "."))) {
		f := strings.Fields(line)
		for _, imported := range f[1:] {
			importers[imported] = append(importers[imported], f[0])
		}
	}
	for path, from := range importers {
		heavy := path != light && slices.ContainsFunc(tooHeavy, func(tree string) bool { return path == tree || strings.HasPrefix(path, tree+"/") })
		outside := func(importer string) bool { return strings.Contains(importer, "sandbox-runtime/sandbox-runtime/") }
		if heavy && slices.ContainsFunc(from, outside) {
			t.Errorf("the OCI program imports %s, by %q: each start of a container would initialise it twice. Leave it to the whole program, or to a package that only the whole program imports (docs/adr/0001)", path, from)
		}
	}
}
