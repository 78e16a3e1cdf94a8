package languages

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// optional is the directory of programs that have a directory of their own.
const optional = "/opt"

// toolNames are the programs that a note names if they are on the caller's PATH and not shown.
var toolNames = []string{
	"bun", "bundle", "cargo", "deno", "gem", "go", "gradle", "groovy", "java", "javac", "kotlinc", "mvn", "node", "npm", "npx", "pip",
	"pip3", "pnpm", "python", "python3", "ruby", "rustc", "sbt", "scala", "yarn",
}

// takePath adds a directory of PATH outside /usr: a bind shows it, or it lies below a directory
// of /opt. The programs of other directories are noted.
func (f *finder) takePath(dir *pathDir) {
	programs := dir.programs()
	switch {
	case hostpaths.Within(programs, "/usr") || slices.Contains(standardPath, programs) || slices.Contains(f.found.Path, programs):
	case f.isBound(programs):
		f.found.Path = append(f.found.Path, programs)
	case !dir.exists():
	case hostpaths.Within(dir.path, optional) && dir.path != optional:
		f.takeOptional(dir.path)
	default:
		f.noteTools(dir, programs)
	}
}

// takeOptional shows the directory of /opt that a directory of PATH lies in.
func (f *finder) takeOptional(dir string) {
	name, _, _ := strings.Cut(dir[len(optional)+1:], "/")
	top := filepath.Join(optional, name)
	if !slices.Contains(f.found.Prefixes, top) {
		if err := f.showable(top); err != nil {
			f.addNote(dir, err.Error())
			return
		}
		f.found.Prefixes = append(f.found.Prefixes, top)
	}
	f.found.Path = append(f.found.Path, dir)
}

// noteTools notes the programs of a directory that is not shown, with the bind that shows them.
func (f *finder) noteTools(dir *pathDir, programs string) {
	prefix := programs
	if filepath.Base(programs) == "bin" {
		prefix = filepath.Dir(programs)
	}
	for _, name := range toolNames {
		exe := filepath.Join(dir.path, name)
		noted := func(note string) bool { return strings.HasPrefix(note, exe+" ") }
		if !slices.Contains(f.taken, name) && dir.hasProgram(name) && !slices.ContainsFunc(f.found.Notes, noted) {
			f.addNote(exe, fmt.Sprintf("bring it with --bind %s:%[1]s", prefix))
		}
	}
}

// programs returns the directory of the programs that the directory of PATH runs. The programs of
// rustup, and shims as those of pyenv, choose a toolchain when they run. For these it returns the
// directory of the default toolchain.
func (d *pathDir) programs() string {
	if d.runs == "" {
		d.runs = d.findPrograms()
	}
	return d.runs
}

func (d *pathDir) findPrograms() string {
	above := filepath.Dir(d.path)
	rustup := filepath.Join(filepath.Dir(above), ".rustup")
	programs := d.path
	switch {
	case filepath.Base(d.path) == "shims":
		version, _, _ := strings.Cut(d.firstLine(above+"/version", ""), ":")
		programs = filepath.Join(above, "versions", version, "bin")
	case filepath.Base(d.path) == "bin" && d.hasProgram("rustup"):
		version := strings.Trim(d.firstLine(rustup+"/settings.toml", "default_toolchain = "), `"`)
		programs = filepath.Join(rustup, "toolchains", version, "bin")
	}
	if programs != d.path && !isDir(programs) {
		return d.path
	}
	return programs
}

// firstLine returns the rest of the first line that has the prefix and names one directory. It is
// empty if the file has no such line.
func (d *pathDir) firstLine(name, prefix string) string {
	for line := range strings.Lines(d.short.smallFile(name)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok && !strings.Contains(rest, "/") && rest != ".." {
			return rest
		}
	}
	return ""
}
