package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// planted makes paths that run without a question beside ordinary ones.
const planted = `cd "$0"; echo new > ordinary; echo evil > .envrc; mkdir -p src/.vscode; echo '{}' > src/.vscode/tasks.json
	echo evil > .git/hooks/pre-push; echo evil >> .git/config; echo all: > Makefile; echo x > tool; chmod 755 tool`

// newRepository is a home with a repository in it.
func newRepository(t *testing.T) string {
	t.Helper()
	home := newHome(t)
	script := `cd "$1"; mkdir -p .git/hooks; echo '[core]' > .git/config; chown -R 4242:4242 .git`
	if out, err := exec.Command("sh", "-euc", script, "sh", home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return home
}

func isThere(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// heldPaths are those of planted that apply holds back.
var heldPaths = []string{".envrc", ".git/hooks/pre-push", "src/.vscode/tasks.json"}

func TestApplyHoldsBackWhatRunsByItself(t *testing.T) {
	s, home := newSandboxes(t), newRepository(t)
	s.up("box", "--overlay", home)
	if got := s.exec("box", "sh", "-euc", planted, home); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	wantHeld := func(got result) {
		t.Helper()
		for _, path := range append(heldPaths, ".git/config", "src/.vscode") {
			if !strings.Contains(got.stderr, "held back: "+home+"/"+path+": ") {
				t.Errorf("%s is not listed in\n%s", path, got.stderr)
			}
		}
	}
	dry := run(t, s.command("apply", "--dry-run", "box"))
	wantHeld(dry)
	if dry.code != 0 || isThere(t, home+"/ordinary") {
		t.Errorf("%+v", dry)
	}
	got := run(t, s.command("apply", "--yes", "box"))
	wantHeld(got)
	if got.code != 1 || !strings.Contains(got.stderr, "--allow-autorun") || !strings.Contains(got.stderr, "applied 3 changes") {
		t.Errorf("%+v", got)
	}
	for _, path := range append(heldPaths, "src/.vscode") {
		if isThere(t, filepath.Join(home, path)) {
			t.Errorf("%s was applied", path)
		}
	}
	for _, path := range []string{"ordinary", "Makefile", "tool"} {
		if !isThere(t, filepath.Join(home, path)) {
			t.Errorf("%s was not applied", path)
		}
	}
	named := run(t, s.command("apply", "--yes", "box", ".envrc"))
	if named.code != 1 || isThere(t, home+"/.envrc") {
		t.Errorf("a named path was applied: %+v", named)
	}
	if got := run(t, s.command("apply", "--yes", "--allow-autorun", "box")); got.code != 0 || strings.Contains(got.stderr, "held back") {
		t.Errorf("%+v", got)
	}
	for _, path := range heldPaths {
		if !isThere(t, filepath.Join(home, path)) {
			t.Errorf("%s was not applied", path)
		}
	}
	if config, err := os.ReadFile(home + "/.git/config"); err != nil || string(config) != "[core]\nevil\n" {
		t.Errorf("%q, %v", config, err)
	}
}

func TestChangesAndDiffMarkWhatRunsByItself(t *testing.T) {
	s, home := newSandboxes(t), newRepository(t)
	s.up("box", "--overlay", home)
	if got := s.exec("box", "sh", "-euc", planted, home); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	text := run(t, s.command("changes", "box")).stdout
	for _, want := range []string{
		home + "/.envrc  ! a tool runs it when a shell enters the directory (apply holds it back)\n",
		home + "/Makefile  ! a build or a test runs it\n", home + "/tool  ! it is a program now\n", home + "/ordinary\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	held := map[string]bool{}
	for line := range strings.Lines(run(t, s.command("changes", "--json", "box")).stdout) {
		var c struct {
			Path, Warning string
			Held          bool
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		if c.Held && c.Warning == "" {
			t.Errorf("%s is held for no reason", c.Path)
		}
		held[strings.TrimPrefix(c.Path, home+"/")] = c.Held
	}
	for _, path := range append(heldPaths, ".git/config") {
		if !held[path] {
			t.Errorf("%s is not held in %v", path, held)
		}
	}
	if held["Makefile"] || held["ordinary"] || held["tool"] {
		t.Errorf("%v", held)
	}
	diff := run(t, s.command("diff", "box")).stdout
	first, _, _ := strings.Cut(diff, "\n")
	if !strings.HasPrefix(first, "# runs unasked: "+home+"/.envrc: ") || !strings.Contains(diff, "\n# look at: "+home+"/Makefile: ") {
		t.Errorf("the diff is\n%s", diff)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", home, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin = copied, strings.NewReader(diff)
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(copied), "GIT_DIR=/nowhere")
	if out, err := cmd.CombinedOutput(); err != nil || !isThere(t, copied+"/ordinary") {
		t.Errorf("git apply: %v: %s", err, out)
	}
}

func TestApplyHoldsBackARepositoryWhole(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	// Inside, .git is made; src becomes a clone in place of the host's directory.
	clone := `cd "$0"; mkdir -p .git/objects; echo x > .git/objects/x; echo a > README; rm -r old; mkdir -p old/.git; echo y > old/.git/HEAD; echo z > old/z`
	if got := s.exec("box", "sh", "-euc", clone, home); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	got := run(t, s.command("apply", "--yes", "box"))
	if got.code != 1 || strings.Count(got.stderr, "held back: "+home) != 2 || !strings.Contains(got.stderr, "held back: "+home+"/.git: ") {
		t.Errorf("%+v", got)
	}
	if isThere(t, home+"/.git") || isThere(t, home+"/old/.git") || !isThere(t, home+"/old/z") {
		t.Errorf("after %+v", got)
	}
	part := run(t, s.command("changes", "box", ".git/objects"))
	if !strings.Contains(part.stdout, ".git/objects/x  ! git uses its configuration and its hooks (apply holds it back)\n") {
		t.Errorf("%+v", part)
	}
}

// The rights of a file are held back, and the file is not.
func TestApplyHoldsBackSetuidBits(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	profile := filepath.Join(t.TempDir(), "all.json") // the built-in ones refuse the bit
	if err := os.WriteFile(profile, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.up("box", "--overlay", home, "--seccomp", profile)
	if got := s.exec("box", "sh", "-euc", `cd "$0"; echo x > tool; chmod 4755 tool`, home); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	got := run(t, s.command("apply", "--yes", "box"))
	if got.code != 1 || !strings.Contains(got.stderr, "held back: "+home+"/tool: its setuid or setgid bit") {
		t.Errorf("%+v", got)
	}
	if st, err := os.Stat(home + "/tool"); err != nil || st.Mode() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
	if got := run(t, s.command("apply", "--yes", "--allow-autorun", "box")); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if st, err := os.Stat(home + "/tool"); err != nil || st.Mode() != 0o755|os.ModeSetuid {
		t.Errorf("%v, %v", st, err)
	}
}

func TestDoApplyKeepsTheSandboxOfWhatItHoldsBack(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	got := s.do("--overlay", home, "--apply", "--", "sh", "-c", "cd "+home+"; echo a > ordinary; echo b > .bashrc; exit 7")
	_, rest, _ := strings.Cut(got.stderr, "stays up as ")
	id, _, _ := strings.Cut(rest, " ")
	if got.code != 7 || id == "" || !strings.Contains(got.stderr, "held back: "+home+"/.bashrc: ") || !strings.Contains(got.stderr, "apply --allow-autorun "+id) {
		t.Fatalf("%+v", got)
	}
	if !isThere(t, home+"/ordinary") || isThere(t, home+"/.bashrc") {
		t.Errorf("after %+v", got)
	}
	if got := run(t, s.command("apply", "--yes", "--allow-autorun", id)); got.code != 0 || !isThere(t, home+"/.bashrc") {
		t.Errorf("%+v", got)
	}
	s.downIfUp(id)
}

// A dotfile lies elsewhere, and the host has a link to it.
func TestApplyKnowsLinksToDotfiles(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	script := `cd "$1"; mkdir dotfiles; echo a > dotfiles/shell; ln -s dotfiles/shell .bashrc; chown -hR 4242:4242 .bashrc dotfiles`
	if out, err := exec.Command("sh", "-euc", script, "sh", home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.up("box", "--overlay", home)
	if got := s.exec("box", "sh", "-euc", `echo evil >> "$0"/.bashrc`, home); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	got := run(t, s.command("apply", "--yes", "box"))
	if got.code != 1 || !strings.Contains(got.stderr, "held back: "+home+"/dotfiles/shell: ") {
		t.Errorf("%+v", got)
	}
}

// The place on the host counts, also where the overlay is named by a link to it.
func TestApplyKnowsWhereTheTreeLies(t *testing.T) {
	for _, name := range []string{".config/systemd/user", "units"} {
		t.Run(name, func(t *testing.T) {
			s, home := newSandboxes(t), newHome(t)
			script := `cd "$1"; mkdir -p .config/systemd/user; ln -s .config/systemd/user units; chown -R 4242:4242 .config`
			if out, err := exec.Command("sh", "-euc", script, "sh", home).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			dir := filepath.Join(home, name)
			s.up("box", "--overlay", dir)
			if got := s.exec("box", "sh", "-euc", `echo evil > "$0"/x.service`, dir); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			got := run(t, s.command("apply", "--yes", "box"))
			if got.code != 1 || isThere(t, filepath.Join(dir, "x.service")) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A directory with HEAD, objects and refs is a repository, wherever it lies. Its
// configuration runs a program at each "git status".
func TestABareRepositoryIsHeldBackWhereverItLies(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	if out, err := exec.Command("sh", "-euc", `cd "$1"; mkdir -p old/HEAD; chown -R 4242:4242 old`, "sh", home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.up("box", "--overlay", home)
	places := []string{"x.git/y", "x.git/worktrees/a", "x.git/worktrees/a/b", "x.git/refs/y", "x.git/logs/y", "x.git/modules/y", "old", "new"}
	script := `cd "$0"; rmdir old/HEAD; for d; do mkdir -p "$d/objects" "$d/refs"; echo x > "$d/ordinary"; echo 'ref: refs/heads/main' > "$d/HEAD"; echo '[core]' > "$d/config"; done`
	if got := s.exec(append([]string{"box", "sh", "-euc", script, home}, places...)...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	got := run(t, s.command("apply", "--yes", "box"))
	if got.code != 1 {
		t.Errorf("%+v", got)
	}
	for _, place := range places {
		dir := filepath.Join(home, place)
		if !isThere(t, dir+"/ordinary") || isThere(t, dir+"/config") {
			t.Errorf("%s: it is not the configuration alone that is held back", place)
		}
	}
}

// TestApplyMarksWhatItHasApplied although the host's file has the new mode by then.
func TestApplyMarksWhatItHasApplied(t *testing.T) {
	s, home := newSandboxes(t), newRepository(t)
	if err := os.WriteFile(home+"/script", []byte("echo a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.up("box", "--overlay", home)
	if got := s.exec("box", "chmod", "755", home+"/script"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	got := run(t, s.command("apply", "--yes", "box"))
	if want := home + "/script  ! it is a program now\n"; got.code != 0 || !strings.Contains(got.stderr, want) {
		t.Errorf("%+v, want %q", got, want)
	}
}
