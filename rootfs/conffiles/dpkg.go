package conffiles

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// dpkgFiles are the files of a text of [DpkgDatabase]. The root has the files of the packages.
func dpkgFiles(status []byte, root string) (files []File) {
	field := []byte("\nConffiles:\n")
	for {
		at := bytes.Index(status, field)
		if at < 0 {
			return files
		}
		start := bytes.LastIndex(status[:at], []byte("\n\n")) + 1
		lines := status[at+len(field):]
		p := paragraph{head: status[start:at]}
		if own := p.conffiles(lines); len(own) > 0 && p.installed() && p.hasProgram(root) {
			files = append(files, own...)
		}
		status = lines
	}
}

// A paragraph is the fields of a package in the status of dpkg, up to its configuration files:
// deb-control(5).
type paragraph struct{ head []byte }

func (p paragraph) field(name string) string {
	for line := range bytes.Lines(p.head) {
		if value, ok := bytes.CutPrefix(line, []byte(name+": ")); ok {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// installed says whether all files of the package are there. A package that was removed keeps
// its configuration files: dpkg(1), "PACKAGE STATES".
func (p paragraph) installed() bool {
	state := strings.Fields(p.field("Status"))
	return len(state) == 3 && slices.Contains([]string{"installed", "triggers-awaited", "triggers-pending"}, state[2])
}

// conffiles are the files of the lines " PATH SUM" below /etc that a sandbox may see. A line with
// a third word is of a file that the package no longer has, and a new file has no sum.
func (p paragraph) conffiles(lines []byte) (files []File) {
	for line := range bytes.Lines(lines) {
		if line[0] != ' ' {
			return files
		}
		words := strings.Fields(string(line))
		if len(words) != 2 || len(words[1]) != 32 {
			continue
		}
		name, ok := strings.CutPrefix(words[0], "/etc/")
		if ok && path.Clean(words[0]) == words[0] && Never(name) == "" {
			files = append(files, File{Name: name, Sum: words[1]})
		}
	}
	return files
}

// hasProgram says whether the package has a file that a sandbox shows and that is a program, or
// code or data of programs. Packages that only configure a host have no such file.
func (p paragraph) hasProgram(root string) bool {
	name := p.field("Package")
	if name == "" || strings.Contains(name, "/") {
		return false
	}
	list, err := readList(root, name)
	if err != nil && p.field("Multi-Arch") == "same" {
		list, err = readList(root, name+":"+p.field("Architecture"))
	}
	if err != nil {
		return false
	}
	for line := range bytes.Lines(list) {
		file := string(bytes.TrimSuffix(line, []byte("\n")))
		if ofProgram(file) && present(root+file) {
			return true
		}
	}
	return false
}

// present says whether a path leads to a file that is no directory.
func present(file string) bool {
	var st unix.Stat_t
	return unix.Lstat(file, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR
}

// readList reads the paths of a package.
func readList(root, name string) ([]byte, error) {
	f, err := descriptor.OpenFile(unix.AT_FDCWD, root+"/var/lib/dpkg/info/"+name+".list", descriptor.NoMagicLinks, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, 8<<10)
}

// ofProgram says whether a path is at a place for programs, or for their code or data.
func ofProgram(file string) bool {
	words := strings.Split(file, "/")
	if len(words) < 3 || words[0] != "" {
		return false
	}
	if words[1] == "usr" {
		words = words[1:]
	}
	switch top := words[1]; {
	case top == "bin", top == "sbin", top == "games", top == "libexec", strings.HasPrefix(top, "lib"):
		return len(words) > 2 && !slices.Contains(ofSystem, words[2])
	case top == "share" && len(words) > 3:
		return !slices.Contains(documents, words[2])
	}
	return false
}

// ofSystem are the directories of /usr/lib that configure the host's own system.
var ofSystem = []string{"modprobe.d", "modules-load.d", "sysctl.d", "systemd", "sysusers.d", "tmpfiles.d", "udev"}

// documents are the directories of /usr/share that programs do not need.
var documents = []string{
	"applications", "apport", "bash-completion", "bug", "common-licenses", "doc", "doc-base", "fish", "help", "icons", "info",
	"keyrings", "licenses", "lintian", "locale", "man", "menu", "metainfo", "pixmaps", "zsh",
}
