package sandbox

import (
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// OutputLimit is how many bytes of each stream are kept where a Command does not
// say.
const OutputLimit = 8 << 20

// A Command is what to run in a sandbox. It is not changed, and may be used
// again once what it started has been waited for.
type Command struct {
	// Args are the program, looked up on the sandbox's PATH, and its
	// arguments. At least one; no NUL bytes.
	Args []string
	// Env is added to the sandbox's environment and wins over it.
	Env map[string]string
	// Cwd is where it starts, an absolute path inside. Empty: the Config's.
	Cwd string
	// User runs it. Nil: the Config's.
	User *User
	// Groups are supplementary groups.
	Groups []uint32
	// Limits bound this command alone, within the sandbox's. Zero fields add
	// nothing to those.
	Limits Limits
	// Timeout ends it and all that it started. 0: the Config's, where 0 is
	// none.
	Timeout time.Duration

	// Stdin is what it reads; nil: nothing. It is read by a goroutine, which
	// may outlive the command by one Read.
	Stdin io.Reader
	// Stdout and Stderr are where its output goes, as it comes; nil: into the
	// Result; io.Discard: nowhere. The same writer for both is never called by
	// two goroutines at once, and gets both in the order they were written.
	//
	// A writer that is slow slows the command down. One that returns an error
	// gets no more, and the command is told with SIGPIPE when it writes again:
	// EPIPE is the caller's way of having had enough, any other error is
	// returned by Wait. Once the timeout, Kill or ctx ended the command, a
	// writer has two seconds to take what is left: the rest is dropped, and
	// Result.Notes says so.
	Stdout, Stderr io.Writer
	// Terminal gives it a terminal of this size in place of the three streams:
	// Stdin is typed there, its end as the end-of-file character (^D), and what
	// is written goes to Stdout.
	Terminal *Winsize

	// Transaction keeps what it writes apart from the sandbox's files, and from
	// who else runs there, until it ends: with exit code 0 it joins them, else it
	// vanishes. It does as well if others have changed meanwhile what it changes,
	// and then the Result has StatusError, beside the command's own exit code.
	// [Sandbox.Undo] takes it back. Of /tmp none of this holds.
	Transaction bool

	// Detached lets it go on when the Process is closed and this program ends.
	// It has no input; its output is kept by the sandbox, up to OutputLimit,
	// for whoever attaches to it.
	Detached bool
	// OutputLimit is how many bytes of each stream are kept in a Result, or for
	// a detached command. 0: 8 MiB. What comes after them is taken and dropped,
	// and the Result says so. All detached commands of a sandbox keep 1 GiB
	// together; another is ErrUnavailable.
	OutputLimit int64
	// NoFiles leaves Result.Files out. It spares a program that has a launcher of
	// its own and ends right after the command some milliseconds.
	NoFiles bool
}

// check finds what makes no sense, before anything is asked for.
func (c *Command) check() error {
	switch {
	case len(c.Args) == 0 || c.Args[0] == "":
		return &ConfigError{Reason: "a command without a program; name it in Args[0]"}
	case c.Timeout < 0:
		return &ConfigError{Reason: fmt.Sprintf("a timeout of %s; 0 takes the configuration's", c.Timeout)}
	case c.OutputLimit < 0:
		return &ConfigError{Reason: fmt.Sprintf("an output limit of %d bytes; 0 means %d", c.OutputLimit, OutputLimit)}
	case c.Cwd != "" && !path.IsAbs(c.Cwd):
		return &ConfigError{Reason: fmt.Sprintf("the directory %q is not an absolute path inside the sandbox", c.Cwd)}
	case c.User != nil && (c.User.UID >= spec.AgentID || c.User.GID >= spec.AgentID):
		return &ConfigError{Reason: fmt.Sprintf("user %d:%d: the sandbox keeps the ids from %d on", c.User.UID, c.User.GID, spec.AgentID)}
	case c.Terminal != nil && c.Stderr != nil:
		return &ConfigError{Reason: "a terminal has one output: leave Stderr out, it comes on Stdout"}
	case c.Detached && c.Transaction:
		return &ConfigError{Reason: "a detached command as a transaction: somebody has to be there for what it writes to join; leave one of the two out"}
	case c.Detached && (c.Stdin != nil || c.Stdout != nil || c.Stderr != nil || c.Terminal != nil):
		return &ConfigError{Reason: "a detached command has no streams of this program's: leave Stdin, Stdout, Stderr and Terminal out, and attach to it"}
	}
	return c.checkText()
}

func (c *Command) checkText() error {
	for i, arg := range c.Args {
		if strings.ContainsRune(arg, 0) {
			return &ConfigError{Reason: fmt.Sprintf("argument %d has a NUL byte in it", i)}
		}
	}
	if strings.ContainsRune(c.Cwd, 0) {
		return &ConfigError{Reason: "the directory has a NUL byte in it"}
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return &ConfigError{Reason: fmt.Sprintf("%q is not an environment variable: names have no = and are not empty, and neither side has a NUL byte", name)}
		}
	}
	return nil
}
