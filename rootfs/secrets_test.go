package rootfs

import (
	"errors"
	"flag"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// secretExamples are some secrets of each kind that the list must have.
var secretExamples = []string{
	".ssh", ".aws", ".azure", ".config/gcloud", ".oci", ".kube", ".terraform.d/credentials.tfrc.json", ".vault-token", ".docker",
	".config/containers/auth.json", ".git-credentials", ".config/git/credentials", ".config/gh", ".config/hub", ".config/glab-cli",
	".cargo/credentials.toml", ".m2/settings.xml", ".gradle/gradle.properties", ".npmrc", ".pypirc", ".pgpass", ".my.cnf",
	".mylogin.cnf", ".s3cfg", ".config/rclone", ".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mozilla",
	".config/chromium", "snap/firefox", ".var/app/org.mozilla.firefox", ".thunderbird", ".config/Slack", ".config/Signal",
	".local/share/keyrings", ".local/share/kwalletd", ".config/op", ".netrc", ".gnupg",
}

// usable are paths beside secrets, which an overlaid home needs.
var usable = []string{
	".cargo/config.toml", ".cargo/bin/x", ".m2/repository/x", ".gradle/caches/x", ".config/containers/storage.conf",
	".config/git/config", ".gitconfig", ".bashrc", ".local/share/applications/x", ".local/share/x", ".config/x", ".cache/x",
	".claude/settings.json", "snap/x", ".var/app/x/y", ".sshd", ".terraform.d/plugins/x", ".vimrc", ".gitea/workflows/x", ".yarnrc",
}

// TestEachSecretIsEmpty has one sandbox with every secret, files and directories in turn.
func TestEachSecretIsEmpty(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := ownedDir(t, 1234, 1234)
	names := hostpaths.Secrets()
	for i, name := range names {
		if i%2 == 1 {
			name += "/inside"
		}
		testhost.WriteFile(t, path.Join(dir, name), "secret\n")
	}
	for _, name := range usable {
		testhost.WriteFile(t, path.Join(dir, name), "usable\n")
	}
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, 1234, 1234))
	})
	if err != nil {
		t.Fatal(err)
	}
	c := overlayConfig(t)
	c.Overlays = []string{dir}
	r, m := overlaidRoot(t, c)
	if got := inside(t, r, m.Path, 1000, "grep -rls secret "+dir+" || true"); got != "" {
		t.Errorf("shown are\n%s", got)
	}
	all := strings.Split(inside(t, r, m.Path, 1000, "grep -rl usable "+dir), "\n")
	for _, name := range usable {
		if !slices.Contains(all, path.Join(dir, name)) {
			t.Errorf("%s is hidden", name)
		}
	}
	for i, name := range names {
		if text, err := os.ReadFile(path.Join(dir, name, []string{"", "inside"}[i%2])); err != nil || string(text) != "secret\n" {
			t.Errorf("the host has %s: %q, %v", name, text, err)
		}
	}
}

func TestSecretsAreWellFormed(t *testing.T) {
	all := hostpaths.Secrets()
	for i, name := range all {
		if name == "" || path.Clean(name) != name || path.IsAbs(name) || slices.Contains(all[:i], name) {
			t.Errorf("%q", name)
		}
		for _, other := range all {
			if other != name && strings.HasPrefix(name, other+"/") {
				t.Errorf("%s lies in %s", name, other)
			}
		}
	}
	for _, name := range secretExamples {
		if !slices.Contains(all, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// A home may be a link, and a missing secret costs no mount.
func TestSecretsThroughLinks(t *testing.T) {
	dir := overlayTree(t)
	testhost.WriteFile(t, dir+"/real/config/gcloud/key", "")
	for link, target := range map[string]string{"home": "real", "real/.config": "config"} {
		if err := os.Symlink(target, path.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	c := overlayConfig(t)
	c.Overlays, c.Home = []string{dir}, dir+"/home"
	text := describe(planOf(t, c).root, "/")
	if !strings.Contains(text, dir+"/real/config/gcloud hidden\n") || strings.Count(text, "hidden") != 2 {
		t.Errorf("the plan is\n%s", text)
	}
}

var update = flag.Bool("update", false, "write the table of docs/masks.md")

func TestThePageHasTheSecrets(t *testing.T) {
	const name, begin, end = "../docs/masks.md", "<!-- begin -->\n", "<!-- end -->\n"
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), begin)
	_, tail, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no place for the table", name)
	}
	table := "| of | paths |\n|---|---|\n"
	for _, group := range hostpaths.SecretGroups() {
		table += "| " + group.Of + " | `" + strings.Join(group.Names, "`, `") + "` |\n"
	}
	page := head + begin + table + end + tail
	if page == string(data) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the list; run: go test ./rootfs -run TestThePageHasTheSecrets -update", name)
	}
	if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
