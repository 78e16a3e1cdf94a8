package main

import (
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v3"
)

// programWithDirs returns the begin of a shell's command line: this program, with the flags
// --root, --data and --socket if the user has set them. Messages to the user that name a next command
// begin with it.
func programWithDirs(cmd *cli.Command) string {
	words := []string{programName}
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
