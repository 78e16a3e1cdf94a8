package integration

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// helpFlags returns the flags of a command's help, each with its aliases:
// "--env -e". No command is the global flags.
func (r *ociRuntime) helpFlags(command ...string) []string {
	r.t.Helper()
	got := run(r.t, r.bare(append(command, "--help")...))
	if got.code != 0 {
		r.t.Fatalf("%v --help: %+v", command, got)
	}
	name := regexp.MustCompile(`(^|[ ,])(--?[a-z][a-z-]*)`)
	var flags []string
	_, options, _ := strings.Cut(got.stdout, "OPTIONS:")
	for line := range strings.Lines(options) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "-") {
			continue
		}
		names, _, _ := strings.Cut(line, "  ") // from the description
		var all []string
		for _, m := range name.FindAllStringSubmatch(names, -1) {
			all = append(all, m[2])
		}
		slices.Sort(all)
		flags = append(flags, strings.Join(slices.Compact(all), " ")) // repeatable ones are shown twice
	}
	return flags
}

// helpCommands returns the commands that the help lists.
func (r *ociRuntime) helpCommands() []string {
	r.t.Helper()
	got := run(r.t, r.bare("--help"))
	_, list, _ := strings.Cut(got.stdout, "COMMANDS:")
	list, _, _ = strings.Cut(list, "OPTIONS:")
	var commands []string
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name = strings.TrimSuffix(name, ",")
		if strings.HasPrefix(line, "   ") && name != "" && !strings.HasSuffix(strings.TrimSpace(line), ":") {
			commands = append(commands, name)
		}
	}
	return commands
}

// Every command and flag of runc is one of ours, under all its names. What is
// new in a later runc so shows here.
func TestHelpHasRuncsCommandsAndFlags(t *testing.T) {
	leavesNothing(t)
	r, want := ours(t), reference(t)
	missing := func(where string, got, want []string) {
		t.Helper()
		for _, w := range want {
			if !slices.ContainsFunc(got, func(g string) bool { return hasWords(g, w) }) {
				t.Errorf("%s: no %s among %q", where, w, got)
			}
		}
	}
	missing("global flags", r.helpFlags(), want.helpFlags())
	commands := want.helpCommands()
	if len(commands) < 17 || len(want.helpFlags("exec")) < 17 {
		t.Errorf("runc's help is not understood: commands %q", commands)
	}
	missing("commands", r.helpCommands(), commands)
	for _, c := range commands {
		if c != "help" { // it takes a command's name instead
			missing(c, r.helpFlags(c), want.helpFlags(c))
		}
	}
}

// hasWords says that all words of a text are among those of another: a flag of ours can have
// a short name that runc's has not.
func hasWords(all, some string) bool {
	words := strings.Fields(all)
	for _, w := range strings.Fields(some) {
		if !slices.Contains(words, w) {
			return false
		}
	}
	return true
}

// The help of each OCI command says what it is for and gives an example.
func TestHelpTeaches(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	for _, c := range reference(t).helpCommands() {
		if c == "help" {
			continue
		}
		help := run(t, r.bare(c, "--help")).stdout
		if _, text, ok := strings.Cut(help, "DESCRIPTION:"); !ok || !strings.Contains(text, "# sandbox-runtime ") {
			t.Errorf("%s --help has no description with an example: %s", c, help)
		}
	}
}
