package agent

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Command is a program to run inside. Its ids, paths and names are the inside's.
type Command struct {
	// Args is the program and its arguments. A program without a slash is
	// looked for on the PATH of Env. Nothing falls back to a shell.
	Args []string
	// Program, if it is not nil, is executed in place of the program that Args[0] names: a
	// program in memory, which is no file of the sandbox. Start keeps no copy. An agent
	// that is older than this is a *VersionError.
	Program *os.File
	// Env is the whole environment, as K=V; nothing is added to it.
	Env []string
	// Dir is the absolute directory to start in, entered as the user.
	Dir string
	// UID and GID are below 65535, the agent's own id, as are Groups, the
	// supplementary groups, of which there are none by default.
	UID, GID uint32
	Groups   []uint32
	// Rlimits are set as given. A hard limit above the agent's fails the start.
	Rlimits []Rlimit
	// OOMScoreAdj, 1 to 1000, has the kernel choose the command's processes
	// before the agent when memory runs out; 0 leaves it as the agent's. It is
	// no limit: the command may lower it again.
	OOMScoreAdj int
	// TTY gives the command a new terminal of that size in place of the three
	// files.
	TTY *Winsize
	// PlainNewlines, with TTY, has the terminal pass each newline of the output on as it
	// is, from the first byte. Otherwise, and with an agent that is older than this, the
	// terminal makes "\r\n" of it (ONLCR, termios(3)).
	PlainNewlines bool
	// Stdin, Stdout and Stderr become descriptors 0 to 2; nil is /dev/null.
	// Like os/exec, Start sets them to blocking mode; it neither closes nor
	// keeps them. A directory is refused: it would lead out of the sandbox's
	// root.
	Stdin, Stdout, Stderr *os.File
	// Cgroup is where the command is from its first instruction on.
	Cgroup Cgroup
	// Detach, where it is not nil, has the command outlive this connection. It
	// has no Stdout and no Stderr of the caller's then.
	Detach *Detachment
	// Root is a directory that is the command's root in place of the sandbox's: the
	// sandbox's files as another mount namespace shows them. Nil: the sandbox's root. Dir
	// and all lookups of the command lie in it. The caller must keep that namespace, since
	// the mounts come apart without it.
	Root *os.File
	// Meanwhile, if it is not nil, is called while the agent forks. The child executes the
	// program only after Meanwhile has returned.
	Meanwhile func()
	// Network is reserved for a network namespace of the command's own. All agents refuse
	// such a command so far, see [StageNetwork].
	Network *os.File
}

// Cgroup is the group of a command; the zero value leaves it in the agent's.
// Start keeps neither file. A command that cannot enter does not start.
type Cgroup struct {
	// Dir is the directory of a group of v2, which Linux 5.7 can fork into.
	Dir *os.File
	// Tasks are the files "tasks" of groups of v1, opened for writing: the opener's right
	// to move a process there counts.
	Tasks []*os.File
}

// A Detachment keeps a command without a host.
type Detachment struct {
	// ID is the id for [Conn.Attach].
	ID ExecID
	// Stdout and Stderr keep the first and the last bytes of each stream, Limit in all, in the
	// form of struct output_header in cmd/sandbox-agent/protocol.h, which internal/inside/streams reads. An
	// agent that [Conn.KeepsTail] denies keeps the first Limit bytes, as they are.
	Stdout, Stderr *os.File
	Limit          int64
}

// ExecID names a detached command. It is the caller's to make up.
type ExecID [idSize]byte

func (id ExecID) String() string { return hex.EncodeToString(id[:]) }

// Winsize is the size of a terminal, in characters.
type Winsize = spec.Winsize

// Rlimit is one resource limit, see setrlimit(2). Resource is a constant like
// unix.RLIMIT_NOFILE.
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

// validate refuses descriptors that a command cannot have. The other mistakes are for PID 1
// to refuse, and for the caller to avoid: spec.Command.Check has better words.
func (c *Command) validate() error {
	if len(c.Args) == 0 {
		return errors.New("command without a program")
	}
	return errors.Join(c.validateStdio(), c.validateCgroup(), c.validateDetach(), c.validateRoot())
}

