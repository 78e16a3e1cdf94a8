package integration

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
)

// needTwoPrograms skips where the file has the whole program only.
func needTwoPrograms(t *testing.T) {
	t.Helper()
	f, err := elf.Open(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Section(".oci.1") == nil {
		t.Skip("this file has one program: see docs/adr/0001")
	}
}

// Packages of the whole program that take long to initialise.
var slowPackages = regexp.MustCompile(`(?m)^init (encoding/gob|net/http|\S*go-digest|\S*klauspost\S*|\S*go-containerregistry\S*|google\.golang\.org/protobuf\S*|golang\.org/x/net/dns/dnsmessage) @`)

// A start of the OCI program initialises none of the packages that no OCI command needs.
func TestOCICommandsInitialiseLittle(t *testing.T) {
	needTwoPrograms(t)
	traced := func(args ...string) string {
		cmd := exec.Command(binary(t), append([]string{"--root", t.TempDir()}, args...)...)
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		return run(t, cmd).stderr
	}
	for _, args := range [][]string{{"--version"}, {"state", "c"}, {"kill", "c"}, {"delete", "c"}, {"start", "c"}, {"features"},
		{"create", "--bundle", "/no/such", "c"}, {"run", "--bundle", "/no/such", "c"}, {"exec", "--process", "/no/such", "c"}} {
		trace := traced(args...)
		if !strings.Contains(trace, "\ninit runtime @") && !strings.HasPrefix(trace, "init ") {
			t.Fatalf("%q: no trace: %q", args, trace)
		}
		for _, found := range slowPackages.FindAllStringSubmatch(trace, -1) {
			t.Errorf("%q initialises %s: leave it to the whole program (docs/adr/0001)", args, found[1])
		}
	}
	if trace := traced("list"); !slowPackages.MatchString(trace) {
		t.Errorf("the whole program initialises none of the slow packages: %s", trace)
	}
}

// The OCI program knows no sandboxes, no help and no wrong usage. The whole program answers in its place.
func TestOCIProgramLeavesTheRestToTheWholeOne(t *testing.T) {
	needTwoPrograms(t)
	s := newSandboxes(t)
	s.up("box")
	process := filepath.Join(t.TempDir(), "process.json")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"state", "box"}, 0, `"status": "running"`},
		{[]string{"delete", "box"}, 1, "cannot delete container box that is not stopped"},
		{[]string{"exec", "--process", process, "box"}, 125, "--process is not for sandboxes"},
		{[]string{"kill", "box", "0"}, 0, ""},
		{[]string{"exec", "box", "echo", "inside"}, 0, "inside"},
		{[]string{"run", "--help"}, 0, "create and run a container"},
		{[]string{"run", "-h"}, 0, "create and run a container"},
		{[]string{"state", "--no-such", "box"}, 1, "see sandbox-runtime state --help"},
		{[]string{"init"}, 3, `unknown command "init"`},
		{[]string{"--version", "list"}, 0, "box "},
		{[]string{"state", "nobody"}, 1, "nobody does not exist: no sandbox or container has this name"},
		{[]string{"delete", "--force", "nobody"}, 0, ""},
		{[]string{"run"}, 1, `"run" requires exactly 1 argument(s)`},
	} {
		got := run(t, exec.Command(binary(t), append([]string{"--root", s.root}, c.args...)...))
		if got.code != c.code || !strings.Contains(strings.ReplaceAll(got.stdout+got.stderr, `\"`, `"`), c.says) {
			t.Errorf("%q: %+v, want status %d and %q", c.args, got, c.code, c.says)
		}
	}
	if got := run(t, exec.Command(binary(t), "--root", s.root, "delete", "--force", "box")); got.code != 0 || exists(filepath.Join(s.root, "@sandboxes", "box")) {
		t.Errorf("delete --force: %+v", got)
	}
}

// The file is one program to its users: it works alone, at another place, and after strip(1).
func TestTheFileWorksAlone(t *testing.T) {
	needTwoPrograms(t)
	alone := filepath.Join(t.TempDir(), "another-name")
	if got := run(t, exec.Command("cp", binary(t), alone)); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	works := func(how string) {
		t.Helper()
		s := newSandboxes(t)
		if got := run(t, exec.Command(alone, "--root", s.root, "do", "--", "echo", "inside")); got.stdout != "inside\n" || got.code != 0 {
			t.Errorf("%s: do: %+v", how, got)
		}
		if got := run(t, exec.Command(alone, "--version")); !strings.HasPrefix(got.stdout, "sandbox-runtime version ") {
			t.Errorf("%s: --version: %+v", how, got)
		}
	}
	works("a copy")
	if _, err := exec.LookPath("strip"); err != nil {
		return // as in a guest without a compiler
	}
	if got := run(t, exec.Command("strip", alone)); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	works("a stripped copy")
}

// Both programs have the OCI commands, and callers see no difference.
func TestBothProgramsAnswerAlike(t *testing.T) {
	needTwoPrograms(t)
	root, empty := filepath.Join(t.TempDir(), "state"), t.TempDir()
	answer := func(args []string, variables ...string) result {
		cmd := exec.Command(binary(t), args...)
		cmd.Dir = empty
		cmd.Env = append(os.Environ(), variables...)
		got := run(t, cmd)
		got.stderr = regexp.MustCompile(`time="?\S+`).ReplaceAllString(got.stderr, "time")
		return got
	}
	for _, args := range [][]string{
		{"--version"}, {"-v"}, {"features"},
		{"--root", root, "state", "c"}, {"--root", root, "state"}, {"--root", root, "state", "c", "d"}, {"--root", root, "state", ""},
		{"--root", root, "--log-format", "json", "state", "c"}, {"--root", root, "--debug", "state", "c"},
		{"--root", root, "--log-format", "xml", "state", "c"}, {"--root", root, "--log", "/no/such/log", "state", "c"},
		{"--root", "/", "state", "c"}, {"--root", "", "state", "c"}, {"--root", root, "state", "../c"},
		{"--root", root, "kill", "c"}, {"--root", root, "kill", "c", "NONE"}, {"--root", root, "kill", "-x", "c"},
		{"--root", root, "delete", "c"}, {"--root", root, "delete", "--force", "c"}, {"--root", root, "start", "c"},
		{"--root", root, "create", "c"}, {"--root", root, "run", "c"}, {"--root", root, "run", ""}, {"--root", root, "run", "--bundle"},
		{"--root", root, "--rootless", "maybe", "run", "--bundle", empty, "c"}, {"--root", root, "--systemd-cgroup", "create", "c"},
		{"--root", root, "exec", "c", "true"}, {"--root", root, "exec", "--timeout", "1s", "c", "true"}, {"--root", root, "exec", "c"},
		{"--root", root, "exec", "--process", "/no/such", "c"}, {"--root", root, "exec", "--process", "/no/such", "--timeout", "1s", "c"},
		{"--root", root, "events", "c"}, {"--root", root, "events", "--interval", "x", "c"},
		{"--root", root, "checkpoint", "c"}, {"--root", root, "restore", "c"}, {"--root", root, "spec", "--bundle", "/no/such"},
		{"run", "--help"}, {"exec", "--process", "p", "--help"}, {"--root", root, "help", "run"}, {"init"}, {"run", "--rot", "c"},
	} {
		oci, whole := answer(args), answer(args, commandline.WholeVariable+"=1")
		if oci != whole {
			t.Errorf("%q:\nthe OCI program:   %+v\nthe whole program: %+v", args, oci, whole)
		}
	}
}
