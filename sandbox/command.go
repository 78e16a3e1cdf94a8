package sandbox

import (
	"io"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// OutputLimit is how many bytes of each stream are kept where a Command does not
// say.
const OutputLimit = spec.OutputLimit

// A Command is a program to run in a sandbox. No call changes it. It can be used again
// when the Process of its last use has ended.
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
	// Grace is the time between SIGTERM and SIGKILL when the runtime ends the command: at its
	// timeout, when ctx is done, and when the Process is closed. The removal of the sandbox takes
	// the Config's. 0: the Config's, where 0 is DefaultGrace. Negative: SIGKILL at once. The
	// longest time is MaxGrace.
	Grace time.Duration

	// Stdin is the input of the command. Nil: no input. A goroutine reads it, and may
	// outlive the command by one Read.
	Stdin io.Reader
	// Stdout and Stderr receive the output as it comes. Nil: the Result does; io.Discard:
	// the output is dropped. If both are the same writer, no two goroutines call it at
	// once, and it gets the output in the order of the writes.
	//
	// A slow writer slows the command down. A writer that returns an error gets no more,
	// and the command gets SIGPIPE when it writes again. EPIPE says that the caller has
	// enough; Wait returns any other error. Once the timeout, Kill or ctx has ended the
	// command, a writer has two seconds for the rest. After that the rest is dropped, and
	// Result.Notes says so.
	Stdout, Stderr io.Writer
	// Terminal gives the command a terminal of this size in place of the three streams.
	// Stdin is typed there, and its end is the end-of-file character (^D). The output goes
	// to Stdout.
	Terminal *Winsize
	// PlainNewlines has the terminal pass each newline of the output on as it is, for a
	// reader that is no terminal, or for a terminal that makes "\r\n" of a newline itself.
	// Otherwise the terminal of the command makes "\r\n" of each newline.
	PlainNewlines bool

	// Transaction keeps the command's writes apart until its end: other commands do not
	// see them. With exit code 0 they join the sandbox's files, else they vanish. They
	// also vanish if other commands have changed the same paths meanwhile; the Result then
	// has StatusError, and the command's own exit code. [Sandbox.Undo] takes a transaction
	// back. /tmp and /var/tmp are not part of a transaction.
	Transaction bool

	// Detached lets the command go on when the Process is closed and when this program
	// ends. The command has no input. The sandbox keeps its output, up to OutputLimit, for
	// [Sandbox.Attach].
	Detached bool
	// OutputLimit is how many bytes of each stream are kept, in a Result or for a detached
	// command: one half from its head, the other from its tail. 0: 8 MiB. The output between
	// is read and dropped, and the Result has its size. All
	// detached commands of a sandbox keep 1 GiB together; the next one is ErrUnavailable.
	OutputLimit int64
	// NoFiles leaves Result.Files out. It spares a program that has a launcher of
	// its own and ends right after the command some milliseconds.
	NoFiles bool
}

// withoutStreams is the command without its streams, with every other field.
func (c *Command) withoutStreams() spec.Command {
	return spec.Command{
		Args: c.Args, Env: c.Env, Cwd: c.Cwd, User: c.User, Groups: c.Groups, Limits: c.Limits,
		Timeout: Duration(c.Timeout), Grace: Grace(c.Grace), Terminal: c.Terminal, PlainNewlines: c.PlainNewlines,
		Detached: c.Detached, Transaction: c.Transaction, OutputLimit: c.OutputLimit, NoFiles: c.NoFiles,
	}
}

// check refuses a command that makes no sense, before any request.
func (c *Command) check() error {
	if err := c.withoutStreams().Check(); err != nil {
		return &ConfigError{Reason: err.Error()}
	}
	switch {
	case c.Terminal != nil && c.Stderr != nil:
		return &ConfigError{Reason: "a terminal has one output: leave Stderr out, it comes on Stdout"}
	case c.Detached && (c.Stdin != nil || c.Stdout != nil || c.Stderr != nil):
		return &ConfigError{Reason: "a detached command has no streams of this program's: leave Stdin, Stdout and Stderr out, and attach to it"}
	}
	return nil
}
