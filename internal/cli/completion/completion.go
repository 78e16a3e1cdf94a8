// Package completion has the command completion: scripts for shells, and the words that may come next
// on a command line.
//
// The library for command lines has a completion, too. Its script for bash evaluates the words that the
// user has typed as shell code, and its flag would be taken from the end of commands that run in
// sandboxes.
package completion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
)

// Names are the names that an argument of a command may be, after a number of arguments.
type Names func(ctx context.Context, cmd *cli.Command, before int) []string

// Command returns the command completion.
func Command(names Names) *cli.Command {
	c := &cli.Command{
		Name:      "completion",
		Usage:     "print a script with which a shell completes commands, flags and names",
		ArgsUsage: "bash|zsh|fish",
		Description: `For bash and zsh, in ~/.bashrc or ~/.zshrc (after compinit):

    source <(sandbox-runtime completion bash)
    source <(sandbox-runtime completion zsh)

For fish:

    sandbox-runtime completion fish > ~/.config/fish/completions/sandbox-runtime.fish`,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if shell := cmd.Args().First(); shell != "" {
				return fmt.Errorf("completion does not know the shell %q; name bash, zsh or fish", shell)
			}
			return errors.New("say the shell: bash, zsh or fish")
		},
	}
	for _, shell := range completionScripts {
		c.Commands = append(c.Commands, &cli.Command{
			Name: shell.name, Usage: "print the script for " + shell.name, HideHelpCommand: true,
			Action: func(_ context.Context, cmd *cli.Command) error {
				_, err := io.WriteString(cmd.Root().Writer, shell.script)
				return err
			},
		})
	}
	c.Commands = append(c.Commands, &cli.Command{
		Name: "candidates", Hidden: true, SkipFlagParsing: true, HideHelpCommand: true, HideHelp: true,
		Usage: "print the candidates for the last of the words that follow the program's name",
		Action: func(ctx context.Context, cmd *cli.Command) error {
			words := candidates(ctx, cmd.Root(), cmd.Args().Slice(), names)
			return commandline.PrintEach(cmd.Root().Writer, words, func(word string) string { return word })
		},
	})
	return c
}

var completionScripts = []struct{ name, script string }{
	{"bash", `_sandbox_runtime() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <("${COMP_WORDS[0]}" completion candidates "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o bashdefault -o default -F _sandbox_runtime sandbox-runtime
`},
	{"zsh", `#compdef sandbox-runtime
_sandbox_runtime() {
    local -a found
    found=("${(@f)$("${words[1]}" completion candidates "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        compadd -a found
    else
        _files
    fi
}
if [[ "${funcstack[1]}" == _sandbox_runtime ]]; then
    _sandbox_runtime "$@"
else
    compdef _sandbox_runtime sandbox-runtime
fi
`},
	{"fish", `function __sandbox_runtime
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    $words[1] completion candidates $words[2..-1] "$current" 2>/dev/null
end
complete -c sandbox-runtime -n 'count (__sandbox_runtime) >/dev/null' -f -a '(__sandbox_runtime)'
`},
}

// candidates are the words that the last word may become. Without candidates the word may be a file.
func candidates(ctx context.Context, root *cli.Command, words []string, names Names) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	current := words[len(words)-1]
	cmd, args, ok := typed(root, words[:len(words)-1])
	if !ok {
		return nil
	}
	var all []string
	switch {
	case strings.HasPrefix(current, "-"):
		if len(args) == 0 || cmd.StopOnNthArg == nil {
			for _, name := range commandline.FlagNames(cmd.Flags) {
				all = append(all, "--"+name)
			}
		}
	case len(cmd.Commands) > 0:
		all = commandline.CommandNames(cmd)
	default:
		all = names(ctx, cmd, len(args))
	}
	return slices.DeleteFunc(all, func(word string) bool { return !strings.HasPrefix(word, current) })
}

// typed reads a command line: the command, and the arguments of the command. It returns false if the
// next word is the value of a flag, or belongs to the command line of another program.
func typed(root *cli.Command, words []string) (cmd *cli.Command, args []string, ok bool) {
	cmd = root
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if word == "--" {
			return nil, nil, false
		}
		if !strings.HasPrefix(word, "-") || len(args) > 0 && cmd.StopOnNthArg != nil {
			if sub := cmd.Command(word); sub != nil {
				cmd = sub
			} else if cmd == root {
				return nil, nil, false
			} else {
				args = append(args, word)
			}
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if !given && takesValue(cmd, name) {
			if len(words) > 0 && words[0] == "=" { // bash splits words there
				words = words[1:]
			}
			if len(words) == 0 {
				return nil, nil, false
			}
			value, words = words[0], words[1:]
		}
		if cmd == root && (name == "root" || name == "data") || name == "socket" {
			if path, err := filepath.Abs(value); err == nil {
				_ = root.Set(name, path) // the default is as good
			}
		}
	}
	return cmd, args, true
}

func takesValue(cmd *cli.Command, name string) bool {
	for _, f := range cmd.Flags {
		if slices.Contains(f.Names(), name) {
			_, isBool := f.(*cli.BoolFlag)
			return !isBool
		}
	}
	return name == "socket" // of each command
}
