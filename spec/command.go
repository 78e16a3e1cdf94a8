package spec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Command is a program to run in a sandbox. Its streams come beside it.
type Command struct {
	// Args are the program, looked up on the sandbox's PATH, and its arguments.
	Args []string `json:"args"`
	// Env is added to the sandbox's environment and wins over it.
	Env map[string]string `json:"env,omitempty"`
	// Cwd is where it starts; empty: the configuration's.
	Cwd string `json:"cwd,omitempty"`
	// User runs it; nil: the configuration's.
	User *User `json:"user,omitempty"`
	// Groups are supplementary groups.
	Groups []uint32 `json:"groups,omitempty"`
	// Limits bound this command alone, within the sandbox's; zero fields add nothing to
	// those.
	Limits Limits `json:"limits,omitzero"`
	// Timeout ends the command and all it started; 0 takes the configuration's, where 0
	// means none.
	Timeout Duration `json:"timeout,omitzero"`
	// Grace is the time between SIGTERM and SIGKILL when the runtime ends the command; 0 takes
	// the configuration's.
	Grace Grace `json:"grace,omitzero"`
	// Terminal gives it a terminal of this size in place of the three files.
	Terminal *Winsize `json:"terminal,omitempty"`
	// PlainNewlines, with Terminal, has the terminal pass each newline of the output on as
	// it is.
	PlainNewlines bool `json:"plain_newlines,omitempty"`
	// Detached lets it go on when its caller goes. Its output is kept by the sandbox, of each
	// stream OutputLimit bytes: half from its head and half from its tail.
	Detached    bool  `json:"detached,omitempty"`
	OutputLimit int64 `json:"output_limit,omitempty"`
	// NoFiles leaves the files out of the Result.
	NoFiles bool `json:"no_files,omitempty"`
	// Transaction has the command's writes join the sandbox's files when it succeeds, with
	// exit code 0, and vanish otherwise. Other commands do not see the writes before. /tmp
	// and /var/tmp are not part of a transaction.
	Transaction bool `json:"transaction,omitempty"`
}

// OutputLimit is how many bytes of each stream are kept where a Command does not say.
const OutputLimit = 8 << 20

// In is the configuration of a sandbox with the command's own on top: its environment, its
// directory, its user, its limits and its timeout. The configuration has to be complete.
// An error names the mistake in the command.
func (c Command) In(box Config) (Config, error) {
	if err := c.Check(); err != nil {
		return box, err
	}
	if c.User != nil && c.User.Name != "" {
		return box, errNameForIDs
	}
	if len(c.Env) > 0 {
		env := map[string]string{}
		maps.Copy(env, box.Env)
		maps.Copy(env, c.Env)
		box.Env = env
	}
	box.Cwd = cmp.Or(c.Cwd, box.Cwd)
	box.User = cmp.Or(c.User, box.User)
	box.Timeout = cmp.Or(c.Timeout, box.Timeout)
	box.Grace = cmp.Or(c.Grace, box.Grace)
	if c.Limits != (Limits{}) {
		for _, l := range LimitFields() {
			l.Tighten(&box.Limits, c.Limits)
		}
	}
	return box, nil
}

// Check refuses a command that makes no sense in any sandbox.
func (c Command) Check() error {
	switch {
	case len(c.Args) == 0 || c.Args[0] == "":
		return errors.New("a command without a program; name it in Args[0]")
	case c.Timeout < 0:
		return fmt.Errorf("a timeout of %s; 0 takes the configuration's", time.Duration(c.Timeout))
	case c.Grace.problem() != "":
		return errors.New("grace: " + c.Grace.problem())
	case c.OutputLimit < 0:
		return fmt.Errorf("an output limit of %d bytes; 0 means %d", c.OutputLimit, OutputLimit)
	case c.Cwd != "" && !path.IsAbs(c.Cwd):
		return fmt.Errorf("the directory %q is not an absolute path inside the sandbox", c.Cwd)
	case c.Detached && c.Transaction:
		return errors.New("a detached command as a transaction: a caller has to wait for its writes to join; leave one of the two out")
	case c.PlainNewlines && c.Terminal == nil:
		return errors.New("plain newlines without a terminal: leave them out, since only a terminal changes newlines")
	case c.Detached && c.Terminal != nil:
		return errors.New("a detached command with a terminal, which nobody would be at: leave one of the two out")
	}
	if err := c.checkIDs(); err != nil {
		return err
	}
	if err := c.checkLimits(); err != nil {
		return err
	}
	return c.checkText()
}

func (c Command) checkIDs() error {
	if c.User != nil {
		if field, problem := c.User.problem(); problem != "" {
			return fmt.Errorf("user.%s: %s", field, problem)
		}
	}
	if slices.ContainsFunc(c.Groups, func(g uint32) bool { return g >= AgentID }) {
		return fmt.Errorf("groups %d: the sandbox keeps the ids from %d on", c.Groups, AgentID)
	}
	return nil
}

func (c Command) checkLimits() error {
	for _, l := range LimitFields() {
		switch {
		case !l.Given(c.Limits):
		case !l.OfCommand:
			return fmt.Errorf("a limit %s for one command: only sandboxes have that", l.Name)
		default:
			if problem := l.problem(c.Limits); problem != "" {
				return &FieldError{Field: "limits." + l.Name, Problem: problem}
			}
		}
	}
	return nil
}

func (c Command) checkText() error {
	for i, arg := range c.Args {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("argument %d has a NUL byte in it", i)
		}
	}
	if strings.ContainsRune(c.Cwd, 0) {
		return errors.New("the directory has a NUL byte in it")
	}
	if len(c.Env) > maxEnv {
		return fmt.Errorf("%d variables are more than %d", len(c.Env), maxEnv)
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return fmt.Errorf("%q is not an environment variable: names have no = and are not empty, and neither side has a NUL byte", name)
		}
	}
	return nil
}
