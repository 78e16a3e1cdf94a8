package process

import (
	"regexp"
	"slices"
	"strings"
)

// Commands that a shell has built in, and that no program is.
var (
	builtins = []string{
		".", ":", "alias", "bg", "break", "cd", "continue", "eval", "exec", "exit", "export", "fc", "fg", "for", "getopts", "hash",
		"if", "jobs", "local", "read", "readonly", "return", "set", "shift", "times", "trap", "type", "ulimit", "umask", "unalias",
		"unset", "until", "wait", "while",
	}
	bashBuiltins = []string{
		"[[", "bind", "builtin", "caller", "compgen", "complete", "compopt", "declare", "dirs", "disown", "enable", "function",
		"help", "history", "let", "logout", "mapfile", "popd", "pushd", "readarray", "select", "shopt", "source", "suspend",
		"typeset",
	}
)

// assignment is the beginning of a line of a shell that sets a variable for a command.
var assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// shellSyntax has the characters that only a shell gives a meaning to.
const shellSyntax = " \t\n|&;<>()$`\\\"'*?[]{}~#"

// longestLine bounds the line that a hint repeats.
const longestLine = 200

// Hinted returns the reason why a command was not executed, with the way to run its words in a shell if they look like
// a line for a shell, or with the place of flags if the command looks like one.
func Hinted(reason string, words []string) string {
	if hint := shellHint(words); hint != "" {
		return reason + "; " + hint
	}
	return reason
}

func shellHint(words []string) string {
	switch name := words[0]; {
	case slices.Contains(builtins, name):
		return name + " is a part of the shell; run the line in a shell: " + inShell("sh", words)
	case slices.Contains(bashBuiltins, name):
		return name + " is a part of bash; run the line in bash: " + inShell("bash", words)
	case strings.HasPrefix(name, "-"):
		return "it looks like a flag; flags come before the name of the sandbox, and with do before --"
	case assignment.MatchString(name):
		return "a shell sets variables in this way; run the line in a shell: " + inShell("sh", words)
	case len(words) == 1 && strings.ContainsAny(name, shellSyntax):
		return "this is a line for a shell; run the line in a shell: " + inShell("sh", words)
	}
	return ""
}

// inShell is the command line that runs words in a shell.
func inShell(shell string, words []string) string {
	line := words[0]
	for _, word := range words[1:] {
		if word == "" || word != "]]" && strings.ContainsAny(word, shellSyntax) {
			word = quoted(word)
		}
		line += " " + word
	}
	if len(line) > longestLine || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		line = "LINE"
	}
	return shell + " -c " + quoted(line)
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
