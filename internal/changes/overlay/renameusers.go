package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A rememberer is the parts of overlays that the kernel must not remember.
type rememberer struct {
	// dirs are the paths of the renamed directories in the sandbox.
	dirs []string
	// devices are the numbers of the overlays, as in /proc/PID/fdinfo.
	devices []string
}

// users names the processes of the sandbox for which the kernel remembers a renamed directory: a process has the
// directory, or a file below it, open, or watches files. The processes are paused.
func (all renamedPlaces) users(r record.Record, group *cgroups.Group) (names []string, err error) {
	var in rememberer
	for _, n := range all {
		var st unix.Stat_t
		if err := unix.Fstat(int(n.merged.Fd()), &st); err != nil {
			return nil, fmt.Errorf("stat %s: %w", n.Path, err)
		}
		in.devices = append(in.devices, fmt.Sprintf(" sdev:%x ", unix.Major(st.Dev)<<20|unix.Minor(st.Dev)))
		for _, d := range n.dirs {
			in.dirs = append(in.dirs, path.Join(n.Path, d.Path))
			for _, p := range r.Places() {
				if p.Same == n.Path {
					in.dirs = append(in.dirs, path.Join(p.Path, d.Path))
				}
			}
		}
	}
	return usersIn(group, "", in.usedBy)
}

// usedBy tells how a thread uses one of the directories. proc is the thread's directory of procfs.
func (in rememberer) usedBy(proc string) (string, error) {
	for _, link := range []string{"cwd", "root"} {
		if at, err := os.Readlink(proc + "/" + link); err == nil && in.remembers(at) {
			return "is in " + streams.Visible(at), nil
		}
	}
	for _, pattern := range []string{"exe", "fd/*", "map_files/*"} {
		files, err := descriptor.Glob(proc, pattern)
		if err != nil {
			return "", err
		}
		for _, file := range files {
			if at, err := os.Readlink(file); err == nil && in.remembers(at) {
				return "has " + streams.Visible(at) + " open", nil
			}
		}
	}
	infos, err := descriptor.Glob(proc, "fdinfo/*")
	if err != nil {
		return "", err
	}
	for _, info := range infos {
		text, err := os.ReadFile(info)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) { // else the process has just ended
			return "", err
		}
		if slices.ContainsFunc(in.devices, func(d string) bool { return strings.Contains(string(text), d) }) {
			return "watches files there", nil
		}
	}
	return "", nil
}

func (in rememberer) remembers(at string) bool {
	return slices.ContainsFunc(in.dirs, func(dir string) bool { return at == dir || strings.HasPrefix(at, dir+"/") })
}
