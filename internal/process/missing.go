package process

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A Call is an execution of a program.
type Call struct {
	Name string // the program, as execvpe(3) takes it
	Dir  string // the working directory
	Path string // the value of PATH
}

// A MissingFile is the reason for which a program that exists cannot be executed.
type MissingFile struct {
	// File is the missing file, a path in the root.
	File string
	// reason is a clause about the file.
	reason string
	// advice is a way out, if there is one without the missing file.
	advice string
}

// Reason says in one clause which file is missing. where names the root, such as "in the sandbox".
func (m MissingFile) Reason(where string) string {
	text := m.reason + " is not found " + where
	if m.advice != "" {
		text += "; " + m.advice
	}
	return text
}

// FindMissing finds the file for which the execution of a program in a root has ended with ENOENT. It returns false
// if the program itself is missing, or if the reason is not known.
func FindMissing(root *os.File, call Call) (MissingFile, bool) {
	for _, file := range call.candidates() {
		s := search{root: root, dir: call.Dir}
		if m, found := s.program(file, 0); found {
			return m, true
		}
		if s.exists {
			return MissingFile{}, false
		}
	}
	return MissingFile{}, false
}

// FormatHint says why the execution of a program in a root has ended with ENOEXEC. It is empty if the reason is not known.
func FormatHint(root *os.File, call Call) string {
	for _, file := range call.candidates() {
		s := search{root: root, dir: call.Dir}
		f, _, err := s.follow(file)
		if err != nil {
			continue
		}
		defer f.Close()
		head, err := readHead(f)
		switch {
		case err != nil:
			return ""
		case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
			return "the program is for another kind of machine, or is damaged"
		case bytes.HasPrefix(head, []byte("#!")):
			return "its first line names no interpreter"
		}
		return "the file does not begin with #! and an interpreter; run it with its interpreter, for example: sh " + printable(file)
	}
	return ""
}

// mostCandidates bounds the directories of a PATH.
const mostCandidates = 100

// candidates are the paths that the kernel is asked for.
func (c Call) candidates() []string {
	if c.Name == "" {
		return nil
	}
	if strings.Contains(c.Name, "/") {
		return []string{c.Name}
	}
	var files []string
	for dir := range strings.SplitSeq(c.Path, ":") {
		if len(files) == mostCandidates {
			break
		}
		if dir == "" {
			dir = "."
		}
		files = append(files, dir+"/"+c.Name)
	}
	return files
}

// A search is the search for the missing file of one program.
type search struct {
	root   *os.File
	dir    string
	exists bool // whether the program exists, also as a link
}

const (
	// mostInterpreters is how many interpreters the kernel goes along (fs/exec.c:exec_binprm).
	mostInterpreters = 5
	// mostLinks is how many links the kernel follows (include/linux/namei.h:MAXSYMLINKS).
	mostLinks = 40
	// shownBytes bounds a path of a message.
	shownBytes = 256
)

// program looks at one program, or at the interpreter of one.
func (s *search) program(file string, depth int) (MissingFile, bool) {
	f, last, err := s.follow(file)
	if f != nil || last != s.absolute(file) {
		s.exists = true
	}
	if isMissing(err) && s.exists {
		m := MissingFile{File: path.Clean(last)}
		if m.reason = "its interpreter " + printable(file); depth == 0 {
			m.reason = printable(file)
		}
		if last != s.absolute(file) {
			m.reason += " is a link to " + printable(m.File) + ", and the target"
		}
		return m, true
	}
	if err != nil {
		return MissingFile{}, false
	}
	defer f.Close()
	head, err := readHead(f)
	if err != nil {
		return MissingFile{}, false
	}
	if interpreter, ok := scriptInterpreter(head); ok && depth < mostInterpreters {
		return s.interpreter(file, interpreter, depth)
	}
	return s.loader(f, file, depth)
}

