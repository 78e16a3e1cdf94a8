// Package languages finds the interpreters and toolchains on a caller's PATH, and the directories of
// the host that they need.
package languages

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// Found are the additions to the host's own root that the programs on a caller's PATH need.
type Found struct {
	Prefixes []string // for Config.Prefixes
	Path     []string // for the front of the sandbox's PATH
	Notes    []string // programs that are not shown, and why, a sentence each
}

// A Bind shows a path of the host.
type Bind struct{ Source, Target string }

// A language is an interpreter and the landmarks of its prefix. A prefix must have one of the
// landmarks: any program may have a bin directory, with anything beside it.
type language struct {
	name      string
	landmarks []string
}

var languages = []language{
	{"python3", []string{"lib/python3*/os.py", "lib64/python3*/os.py"}},
	{"node", []string{"include/node/node.h", "lib/node_modules/npm"}},
	{"ruby", []string{"lib/ruby"}},
	{"perl", []string{"lib/perl5", "lib/5.*"}},
	{"java", []string{"lib/modules", "jre/lib/rt.jar"}},
	{"go", []string{"src/runtime"}},
}

// standardPath is searched in each sandbox anyway.
var standardPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// Find finds the interpreters of a PATH and the directories outside /usr that they need: the prefix
// of an installation, or a virtual environment and the prefix of its interpreter. Find also takes
// the directories of /opt that PATH points into, and notes other programs of PATH that are not shown.
//
// Find runs no program, so it does not follow a shim that chooses an interpreter (pyenv, asdf). It
// takes a directory where a sandbox never writes, such as /root, only if one of the binds shows the
// directory at its own path. It never takes a home directory, or a directory that holds many other
// things. home is the home directory of the caller. Find does not look for programs that absences
// has, and adds those that it misses. absences can be nil. If too many files are open, Find returns an error:
// it cannot tell then which programs there are.
func Find(pathList, home string, binds []Bind, absences *Absences) (Found, error) {
	f := finder{home: home, binds: binds}
	dirs := openDirs(pathList, absences, &f.short)
	for _, dir := range dirs {
		defer dir.close(absences)
	}
	for _, l := range languages {
		for _, dir := range dirs {
			if dir.hasProgram(l.name) && f.addLanguage(l, dir) {
				if !hostpaths.Within(dir.path, "/usr") {
					f.taken = append(f.taken, l.name)
				}
				break
			}
		}
	}
	for _, dir := range dirs { // also a missing one: a bind can show it later
		f.takePath(dir)
	}
	if f.short.err != nil {
		return Found{}, f.short.err
	}
	return f.found, nil
}

func isDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

type finder struct {
	home  string
	homes []string // of all users; nil until needed
	binds []Bind
	taken []string // names of the languages outside /usr that are shown
	found Found
	short shortage
}

// addLanguage adds the directories that the interpreter in a directory of PATH needs, or notes the reason why not.
func (f *finder) addLanguage(l language, dir *pathDir) bool {
	exe := filepath.Join(dir.path, l.name)
	bin, needs, err := f.needs(l, dir)
	if err != nil && dir.programs() != dir.path {
		return false // takePath notes it
	}
	if err != nil {
		f.addNote(exe, err.Error())
		return false
	}
	for _, p := range needs {
		if !f.visible(p) {
			f.found.Prefixes = append(f.found.Prefixes, p)
		}
	}
	if !slices.Contains(standardPath, bin) && !slices.Contains(f.found.Path, bin) {
		f.found.Path = append(f.found.Path, bin)
	}
	return true
}

// addNote says why a program or a directory of PATH is not shown, or how to show it.
func (f *finder) addNote(path, why string) {
	f.found.Notes = append(f.found.Notes, fmt.Sprintf("%s is not shown in the sandbox: %s", path, why))
}

