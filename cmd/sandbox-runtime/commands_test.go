package main

import (
	"slices"
	"strings"
	"testing"
)

// The program makes only the commands that its arguments can mean. It makes all where it needs all.
func TestOnlyNamedCommandsAreMade(t *testing.T) {
	const all = "all"
	for _, x := range []struct{ args, want string }{
		{"do -- true", "do"},
		{"--root /some/where --debug exec box state", "state exec"},
		{"--root do up box", "do up"},
		{"--root=do up box", "up"},
		{"-root /some/where list", "list"},
		{"--root list", all},
		{"--root list --help", all},
		{"--debug --root list do", "list do"},
		{"--socket do up box", "do up"},
		{"--unknown do box", all},
		{"do --help", "do"},
		{"", all},
		{"--version", all},
		{"--help do", all},
		{"foo do", all},
		{"completion candidates do", all},
	} {
		var names []string
		for _, c := range commandsFor(strings.Fields(x.args)) {
			names = append(names, c.Name)
		}
		got := strings.Join(names, " ")
		if len(names) == len(makers()) {
			got = all
		}
		if !sameWords(got, x.want) {
			t.Errorf("%q makes the commands %q, want %q", x.args, got, x.want)
		}
	}
}

func sameWords(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

func TestCommandsHaveTheirNames(t *testing.T) {
	for _, m := range makers() {
		if c := m.make(); c.Name != m.name {
			t.Errorf("the command %q has the name %q", m.name, c.Name)
		}
	}
}
