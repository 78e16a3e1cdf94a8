package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A Filter is the argument of seccomp(2) with SECCOMP_SET_MODE_FILTER.
type Filter struct {
	// Flags are the SECCOMP_FILTER_FLAG_ bits.
	Flags uint32
	// Program is an array of struct sock_filter in the machine's byte order.
	Program []byte
}

// ErrNoTrace says that this process may not trace its own child, so that no
// filter can be taken from one. A spec with the profile still loads it.
var ErrNoTrace = errors.New("a process may not be traced here")

// compileTime bounds one compilation. Docker's profile takes 30 ms of
// processor; a large one of a user's, seconds.
const compileTime = 60 * time.Second

// Marks of the child that compiles, as "init" and _LIBCONTAINER_INITPIPE are of
// the one that libcontainer starts.
const (
	compileArgument = "seccomp-filter"
	compileVariable = "_SANDBOX_RUNTIME_SECCOMP"
)

// CompileSeccomp returns the filter that libcontainer would load for profile in a
// container, byte for byte: libcontainer makes it, in a child process, and CompileSeccomp
// takes it at the system call. For a profile of several architectures libcontainer puts
// their parts into an order that differs from time to time, and any one of them is
// returned.
//
// The child is stopped at the entry of the system call: its arguments have the flags,
// which PTRACE_SECCOMP_GET_FILTER leaves out. Nothing has to be loaded for that, so it
// needs no privilege. Nothing of the child is left, also after an error. [ErrNoTrace] is
// one of them.
func CompileSeccomp(ctx context.Context, profile *specs.LinuxSeccomp) (Filter, error) {
	if !seccomp.Enabled { // an embedder's
		return Filter{}, errors.New("this program was built without seccomp: build it with libseccomp, cgo and -tags 'seccomp netgo osusergo'")
	}
	config, err := specconv.SetupSeccomp(profile)
	if err != nil {
		return Filter{}, fmt.Errorf("compile seccomp profile: %w", err)
	}
	if config == nil {
		return Filter{}, errors.New("compile seccomp profile: there is none")
	}
	ctx, cancel := context.WithTimeout(ctx, compileTime)
	defer cancel()
	f, err := compileInChild(ctx, config)
	if err != nil && ctx.Err() != nil { // why the child was gone
		err = ctx.Err()
	}
	if err != nil {
		return Filter{}, fmt.Errorf("compile seccomp profile: %w", err)
	}
	return f, nil
}

// SeccompInputs returns everything that decides about the filter of profile, as text that
// is equal if the filter is.
func SeccompInputs(profile *specs.LinuxSeccomp) ([]byte, error) {
	if profile == nil {
		return nil, errors.New("no seccomp profile")
	}
	return json.Marshal(struct {
		Profile *specs.LinuxSeccomp
		// Not set is another thing than none, and the same in the profile's JSON.
		FlagsSet bool
		// The abilities of libseccomp and the kernel together, which decide about the
		// flags.
		SupportedFlags                         []string
		Libseccomp, Libcontainer, Architecture string
	}{
		profile, profile.Flags != nil, seccomp.SupportedFlags(),
		LibseccompVersion(), libcontainerVersion(), runtime.GOARCH,
	})
}

// libcontainerVersion is empty in a program that was built without modules.
func libcontainerVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/opencontainers/runc" {
			return m.Version + " " + m.Sum
		}
	}
	return ""
}

// loadOwnFilter is the child's life: it reads the configuration from stdin and
// lets libcontainer load its filter into this process, which does nothing more.
// It runs in an init function, so on the main thread, which is traced.
func loadOwnFilter() {
	var config configs.Seccomp
	err := json.NewDecoder(os.Stdin).Decode(&config)
	if err == nil {
		_, err = seccomp.InitSeccomp(&config)
	}
	if err == nil { // the tracer ends it before this
		err = errors.New("nobody took the filter")
	}
	fmt.Print(err)
	os.Exit(1)
}

func compileInChild(ctx context.Context, config *configs.Seccomp) (Filter, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return Filter{}, err
	}
	input, err := memoryFile("seccomp-profile", text)
	if err != nil {
		return Filter{}, err
	}
	defer input.Close()
	output, err := memoryFile("seccomp-errors", nil)
	if err != nil {
		return Filter{}, err
	}
	defer output.Close()

	// The kernel's tracer is a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t, err := startTracee(input, output)
	if err != nil {
		return Filter{}, err
	}
	defer t.end()
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { t.kill(); close(killed) })
	defer func() {
		if !stop() {
			<-killed
		}
	}()
	f, err := t.filter()
	if errors.Is(err, errEnded) && ctx.Err() != nil {
		return Filter{}, ctx.Err()
	}
	if errors.Is(err, errEnded) {
		return Filter{}, errors.Join(errEnded, childError(output))
	}
	return f, err
}

// childError is the message that a child left, as an error.
func childError(output *os.File) error {
	text, err := io.ReadAll(io.NewSectionReader(output, 0, 4096))
	if err != nil {
		return err
	}
	return errors.New(strings.TrimSpace(string(text)))
}

func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