// needs returns the prefixes of an interpreter in a directory of PATH, and the directory of PATH that finds the
// interpreter.
func (f *finder) needs(l language, dir *pathDir) (bin string, prefixes []string, err error) {
	resolved, err := dir.resolve(l.name)
	if err != nil {
		return "", nil, err
	}
	bin = dir.path
	prefix := filepath.Dir(filepath.Dir(resolved))
	if !f.visible(resolved) {
		if filepath.Base(filepath.Dir(resolved)) != "bin" {
			return "", nil, fmt.Errorf("%s lies in no bin directory, so the files that it needs are not known; name their directory with --bind DIR:DIR", resolved)
		}
		if err := f.takeable(prefix, l.landmarks); err != nil {
			return "", nil, err
		}
		prefixes = append(prefixes, prefix)
	}
	if f.visible(filepath.Join(bin, l.name)) {
		return bin, prefixes, nil
	}
	given := filepath.Dir(bin) // as PATH has it
	base, ok := f.venvBase(given)
	if !ok || filepath.Base(bin) != "bin" {
		return filepath.Join(prefix, "bin"), prefixes, nil
	}
	if err := f.takeable(given, []string{"pyvenv.cfg"}); err != nil {
		return "", nil, err
	}
	if base != prefix && !f.visible(base) {
		if err := f.takeable(base, l.landmarks); err != nil {
			return "", nil, err
		}
		prefixes = append(prefixes, base)
	}
	return bin, append(prefixes, given), nil
}

// venvBase is the prefix of the interpreter that has made a virtual environment.
func (f *finder) venvBase(prefix string) (string, bool) {
	for line := range strings.Lines(f.short.smallFile(filepath.Join(prefix, "pyvenv.cfg"))) {
		key, value, _ := strings.Cut(line, "=")
		if bin := strings.TrimSpace(value); strings.TrimSpace(key) == "home" && filepath.IsAbs(bin) {
			return filepath.Dir(filepath.Clean(bin)), true
		}
	}
	return "", false
}

// visible says whether the sandbox already shows a path of the host at the same path.
func (f *finder) visible(p string) bool {
	within := func(dir string) bool { return hostpaths.Within(p, dir) }
	ofTop := func(top string) bool { return within("/" + top) }
	return within("/usr") || f.isBound(p) ||
		slices.ContainsFunc(f.found.Prefixes, within) || slices.ContainsFunc(hostpaths.OwnTop, ofTop)
}

// isBound says whether a bind shows a path of the host at the same path.
func (f *finder) isBound(p string) bool {
	return slices.ContainsFunc(f.binds, func(b Bind) bool {
		return hostpaths.Within(p, b.Target) && filepath.Clean(b.Source) == b.Target
	})
}

// takeable returns the reason why a directory must not be shown as the prefix of a language; nil if
// it may be shown.
func (f *finder) takeable(p string, landmarks []string) error {
	if err := f.showable(p); err != nil {
		return err
	}
	for _, mark := range landmarks {
		found, err := descriptor.Glob(p, mark)
		if len(found) > 0 {
			return nil
		}
		f.short.noteError(p, err)
	}
	return fmt.Errorf("%s does not look like its prefix: it has no %s; name it with --bind %[1]s:%[1]s to show it", p, landmarks[0])
}

// showable returns the reason why a directory must not be shown to every sandbox; nil if it may be
// shown.
func (f *finder) showable(p string) error {
	name := fmt.Sprintf("name it with --bind %s:%[1]s to show it", p)
	resolved, err := filepath.EvalSymlinks(p)
	if err != nil {
		return err
	}
	for _, p := range []string{p, resolved} {
		switch {
		case strings.Count(p, "/") < 2 || filepath.Base(p) == ".local":
			return fmt.Errorf("its prefix %s holds more than a language; name the needed directory with --bind DIR:DIR", p)
		case f.holdsHome(p):
			return fmt.Errorf("its prefix %s is or holds a home directory; name the needed directory with --bind DIR:DIR", p)
		case hostpaths.NeverWritable(p) != "":
			return fmt.Errorf("its prefix %s lies in a part of the host that is not shown; %s", p, name)
		}
	}
	if st, err := os.Stat(p); err != nil || st.Mode()&0o005 != 0o005 {
		return fmt.Errorf("not every user of the host may read its prefix %s; %s", p, name)
	}
	return nil
}

// holdsHome says whether a home directory is p or lies below it.
func (f *finder) holdsHome(p string) bool {
	if f.homes == nil {
		var err error
		if f.homes, err = hostpaths.Homes(f.home); err != nil {
			f.short.err = cmp.Or(f.short.err, err)
			return true
		}
	}
	return filepath.Dir(p) == "/home" || slices.ContainsFunc(f.homes, func(h string) bool { return hostpaths.Within(h, p) })
}
