package languages

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestHiddenToolchainIsNamedWithItsBind(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{
		".cargo/bin/rustup", ".cargo/bin/cargo", ".rustup/toolchains/stable/bin/cargo",
		".pyenv/shims/python3", ".pyenv/versions/3.12.1/bin/python3",
		".nvm/versions/node/v20/bin/npm", ".sdkman/candidates/maven/3.9/bin/mvn",
	} {
		testhost.Script(t, home+"/"+name, "")
	}
	testhost.WriteFile(t, home+"/.rustup/settings.toml", "version = \"12\"\ndefault_toolchain = \"stable\"\n")
	testhost.WriteFile(t, home+"/.pyenv/version", "3.12.1\n")
	testhost.Symlink(t, "3.9", home+"/.sdkman/candidates/maven/current")
	for bin, test := range map[string]struct{ exe, prefix string }{
		".cargo/bin":                            {".cargo/bin/cargo", ".rustup/toolchains/stable"},
		".pyenv/shims":                          {".pyenv/shims/python3", ".pyenv/versions/3.12.1"},
		".nvm/versions/node/v20/bin":            {".nvm/versions/node/v20/bin/npm", ".nvm/versions/node/v20"},
		".sdkman/candidates/maven/current/bin/": {".sdkman/candidates/maven/current/bin/mvn", ".sdkman/candidates/maven/current"},
	} {
		prefix := home + "/" + test.prefix
		want := home + "/" + test.exe + " is not shown in the sandbox: bring it with --bind " + prefix + ":" + prefix
		got := lookFor(home+"/"+bin+":/usr/bin", home, nil, nil)
		if !slices.Equal(got.Notes, []string{want}) || len(got.Path)+len(got.Prefixes) > 0 {
			t.Errorf("%s: got %+v, want the note %q", bin, got, want)
		}
		got = lookFor(home+"/"+bin+":/usr/bin", home, []Bind{{Source: prefix, Target: prefix}}, nil)
		if !slices.Equal(got.Path, []string{prefix + "/bin"}) || len(got.Notes)+len(got.Prefixes) > 0 {
			t.Errorf("%s with the bind: got %+v", bin, got)
		}
	}
}

func TestDefaultOfAToolchainIsOneDirectory(t *testing.T) {
	home := t.TempDir()
	testhost.Script(t, home+"/shims/python3", "")
	shims := openDirs(home+"/shims", nil, new(shortage))[0]
	defer shims.close(nil)
	for _, version := range []string{"../..", "..", "system", ""} {
		testhost.WriteFile(t, home+"/version", version+"\n")
		if got := shims.programs(); got != home+"/shims" {
			t.Errorf("version %q leads to %s", version, got)
		}
	}
}

func TestOptIsShownWherePathPointsIntoIt(t *testing.T) {
	testhost.NeedRoot(t, "a directory is made in /opt")
	dir, err := os.MkdirTemp("/opt", "rootfs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testhost.Script(t, dir+"/ide/bin/ide", "")
	path := dir + "/ide/bin:" + dir + "/none:/opt:/opt/rootfs-none/bin"
	got := lookFor(path, "/nowhere", nil, nil)
	if len(got.Prefixes)+len(got.Path) > 0 || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "not every user") {
		t.Errorf("mode 0700: %+v", got)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	got = lookFor(path, "/nowhere", nil, nil)
	if !slices.Equal(got.Prefixes, []string{dir}) || !slices.Equal(got.Path, []string{dir + "/ide/bin"}) || len(got.Notes) > 0 {
		t.Errorf("%+v, want %s shown", got, dir)
	}
}
