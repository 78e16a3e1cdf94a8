package languages

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestBringing(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "ann")
	python := testhost.Python(t, home+"/.pyenv/versions/3.12")
	env := venv(t, home+"/project/.venv", python)
	testhost.Script(t, home+"/tools/loader.so", "")
	testhost.Script(t, home+"/bin/own", "")
	testhost.Script(t, home+"/.local/bin/local", "")
	testhost.Symlink(t, "/usr/bin/env", home+"/project/env")
	// A script in the sandbox chooses the path. It must not have a secret shown.
	testhost.WriteFile(t, home+"/notes/diary", "")
	testhost.Script(t, home+"/.ssh/helper", "")
	testhost.Script(t, home+"/.aws/bin/cli", "")
	testhost.Script(t, home+"/.config/run", "")
	testhost.Script(t, home+"/.config/tool/run", "")
	testhost.Symlink(t, home+"/.ssh", home+"/project/link")
	testhost.Symlink(t, home+"/.config", home+"/project/settings")
	testhost.Symlink(t, "/usr/bin/env", home+"/.config/env")
	if err := os.Mkdir(home+"/empty", 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		python + "/bin/python3":        {python},
		env + "/bin/python3":           {env, python},
		home + "/tools/loader.so":      {home + "/tools"},
		home + "/bin/own":              {home + "/bin/own"},
		home + "/.local/bin/local":     {home + "/.local/bin/local"},
		home + "/project/env":          {home + "/project"},
		home + "/empty":                nil,
		home + "/none":                 nil,
		home + "/notes/diary":          nil,
		home + "/.ssh/helper":          nil,
		home + "/.aws/bin/cli":         nil,
		home + "/.config/run":          {home + "/.config/run"},
		home + "/.config/tool/run":     {home + "/.config/tool"},
		home + "/project/link/helper":  nil,
		home + "/project/settings/env": {home + "/project/settings/env"},
		"/etc/shadow":                  nil,
		"/etc/ssh/none":                nil,
		"/usr/bin/env":                 nil,
		"/proc/self/exe/../../../..":   nil,
	} {
		if got := Bringing(path, home); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