// interpreter looks at the interpreter of a script.
func (s *search) interpreter(script, name string, depth int) (MissingFile, bool) {
	m, found := s.program(name, depth+1)
	if found && strings.HasSuffix(name, "\r") {
		m.reason = fmt.Sprintf("the first line of %s ends with a carriage return, and its interpreter %q", printable(script), name)
		m.advice = `remove the carriage returns, for example with: sed -i 's/\r$//' ` + printable(script)
		m.File = ""
	}
	return m, found
}

// loader looks at the loader of an ELF program.
func (s *search) loader(f *os.File, file string, depth int) (MissingFile, bool) {
	name := elfLoader(f)
	if name == "" {
		return MissingFile{}, false
	}
	loader, last, err := s.follow(name)
	descriptor.Close(loader)
	if !isMissing(err) {
		return MissingFile{}, false
	}
	m := MissingFile{File: path.Clean(last), advice: "build the program for this system, or link it statically"}
	m.reason = "its loader " + printable(name)
	if depth > 0 {
		m.reason = "the loader " + printable(name) + " of its interpreter " + printable(file)
	}
	return m, true
}

func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// inside follows links within the root, also those that lead through mounts. It follows no link of the kernel's.
const inside = descriptor.NoMagicLinks | unix.RESOLVE_IN_ROOT

// follow opens a path of the root for [readHead]. last is the path behind all links of the last part of the
// path, also of a file that is missing.
func (s *search) follow(name string) (f *os.File, last string, err error) {
	last = s.absolute(name)
	for range mostLinks {
		fd, err := descriptor.OpenIn(s.root, last, inside, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return nil, last, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return os.NewFile(uintptr(fd), last), last, err
		}
		target, err := descriptor.ReadLink(fd, "")
		descriptor.CloseFD(fd)
		if err != nil {
			return nil, last, err
		}
		if path.IsAbs(target) {
			last = target
		} else {
			last = path.Dir(last) + "/" + target
		}
	}
	return nil, last, unix.ELOOP
}

// absolute takes a path from the working directory on. It keeps "..", since a link can be before it.
func (s *search) absolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return s.dir + "/" + name
}

// headSize is the part of a file that the kernel reads (include/uapi/linux/binfmts.h:BINPRM_BUF_SIZE).
const headSize = 256

// readHead reads the beginning of a regular file. The descriptor of the file was opened with O_PATH, so nothing has
// happened to a device or a pipe.
func readHead(f *os.File) ([]byte, error) {
	var st unix.Stat_t
	err := descriptor.Use(f, func(fd int) error { return unix.Fstat(fd, &st) })
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(err, unix.ENOEXEC)
	}
	content, err := reopen(f)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(io.LimitReader(content, headSize))
}

// reopen opens a regular file for reading. O_NONBLOCK does not wait for the holder of a lease.
func reopen(f *os.File) (content *os.File, err error) {
	err = descriptor.Use(f, func(fd int) error {
		number, err := descriptor.Open(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), 0, unix.O_RDONLY|unix.O_NONBLOCK)
		if err == nil {
			content = os.NewFile(uintptr(number), f.Name())
		}
		return err
	})
	return content, err
}

// scriptInterpreter is the path after "#!" (fs/binfmt_script.c:load_script).
func scriptInterpreter(head []byte) (string, bool) {
	line, ok := strings.CutPrefix(string(head), "#!")
	if !ok {
		return "", false
	}
	line, _, _ = strings.Cut(line, "\n")
	line = strings.TrimLeft(line, " \t")
	if end := strings.IndexAny(line, " \t\x00"); end >= 0 {
		line = line[:end]
	}
	return line, line != ""
}

// printable is a path for a message. A file can have any bytes in its name.
func printable(name string) string {
	if len(name) > shownBytes {
		name = name[:shownBytes] + "…"
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f || r == '\uFFFD' || r == '"' {
			return fmt.Sprintf("%q", name)
		}
	}
	return name
}
