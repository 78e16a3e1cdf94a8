package compile

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// probe is one thing tried, and how each profile answers it.
type probe struct {
	name                   string
	def, strict, debugging unix.Errno
	try                    func(dir string) error
}

const works = unix.Errno(0)

func refused(name string, try func(dir string) error) probe {
	return probe{name, unix.EPERM, unix.EPERM, unix.EPERM, try}
}

func absent(name string, try func(dir string) error) probe {
	return probe{name, unix.ENOSYS, unix.ENOSYS, unix.ENOSYS, try}
}

func debugOnly(name string, try func(dir string) error) probe {
	return probe{name, unix.EPERM, unix.EPERM, works, try}
}

func allowed(name string, try func(dir string) error) probe {
	return probe{name, works, works, works, try}
}

func notStrict(name string, try func(dir string) error) probe {
	return probe{name, works, unix.EPERM, works, try}
}

func (p probe) wanted(profile string) unix.Errno {
	return map[string]unix.Errno{"default": p.def, "strict": p.strict, "debug": p.debugging}[profile]
}

func allProbes() []probe {
	var all []probe
	for _, group := range [][]probe{
		processProbes(), namespaceProbes(), kernelProbes(), socketProbes(), terminalProbes(), fileProbes(), quotaProbes(), archProbes(),
	} {
		all = append(all, group...)
	}
	return all
}

// TestProfilesAnswer tries every probe under every profile and without one, so
// that an answer is known to be the filter's: it is not the machine's own.
func TestProfilesAnswer(t *testing.T) {
	bare := runProbes(t, noProfile)
	for _, profile := range profiles() {
		t.Run(profile, func(t *testing.T) {
			answers := runProbes(t, profile)
			for _, p := range allProbes() {
				t.Run(p.name, func(t *testing.T) {
					have, want, without := answers[p.name], p.wanted(profile), bare[p.name]
					switch {
					case want == works && have != without:
						t.Errorf("answered with %v, without a filter with %v", have, without)
					case want == works && without == unix.EPERM:
						t.Skip("this machine answers EPERM without a filter too")
					case want != works && have != want:
						t.Errorf("answered with %v, want %v", have, want)
					case want != works && without == want:
						t.Skipf("this machine answers %v without a filter too", want)
					}
				})
			}
		})
	}
}

// runProbes tries all in a child under the profile, and sees that it left
// set-id files only if it had no filter.
func runProbes(t *testing.T, profile string) map[string]unix.Errno {
	t.Helper()
	dir := t.TempDir()
	cmd := child(t, "probe", profile, dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("child under %s: %v: %s", profile, err, stderr.Bytes())
	}
	answers := map[string]unix.Errno{}
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	if planted := setIDFiles(t, dir); (len(planted) == 0) == (profile == noProfile) {
		t.Errorf("set-id files left under %s: %q", profile, planted)
	}
	return answers
}

func setIDFiles(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// call makes a system call as it stands, with no wrapper to refuse it first.
func call(number uintptr, args ...uintptr) error {
	_, err := callResult(number, args...)
	return err
}

func callResult(number uintptr, args ...uintptr) (int, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// closing is for calls that give a descriptor.
func closing(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// errnoOnly is for what wraps the error number in other errors.
func errnoOnly(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
