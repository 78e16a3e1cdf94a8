package languages

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// Bringing returns the directories of the host that a sandbox needs in order to run an interpreter or a loader that it
// lacks, each at its own path: those of the installation, and of a virtual environment that refers to the installation.
// It returns nothing if the host lacks the file, too, or if a sandbox always shows such a path. home is the home directory of
// the caller, and the caller must be allowed to look at the path. A script in the sandbox can have chosen the path: the
// directories hold no secret of a user, and a file that is no program brings none.
func Bringing(path, home string) []string {
	path = filepath.Clean(path)
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil || !isProgram(resolved) {
		return nil
	}
	f := finder{home: home}
	var dirs []string
	for _, file := range []string{path, resolved} {
		dir := f.around(file)
		if dir == "" || slices.Contains(dirs, dir) {
			continue
		}
		if f.nearSecret(dir) {
			return nil
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// isProgram says that the kernel can execute a file, as an interpreter or a loader, too.
func isProgram(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// nearSecret says whether a path is or holds a home directory or a secret of a user, or lies in a secret.
func (f *finder) nearSecret(p string) bool {
	resolved, err := filepath.EvalSymlinks(p)
	if err != nil || f.holdsHome(p) || f.holdsHome(resolved) {
		return true
	}
	for _, home := range f.homes {
		for _, name := range hostpaths.Secrets() {
			secret := filepath.Join(home, name)
			if hostpaths.Within(resolved, secret) || hostpaths.Within(secret, resolved) {
				return true
			}
		}
	}
	return false
}

// around is the directory of the installation with a program; the program itself if the directory holds more.
func (f *finder) around(file string) string {
	if f.visible(file) {
		return ""
	}
	prefix := filepath.Dir(file)
	if filepath.Base(prefix) == "bin" {
		prefix = filepath.Dir(prefix)
	}
	if filepath.Dir(prefix) == "/" || filepath.Base(prefix) == ".local" || f.nearSecret(prefix) || hostpaths.Within("/usr", prefix) {
		return file
	}
	return prefix
}
