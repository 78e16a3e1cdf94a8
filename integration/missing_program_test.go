package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A toolchain is a program of the host that no sandbox shows, with a virtual environment and scripts in a directory
// that the sandbox overlays.
type toolchain struct{ prefix, project string }

func newToolchain(t *testing.T) toolchain {
	t.Helper()
	dir := t.TempDir()
	c := toolchain{filepath.Join(dir, "toolchain"), filepath.Join(dir, "project")}
	for _, bin := range []string{c.prefix + "/bin", c.project + "/bin"} {
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, content := range map[string]string{
		c.prefix + "/bin/python":  "#!/bin/sh\necho python\n",
		c.project + "/venvscript": "#!" + c.project + "/bin/python\n",
		c.project + "/script":     "#!" + c.prefix + "/bin/python\n",
		c.project + "/gone":       "#!/nowhere/python\n",
		c.project + "/crlf":       "#!/bin/sh\r\necho hi\r\n",
		c.project + "/noline":     "echo hi\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(c.prefix+"/bin/python", c.project+"/bin/python"); err != nil {
		t.Fatal(err)
	}
	return c
}

// refusals are commands with the end of the message about each.
func (c toolchain) refusals() map[string]string {
	bind := " is not found in the sandbox; bring it with --bind " + c.prefix + ":" + c.prefix
	link := c.project + "/bin/python is a link to " + c.prefix + "/bin/python, and the target"
	return map[string]string{
		"./script":     "./script: its interpreter " + c.prefix + "/bin/python" + bind,
		"./venvscript": "./venvscript: its interpreter " + link + bind,
		"bin/python":   "bin/python: bin/python is a link to " + c.prefix + "/bin/python, and the target" + bind,
		"./gone":       "./gone: its interpreter /nowhere/python is not found in the sandbox",
		"./crlf":       `for example with: sed -i 's/\r$//' ./crlf`,
		"echo a | wc":  "run the line in a shell: sh -c 'echo a | wc'",
		"cd":           "run the line in a shell: sh -c 'cd'",
		"no-such":      "no-such: not found in the sandbox",
	}
}

func TestDoNamesTheFileThatAProgramLacks(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, c := newSandboxes(t), newToolchain(t)
	for command, want := range c.refusals() {
		got := s.do("--overlay", c.project, "--", command)
		if got.code != 127 || !strings.HasSuffix(got.stderr, want+"\n") || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %q", command, got, want)
		}
	}
	if got := s.do("--overlay", c.project, "--", "./noline"); got.code != 126 || !strings.HasSuffix(got.stderr, "for example: sh ./noline\n") {
		t.Errorf("without an interpreter: %+v", got)
	}
	bound := s.do("--overlay", c.project, "--bind", c.prefix+":"+c.prefix, "--", "./script")
	if strings.Contains(bound.stderr, "not found") {
		t.Errorf("with the bind of the message: %+v", bound)
	}
	if got := s.do("--local", "--workspace", c.project, "--", "./gone"); got.code != 127 || !strings.HasSuffix(got.stderr, "its interpreter /nowhere/python is not found on this host\n") {
		t.Errorf("without a sandbox: %+v", got)
	}
}

func TestExecNamesTheFileThatAProgramLacks(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, c := newSandboxes(t), newToolchain(t)
	s.up("box", "--overlay", c.project)
	for command, want := range c.refusals() {
		for _, flags := range [][]string{nil, {"--detach"}, {"--transaction"}, {"--tty"}} {
			if got := s.exec(append(flags, "box", command)...); got.code != 127 || !strings.HasSuffix(got.stderr, want+"\n") {
				t.Errorf("%q %s: %+v, want %q", flags, command, got, want)
			}
		}
		var o outcome
		if err := json.Unmarshal([]byte(s.exec("--json", "box", command).stdout), &o); err != nil || !strings.HasSuffix(o.Reason, want) {
			t.Errorf("--json %s: %+v, %v, want %q", command, o, err, want)
		}
	}
}

// A user must not learn from a message whether a file exists that the user cannot reach.
func TestTheLauncherTellsNothingAboutTheHost(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	for above := dir; strings.HasPrefix(above, os.TempDir()+"/"); above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	secret, workspace, rules := filepath.Join(dir, "secret"), filepath.Join(dir, "workspace"), filepath.Join(dir, "rules.json")
	for _, err := range []error{os.Mkdir(secret, 0o700), os.Mkdir(workspace, 0o755), os.Chown(workspace, 4242, 4242)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(secret, "there"), "")
	writeFile(t, rules, `{"peers": [{"user": 4242, "workspaces": ["`+dir+`"]}]}`)
	l := s.launcher(filepath.Join(dir, "socket"), "--rules", rules, "--mode", "0666")
	for _, name := range []string{"there", "none"} {
		script := filepath.Join(workspace, "run")
		if err := os.WriteFile(script, []byte("#!"+secret+"/"+name+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		got := run(t, as4242(binary(t), "--socket", l.socket, "do", "--workspace", workspace, "--", "./run"))
		want := "./run: its interpreter " + secret + "/" + name + " is not found in the sandbox\n"
		if got.code != 127 || !strings.HasSuffix(got.stderr, want) {
			t.Errorf("%s: %+v, want %q", name, got, want)
		}
	}
}

// as4242 is a command of an ordinary user.
func as4242(args ...string) *exec.Cmd {
	return exec.Command("setpriv", append([]string{"--reuid", "4242", "--regid", "4242", "--clear-groups"}, args...)...)
}
