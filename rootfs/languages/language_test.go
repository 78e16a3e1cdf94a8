package languages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// venv is a virtual environment made from an installation.
func venv(t *testing.T, dir, base string) string {
	t.Helper()
	testhost.WriteFile(t, dir+"/pyvenv.cfg", "home = "+base+"/bin\nversion = 3.12\n")
	if err := os.MkdirAll(dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	testhost.Symlink(t, base+"/bin/python3", dir+"/bin/python3")
	return dir
}

func TestLanguagesOnThePath(t *testing.T) {
	dir := t.TempDir()
	opt := testhost.Python(t, dir+"/opt/python")
	env := venv(t, dir+"/proj/.venv", opt)
	alias := dir + "/opt/python-alias"
	testhost.Symlink(t, "python", alias)
	aliased := venv(t, dir+"/proj/aliased", alias)
	testhost.Script(t, dir+"/shims/python3", "")
	testhost.Script(t, dir+"/lone/bin/python3", "")
	local := testhost.Python(t, dir+"/u/.local")
	testhost.Script(t, dir+"/node/bin/node", "")
	testhost.WriteFile(t, dir+"/node/include/node/node.h", "")
	testhost.Symlink(t, "node", dir+"/node-alias")
	if err := os.MkdirAll(dir+"/links/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	testhost.Symlink(t, opt+"/bin/python3", dir+"/links/bin/python3")
	home := testhost.Python(t, dir+"/home-of/me")
	closed := testhost.Python(t, dir+"/closed/python")
	if err := os.Chmod(closed, 0o750); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path           []string
		prefixes, bins []string
		note           string
	}{
		"an installation":              {path: []string{opt + "/bin"}, prefixes: []string{opt}, bins: []string{opt + "/bin"}},
		"a virtual environment":        {path: []string{env + "/bin", opt + "/bin"}, prefixes: []string{opt, env}, bins: []string{env + "/bin"}},
		"one made through a link":      {path: []string{aliased + "/bin"}, prefixes: []string{opt, alias, aliased}, bins: []string{aliased + "/bin"}},
		"two languages":                {path: []string{dir + "/node/bin", opt + "/bin"}, prefixes: []string{opt, dir + "/node"}, bins: []string{opt + "/bin", dir + "/node/bin"}},
		"a link to one":                {path: []string{dir + "/links/bin"}, prefixes: []string{opt}, bins: []string{opt + "/bin"}},
		"a directory that is a link":   {path: []string{dir + "/node-alias/bin"}, prefixes: []string{dir + "/node"}, bins: []string{dir + "/node/bin"}},
		"a shim":                       {path: []string{dir + "/shims"}, note: "lies in no bin directory"},
		"a shim, then an installation": {path: []string{dir + "/shims", opt + "/bin"}, prefixes: []string{opt}, bins: []string{opt + "/bin"}, note: "shims"},
		"without a landmark":           {path: []string{dir + "/lone/bin"}, note: "does not look like its prefix"},
		".local":                       {path: []string{local + "/bin"}, note: "more than a language"},
		"a home directory":             {path: []string{home + "/bin"}, note: "home directory"},
		"above a home":                 {path: []string{testhost.Python(t, dir+"/home-of") + "/bin"}, note: "home directory"},
		"for its owner only":           {path: []string{closed + "/bin"}, note: "not every user of the host"},
		"relative":                     {path: []string{"bin", ""}},
		"in /usr":                      {path: []string{"/usr/bin"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := lookFor(strings.Join(test.path, ":"), home, nil, nil)
			got.Notes = slices.DeleteFunc(got.Notes, func(n string) bool { return test.note != "" && strings.Contains(n, test.note) })
			if !slices.Equal(got.Prefixes, test.prefixes) || !slices.Equal(got.Path, test.bins) || len(got.Notes) > 0 {
				t.Errorf("%+v", got)
			}
		})
		if test.note != "" && len(lookFor(strings.Join(test.path, ":"), home, nil, nil).Notes) == 0 {
			t.Errorf("%s: no note", name)
		}
	}
}

func TestLanguageInAForbiddenPlace(t *testing.T) {
	testhost.NeedRoot(t, "a directory is made in /var/cache")
	dir, err := os.MkdirTemp("/var/cache", "rootfs-language-")
	if err != nil {
		t.Skipf("needs a place to write to below /var: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := testhost.Python(t, dir+"/python")
	link := t.TempDir() + "/python"
	testhost.Symlink(t, p, link)
	for _, path := range []string{p, link} {
		got := lookFor(path+"/bin", "/nowhere", nil, nil)
		if len(got.Prefixes) > 0 || len(got.Path) > 0 || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "--bind "+p+":"+p) {
			t.Errorf("%s: %+v", path, got)
		}
	}
	venv(t, dir+"/env", testhost.Python(t, t.TempDir()+"/python"))
	testhost.Symlink(t, dir+"/env", link+"-env")
	if got := lookFor(link+"-env/bin", "/nowhere", nil, nil); len(got.Prefixes) > 0 || len(got.Notes) != 1 {
		t.Errorf("an environment in a forbidden place, through a link: %+v", got)
	}
	for _, bound := range []string{p, dir} {
		got := lookFor(p+"/bin", "/nowhere", []Bind{{Source: bound, Target: bound}}, nil)
		if len(got.Prefixes) > 0 || !slices.Equal(got.Path, []string{p + "/bin"}) || len(got.Notes) > 0 {
			t.Errorf("with a bind of %s: %+v", bound, got)
		}
	}
	elsewhere := lookFor(p+"/bin", "/nowhere", []Bind{{Source: "/srv", Target: p}}, nil)
	if len(elsewhere.Path) > 0 {
		t.Errorf("a bind of something else is taken for it: %+v", elsewhere)
	}
	for _, wide := range []string{"/", "/opt"} {
		if err := (&finder{}).takeable(wide, nil); err == nil || !strings.Contains(err.Error(), "more than a language") {
			t.Errorf("%s: %v", wide, err)
		}
	}
}

// PATH can lead into a workspace, where a sandbox makes files of any type.
func TestFilesOfOtherTypesAreNotRead(t *testing.T) {
	dir := t.TempDir()
	base := testhost.Python(t, dir+"/base")
	for name, plant := range map[string]func(file string) error{
		"pipe":     func(file string) error { return unix.Mkfifo(file, 0o600) },
		"no end":   func(file string) error { return os.Symlink("/dev/zero", file) },
		"too long": func(file string) error { return os.Truncate(file, 1<<40) },
	} {
		env := venv(t, filepath.Join(dir, name), base)
		if name != "too long" {
			if err := os.Remove(env + "/pyvenv.cfg"); err != nil {
				t.Fatal(err)
			}
		}
		if err := plant(env + "/pyvenv.cfg"); err != nil {
			t.Fatal(err)
		}
		done := make(chan Found)
		go func() { done <- lookFor(env+"/bin", "", nil, nil) }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: Find does not return", name)
		}
	}
}
