// Package commandline has the common parts of the commands of this program: the flags of all or
// several commands, the log, exit statuses, arguments, lists on the standard output, and messages about
// wrong usage.
package commandline

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"
)

// Program is the name of this program.
const Program = "sandbox-runtime"

// LauncherName is the name of the command that serves sandboxes.
const LauncherName = "launcher"

// ProgramWithDirs returns the first words of a command line: this program, with the flags --root,
// --data and --socket if the user has set them. Messages that name a next command use these words.
func ProgramWithDirs(cmd *cli.Command) string {
	words := []string{Program}
	for _, flag := range []string{"root", "data", "socket"} {
		if !cmd.Root().IsSet(flag) {
			continue
		}
		dir := cmd.Root().String(flag)
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs // the user may run the next command in another directory
		}
		words = append(words, "--"+flag, shellWord(dir))
	}
	return strings.Join(words, " ")
}

// shellWord quotes s as one word of a shell's command line, if that is necessary.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@%="
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ShellWords returns a command as one line of text. Control characters are quoted, so a terminal
// does not act on them.
func ShellWords(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = arg
		if quoted := strconv.Quote(arg); quoted != `"`+arg+`"` || arg == "" || strings.Contains(arg, " ") {
			words[i] = quoted
		}
	}
	return strings.Join(words, " ")
}
