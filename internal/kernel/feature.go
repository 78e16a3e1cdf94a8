package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Feature is the name of something a host has or lacks. Names are stable.
type Feature string

// Need is the effect on sandboxes of a missing feature.
type Need string

const (
	// Required features are those without which no sandbox starts.
	Required Need = "required"
	// Isolating features are walls and limits: without one a sandbox starts
	// and is not fully isolated.
	Isolating Need = "isolating"
	// Useful features serve single commands and flags, or make something
	// faster or finer.
	Useful Need = "useful"
)

// Info has the facts of a feature that hold on any host.
type Info struct {
	Name  Feature
	Group string // the heading of its group in a list: "namespaces"
	Title string // its name in a sentence
	Since Version
	Need  Need
	Lost  string // the abilities that a host without it lacks
	Get   string // how to get it

	probe probe
}

// Features is the table of all features, in the order of their groups.
func Features() []Info { return slices.Clone(table) }

// Minimum is the oldest mainline kernel with everything that is required.
func Minimum() Version {
	var oldest Version
	for _, f := range table {
		if f.Need == Required && oldest.Before(f.Since) {
			oldest = f.Since
		}
	}
	return oldest
}

// ErrNotSupported matches each [*NotSupportedError].
var ErrNotSupported = errors.New("not supported")

// A NotSupportedError says that this host lacks a feature, or that the caller
// may not use it.
type NotSupportedError struct {
	Info
	Cause error  // the kernel's answer to the attempt
	Fix   string // how to get it on this host
}

// Error is a sentence for the user of a sandbox: the feature, the reason and the way out.
func (e *NotSupportedError) Error() string {
	return fmt.Sprintf("%s: not supported here (%v): %s", e.Title, e.Cause, e.Fix)
}

func (e *NotSupportedError) Unwrap() error { return e.Cause }

// Is makes errors.Is(err, ErrNotSupported) true.
func (e *NotSupportedError) Is(target error) bool { return target == ErrNotSupported }

// CheckRequired tries every feature without which no sandbox starts. It returns nil if all
// are there, else one error of one line that names all missing ones and the ways to get
// them, made of [*NotSupportedError]s. If the caller lacks the [Privilege], only that is
// named: other missing features follow from it.
func CheckRequired() error {
	p := newProber()
	var missing, unknown []error
	for _, info := range table {
		if info.Need != Required {
			continue
		}
		err := p.find(info).Err
		switch {
		case err == nil:
		case info.Name == Privilege:
			return err
		case errors.Is(err, ErrNotSupported):
			missing = append(missing, err)
		default:
			unknown = append(unknown, err)
		}
	}
	if len(missing) == 0 {
		missing = unknown
	}
	if len(missing) == 0 {
		return nil
	}
	return lineError(missing)
}

// A lineError is several errors on one line.
type lineError []error

func (e lineError) Error() string {
	var texts []string
	for _, err := range e {
		texts = append(texts, strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return strings.Join(texts, "; ")
}

func (e lineError) Unwrap() []error { return e }

// A Finding is a feature as it was found on this host.
type Finding struct {
	Info
	// Detail has more of the finding, such as the version of an interface. It may be
	// empty.
	Detail string
	// Err is nil if the feature is there, a [*NotSupportedError] if it is not, and any other
	// error if that could not be found out.
	Err error
}

// Survey tries all features, with the rights of the calling process, and leaves nothing
// behind. It takes milliseconds for each: it is for a host that is to be judged, or for an
// error that is to be explained, not for each start.
func Survey() []Finding {
	p := newProber()
	found := make([]Finding, 0, len(table))
	for _, info := range table {
		found = append(found, p.find(info))
	}
	return found
}

// A prober carries the data that the probes of one survey share.
type prober struct {
	// admin is whether the caller has root's rights over mounts and ids.
	admin bool
}

func newProber() *prober {
	return &prober{admin: hasCapabilities(unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID)}
}

func (p *prober) find(info Info) Finding {
	found := Finding{Info: info}
	var err error
	found.Detail, err = info.probe(p)
	var failed *callError
	var missing *absentError
	switch {
	case err == nil:
	case errors.Is(err, errNoUserNamespace):
		found.Err = fmt.Errorf("%s: not tried: %w", info.Title, err)
	case errors.As(err, &failed), errors.As(err, &missing):
		found.Err = &NotSupportedError{Info: info, Cause: err, Fix: p.fix(info, err)}
	default:
		found.Err = fmt.Errorf("%s: not tried: %w", info.Title, err)
	}
	return found
}

// An absentError names a part that a probe found to be missing, other than by a system
// call's error.
type absentError struct {
	what string
	fix  string // the way to get it on this host; "" for the way in the table
}

func (e *absentError) Error() string { return e.what }

// fix is how to get a feature on this host: by the setting or the circumstance
// that explains the cause, else as the table says.
func (p *prober) fix(info Info, cause error) string {
	if missing, ok := errors.AsType[*absentError](cause); ok && missing.fix != "" {
		return missing.fix
	}
	if h, err := running(); err == nil && h.Version.Before(info.Since) {
		return fmt.Sprintf("run Linux %s or newer, this is %s", info.Since, h.Version)
	}
	var fixes []string
	for _, s := range Settings() {
		if s.Restricts && s.explains(info, cause) {
			fixes = append(fixes, s.Fix)
		}
	}
	switch {
	case len(fixes) > 0:
		return strings.Join(fixes, "; ")
	case errors.Is(cause, syscall.ENOSPC), errors.Is(cause, syscall.EUSERS):
		return "raise the limit that is used up, of user.max_*_namespaces, here or in the container around"
	case !p.admin && errors.Is(cause, syscall.EPERM) && os.Geteuid() == 0:
		return privileged
	case !p.admin && errors.Is(cause, syscall.EPERM):
		return "run it as root"
	default:
		return info.Get
	}
}
