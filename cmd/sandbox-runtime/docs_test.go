package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
)

// TestCommandsInTheDocumentsParse: each command line that a page or a help text
// shows has commands and flags that there are.
func TestCommandsInTheDocumentsParse(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, page := range append(pages, "../../README.md") {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(page)] = codeOf(string(data))
	}
	helpTexts(rootCommand(commandline.NewReporter(os.Stderr), allCommands()), texts)
	seen := map[string]int{}
	for where, text := range texts {
		for line := range strings.Lines(text) {
			for _, words := range ownCommands(line) {
				seen[where]++
				if err := parses(words); err != nil {
					t.Errorf("%s: %s\t%v", where, strings.TrimSpace(line), err)
				}
			}
		}
	}
	for where, least := range map[string]int{"binary.md": 35, "docker.md": 4, "podman.md": 3, "containerd.md": 3, "README.md": 12,
		"help do": 3, "help up": 3, "help down": 2, "help attach": 4, "help exec": 8, "help ps": 3} {
		if seen[where] < least {
			t.Errorf("%d commands found in %s, want %d at least: are they written in another way now?", seen[where], where, least)
		}
	}
}

// codeOf keeps a page's code: blocks between fences, and indented ones.
func codeOf(page string) string {
	var code strings.Builder
	fenced := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		} else if fenced || strings.HasPrefix(line, "    ") {
			code.WriteString(line)
		}
	}
	return code.String()
}

// helpTexts adds each command's text, which has its examples indented.
func helpTexts(cmd *cli.Command, texts map[string]string) {
	for _, c := range cmd.Commands {
		texts["help "+c.Name] += codeOf(c.Description)
		helpTexts(c, texts)
	}
}

// parses gives the words to the program's own parser, and does nothing else:
// actions and what comes before them are taken out.
func parses(words []string) error {
	root := rootCommand(commandline.NewReporter(os.Stderr), allCommands())
	inert(root)
	return root.Run(context.Background(), append([]string{commandline.Program}, words...))
}

func inert(cmd *cli.Command) {
	parent := len(cmd.Commands) > 0
	cmd.Before, cmd.OnUsageError = nil, commandline.UsageError
	cmd.Writer, cmd.ErrWriter = io.Discard, io.Discard
	cmd.Action = func(_ context.Context, cmd *cli.Command) error {
		if parent && cmd.Args().Present() {
			return fmt.Errorf("no command %q", cmd.Args().First())
		}
		return nil
	}
	for _, c := range cmd.Commands {
		inert(c)
	}
}

// ownCommands are the words after sandbox-runtime of each command of a line of
// shell, whatever stands around it.
func ownCommands(line string) [][]string {
	line = strings.TrimLeft(strings.TrimSpace(line), "$# ")
	var commands [][]string
	for _, words := range shellCommands(line) {
		if len(words) > 0 && words[0] == commandline.Program {
			commands = append(commands, words[1:])
		}
	}
	return commands
}

// shellCommands splits a line at what ends a command, and into words, with
// quotes; a redirection is left out.
func shellCommands(line string) [][]string {
	var commands [][]string
	var words []string
	var word strings.Builder
	inWord, redirected := false, false
	endWord := func() {
		if inWord && !redirected {
			words = append(words, word.String())
		}
		if inWord {
			redirected = false
		}
		word.Reset()
		inWord = false
	}
	quote := rune(0)
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, inWord = r, true
		case quote != 0:
			word.WriteRune(r)
		case r == ' ' || r == '\t':
			endWord()
		case strings.ContainsRune("|&;()", r):
			endWord()
			commands, words = append(commands, words), nil
		case r == '>' || r == '<':
			endWord()
			redirected = true
		case r == '#' && !inWord:
			return append(commands, words)
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	endWord()
	return append(commands, words)
}
