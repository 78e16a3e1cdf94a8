package main

import (
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v3"
)

// programAs is this program with the global flags that say where its sandboxes are,
// as a shell takes them.
func programAs(cmd *cli.Command) string {
	words := []string{programName}
	for _, flag := range []string{"root", "data"} {
		if !cmd.Root().IsSet(flag) {
			continue
		}
		dir := cmd.Root().String(flag)
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs // the next command may run elsewhere
		}
		words = append(words, "--"+flag, shellWord(dir))
	}
	return strings.Join(words, " ")
}

// shellWord is one word of a shell's command line.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@%="
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