func (c *Command) validateStdio() error {
	for i, f := range c.stdio() {
		if f == nil {
			continue
		}
		if c.TTY != nil {
			return fmt.Errorf("descriptor %d of a command that gets a terminal", i)
		}
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("descriptor %d of a command: %w", i, err)
		}
		if info.IsDir() {
			return fmt.Errorf("descriptor %d of a command is the directory %s", i, f.Name())
		}
	}
	return nil
}

func (c *Command) validateCgroup() error {
	g := c.Cgroup
	if g.Dir != nil && len(g.Tasks) > 0 {
		return errors.New("cgroups of v1 and of v2 for one command")
	}
	if len(g.Tasks) > maxTasks {
		return fmt.Errorf("%d cgroups for one command, above %d", len(g.Tasks), maxTasks)
	}
	return nil
}

func (c *Command) validateDetach() error {
	d := c.Detach
	switch {
	case d == nil:
		return nil
	case d.Stdout == nil, d.Stderr == nil:
		return errors.New("detached command without files for its output")
	case d.Limit < 0:
		return fmt.Errorf("detached command whose output has the limit %d", d.Limit)
	case c.Stdout != nil, c.Stderr != nil:
		return errors.New("detached command with a standard output of the caller's")
	case c.TTY != nil:
		return errors.New("detached command with a terminal")
	}
	return nil
}

func (c *Command) validateRoot() error {
	if c.Root == nil {
		return nil
	}
	info, err := c.Root.Stat()
	if err != nil {
		return fmt.Errorf("root of a command: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("root of a command: %s is not a directory", c.Root.Name())
	}
	return nil
}

// request is the message beside the payload, with its descriptors in the protocol's order,
// after the two sockets.
func (c *Command) request(payload, exec, setup int) (request, []int) {
	r := request{kind: requestExec, payload: payload, tasks: len(c.Cgroup.Tasks)}
	fds := make([]int, 0, 16)
	fds = append(fds, exec, setup)
	for i, f := range c.stdio() {
		if f != nil {
			r.stdio |= 1 << i
			fds = append(fds, int(f.Fd()))
		}
	}
	for _, f := range c.Cgroup.Tasks {
		fds = append(fds, int(f.Fd()))
	}
	if c.Cgroup.Dir != nil {
		r.with |= withCgroup
		fds = append(fds, int(c.Cgroup.Dir.Fd()))
	}
	if d := c.Detach; d != nil {
		r.with |= withOutput
		r.id, r.limit = d.ID, d.Limit
		fds = append(fds, int(d.Stdout.Fd()), int(d.Stderr.Fd()))
	}
	for _, more := range []struct {
		file *os.File
		with uint32
	}{{c.Network, withNetwork}, {c.Root, withRoot}, {c.Program, withProgram}} {
		if more.file != nil {
			r.with |= more.with
			fds = append(fds, int(more.file.Fd()))
		}
	}
	return r, fds
}

func (c *Command) stdio() [3]*os.File { return [3]*os.File{c.Stdin, c.Stdout, c.Stderr} }

// encode lays the command out as cmd/sandbox-agent/protocol.h describes it.
func (c *Command) encode() []byte {
	var b []byte
	word := func(n uint32) { b = binary.NativeEndian.AppendUint32(b, n) }
	long := func(n uint64) { b = binary.NativeEndian.AppendUint64(b, n) }
	text := func(s string) {
		word(uint32(len(s) + 1))
		b = append(b, s...)
		b = append(b, 0)
	}

	var tty Winsize
	flags := uint32(0)
	if c.TTY != nil {
		tty, flags = *c.TTY, payloadTTY
		if c.PlainNewlines {
			flags |= payloadPlainNewlines
		}
	}
	for _, n := range []uint32{
		c.UID, c.GID, flags, uint32(tty.Rows), uint32(tty.Columns), uint32(c.OOMScoreAdj),
		uint32(len(c.Groups)), uint32(len(c.Rlimits)), uint32(len(c.Args)), uint32(len(c.Env)),
	} {
		word(n)
	}
	for _, g := range c.Groups {
		word(g)
	}
	for _, l := range c.Rlimits {
		long(uint64(l.Resource))
		long(l.Soft)
		long(l.Hard)
	}
	text(c.Dir)
	for _, s := range c.Args {
		text(s)
	}
	for _, s := range c.Env {
		text(s)
	}
	return b
}
