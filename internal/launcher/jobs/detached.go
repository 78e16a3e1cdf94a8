package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A detached exec goes on when the process that asked for it has ended. The sandbox has a
// directory execs/ID for the exec. This directory has exec.json and the files stdout and stderr,
// to which the agent's drainer writes the output. The directory, the leaf and the exit status in
// the agent stay until a client has the result of the exec.

// A detachedExec is the state of a detached exec, nil for others.
type detachedExec struct {
	Dir            string
	stdout, stderr *os.File
	limit          int64 // of each stream, in bytes
	// ring says that the files have head and tail. Those of an older agent have the head.
	ring bool
	// result is the open file resultName.
	result *os.File
}

// execRecord is exec.json.
type execRecord struct {
	// Version is 0 for a command that an earlier release has started.
	Version int       `json:"version"`
	Args    []string  `json:"args"`
	Started time.Time `json:"started"`
	// Boot is the time from the host's boot to the start: someone may set the clock meanwhile.
	Boot   time.Duration `json:"started_since_boot_ns"`
	Limits spec.Limits   `json:"limits"`
	// Timeout of the command; 0: none.
	Timeout time.Duration `json:"timeout_ns"`
	// Grace between SIGTERM and SIGKILL after the timeout.
	Grace spec.Grace `json:"grace,omitzero"`
	// OutputLimit is how many bytes of each stream are kept.
	OutputLimit int64 `json:"output_limit"`
	// Ring says that the files with the output are a streams.LogFile with Ring.
	Ring bool `json:"ring,omitempty"`
	// Traffic is the sandbox's before the start: see trafficOf.
	Traffic *spec.Traffic `json:"traffic,omitempty"`
}

// execVersion changes when an older launcher could misunderstand exec.json.
const execVersion = 1

const (
	// ExecRecordName is the file that describes a detached exec.
	ExecRecordName = "exec.json"
	// timedOutName is a file that says that the timeout has ended the exec.
	timedOutName = "timed_out"
)

// execsName is the directory of detached execs in the directory of a sandbox.
const execsName = "execs"

// ExecsDir is the directory of the sandbox's detached execs.
func (v *Session) ExecsDir() string { return filepath.Join(v.Path(), execsName) }

func (v *Session) execDir(e ExecID) string { return filepath.Join(v.ExecsDir(), e.String()) }

// isDetached says whether an exec is detached. Its record is made last and removed first: if
// it is there, the other files are there, too.
func (v *Session) isDetached(e ExecID) bool {
	return statedir.Exists(filepath.Join(v.execDir(e), ExecRecordName))
}

// Detach makes the state of an exec that is about to be started.
func (p *Process) Detach(ctx context.Context, c spec.Command, request *agent.Command) error {
	c.OutputLimit = cmp.Or(c.OutputLimit, spec.OutputLimit)
	p.Live.sweepSometimes()
	p.Live.Output.Mu.Lock()
	defer p.Live.Output.Mu.Unlock()
	if err := p.Live.roomForOutput(ctx, c.OutputLimit); err != nil {
		return err
	}
	p.Live.starting.Store(p.Exec, nil)
	p.Kept = &detachedExec{Dir: p.Live.execDir(p.Exec), limit: c.OutputLimit, ring: p.Conn.KeepsTail()}
	if err := p.Kept.makeDir(); err != nil {
		return err
	}
	if err := p.Kept.open(os.O_RDWR | os.O_CREATE | os.O_EXCL); err != nil {
		return err
	}
	grace := cmp.Or(spec.Grace(p.farewell.grace), spec.NoGrace)
	boot, err := process.SinceBoot()
	if err == nil {
		err = execRecord{
			Version: execVersion, Args: p.Args, Started: p.StartedAt.UTC(), Boot: boot - time.Since(p.StartedAt), Limits: p.limits,
			Timeout: p.Timeout, Grace: grace, OutputLimit: c.OutputLimit, Ring: p.Kept.ring, Traffic: p.before,
		}.write(p.Kept.Dir)
	}
	if err != nil {
		return err
	}
	request.Detach = &agent.Detachment{ID: p.Exec.agent(), Stdout: p.Kept.stdout, Stderr: p.Kept.stderr, Limit: c.OutputLimit}
	return nil
}

func (r execRecord) write(dir string) error {
	return statedir.ReplaceJSON(filepath.Join(dir, ExecRecordName), r)
}

func readExecRecord(dir string) (r execRecord, err error) {
	path := filepath.Join(dir, ExecRecordName)
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	err = statedir.Decode(data, execVersion, &r)
	if errors.Is(err, statedir.ErrRelease) {
		return execRecord{}, fmt.Errorf("%s: %w, which has to attach to the command", path, err)
	}
	if err != nil {
		return r, fmt.Errorf("read %s: %w", path, err)
	}
	now, err := process.SinceBoot()
	if err != nil {
		return r, err
	}
	r.Started = time.Now().Add(r.Boot - now)
	return r, nil
}

// makeDir makes the directory of the exec, but never the directory of the sandbox: a sandbox that
// was removed meanwhile would seem to exist again.
func (d *detachedExec) makeDir() error {
	if err := os.Mkdir(filepath.Dir(d.Dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Mkdir(d.Dir, 0o700)
}

// open opens the files with the output, and the file for the Result.
func (d *detachedExec) open(flags int) (err error) {
	if d.stdout, err = openOutput(filepath.Join(d.Dir, "stdout"), flags); err != nil {
		return err
	}
	if d.stderr, err = openOutput(filepath.Join(d.Dir, "stderr"), flags); err != nil {
		return err
	}
	d.result, err = openOutput(filepath.Join(d.Dir, resultName), unix.O_RDWR|unix.O_CREAT)
	return err
}

// openOutput opens a file with output. It refuses a link, a pipe or a device that is in the place of
// the file.
func openOutput(name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errNoFile}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

var errNoFile = errors.New("it is not a regular file; remove the sandbox with down")

// reopen opens the files again for reading only, so that only the agent can write. Otherwise a
// reader of the output, such as a client of the launcher, could fill the host's memory.
func (d *detachedExec) reopen() error {
	if err := d.close(); err != nil {
		return err
	}
	return d.open(os.O_RDONLY)
}

// close closes the files. It also ends the lock.
func (d *detachedExec) close() error {
	if d == nil {
		return nil
	}
	var errs []error
	for _, f := range []*os.File{d.stdout, d.stderr, d.result} {
		if f == nil {
			continue
		}
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// log is a file with output, open.
func (d *detachedExec) log(f *os.File) streams.LogFile { return streams.LogFile{File: f, Ring: d.ring} }

// omission says whether output is missing, and how many bytes. An older agent has kept the head only,
// and has not counted the rest: a full file has probably not all.
func (d *detachedExec) omission(f *os.File) (truncated bool, omitted int64, err error) {
	if !d.ring {
		info, err := f.Stat()
		return err == nil && info.Size() >= d.limit, 0, err
	}
	omitted, err = d.log(f).Omitted()
	return omitted > 0, omitted, err
}

func (d *detachedExec) remove() error {
	if d == nil {
		return nil
	}
	return errors.Join(erase.IgnoreMissing(os.Remove(filepath.Join(d.Dir, ExecRecordName))), d.truncate(), statedir.RemoveAll(d.Dir))
}

func (d *detachedExec) path(name string) string { return filepath.Join(d.Dir, name) }

func (d *detachedExec) timedOut() bool { return statedir.Exists(filepath.Join(d.Dir, timedOutName)) }
