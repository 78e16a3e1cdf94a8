// Package hostpaths has rules about paths of the host: the directories of programs, the directories
// where no sandbox writes, and homes with the secrets in them. It decides which paths a sandbox may show.
package hostpaths

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// OwnTop are the host's directories that make up its own root beside /usr:
// symbolic links into it on most systems, directories on others.
var OwnTop = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// LauncherSocket is the socket of the host's launcher for all users.
const LauncherSocket = "/run/sandbox-runtime.sock"

// Within says whether the clean path p is dir or lies below it.
func Within(p, dir string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}

// neverWritable are the top-level directories that no sandbox writes to, with
// all below them; /lib stands for every name that starts with it.
var neverWritable = []string{
	"/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var",
}

// NeverWritable names the rule that forbids writes to the clean path p. It is empty if no
// rule forbids them.
func NeverWritable(p string) string {
	if Within(p, "/var/tmp") {
		return ""
	}
	top, _, _ := strings.Cut(p[1:], "/")
	if top == "root" {
		return fmt.Sprintf("lies under /root, which is never writable in a sandbox; use --overlay %s, where writes go to a layer, or a directory elsewhere, such as under /home, /srv, /var/tmp or /tmp", p)
	}
	if strings.HasPrefix(top, "lib") || slices.Contains(neverWritable, "/"+top) {
		return fmt.Sprintf("lies under /%s, which is never writable in a sandbox; use a directory elsewhere, such as under /home, /srv or /tmp", top)
	}
	return ""
}

// Homes returns the home directories of the host's users, and the caller's. A host without /etc/passwd has users of
// another kind. After another error the homes are not known.
func Homes(own string) ([]string, error) {
	var all []string
	if filepath.IsAbs(own) {
		all = append(all, filepath.Clean(own))
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("home directories of the host: %w", err)
	}
	for line := range strings.Lines(string(passwd)) {
		field := strings.Split(line, ":")
		if len(field) > 5 && filepath.IsAbs(field[5]) && !slices.Contains(all, filepath.Clean(field[5])) {
			all = append(all, filepath.Clean(field[5]))
		}
	}
	return all, nil
}
