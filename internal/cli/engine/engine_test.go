package engine

import (
	"errors"
	"strings"
	"testing"
)

var sandbox = Runtime{Name: "sandbox", Path: "/usr/local/bin/sandbox-runtime"}

// An edit is what Add or Remove makes of a configuration: the bytes, or an
// error at a line (0 for none) that has the words.
type edit struct {
	name   string
	before string
	after  string
	line   int
	words  string
}

func (c edit) check(t *testing.T, change func([]byte) ([]byte, error)) {
	t.Helper()
	after, err := change([]byte(c.before))
	if c.words == "" {
		if err != nil {
			t.Fatal(err)
		}
		if string(after) != c.after {
			t.Errorf("got\n%s\nwant\n%s", after, c.after)
		}
		return
	}
	if err == nil {
		t.Fatalf("no error, and\n%s", after)
	}
	line := 0
	var at *LineError
	if errors.As(err, &at) {
		line = at.Line
	}
	if line != c.line || !strings.Contains(err.Error(), c.words) {
		t.Errorf("error %q at line %d; want line %d and %q", err, line, c.line, c.words)
	}
}

func checkAdd(t *testing.T, e Engine, r Runtime, cases []edit) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.check(t, func(config []byte) ([]byte, error) { return e.Add(config, r) })
		})
	}
}

func checkRemove(t *testing.T, e Engine, r Runtime, cases []edit) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.check(t, func(config []byte) ([]byte, error) { return e.Remove(config, r) })
		})
	}
}

// addAndRemove returns the configuration with the runtime, and after it was
// taken out again. Adding twice is adding once; removing twice is removing
// once.
func addAndRemove(t *testing.T, e Engine, config []byte, r Runtime) (with, without []byte) {
	t.Helper()
	with, err := e.Add(config, r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Add(with, r)
	if err != nil || string(again) != string(with) {
		t.Fatalf("added twice: %v, from\n%q\nto\n%q", err, with, again)
	}
	if without, err = e.Remove(with, r); err != nil {
		t.Fatalf("%v in\n%s", err, with)
	}
	again, err = e.Remove(without, r)
	if err != nil || string(again) != string(without) {
		t.Fatalf("removed twice: %v, from\n%q\nto\n%q", err, without, again)
	}
	return with, without
}

func TestNames(t *testing.T) {
	for _, name := range []string{"sandbox", "a", "sandbox-2", "0", strings.Repeat("a", 63)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "runc", "crun", "-a", "a-", "Sandbox", "a.b", "a_b", "a b", "a\n", "ä", "a]", strings.Repeat("a", 64)} {
		if err := CheckName(name); err == nil || !strings.Contains(err.Error(), "--name") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestDiffShowsWhatBecameOfTheLines(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", "a\nb\n", "+ a\n+ b\n"},
		{"a\nb\n", "", "- a\n- b\n"},
		{"a\nb\nc\n", "a\nx\nc\n", "- b\n+ x\n"},
		{"a\nb", "a\nb\nc\n", "- b\n+ b\n+ c\n"},
		{"a\na\n", "a\n", "- a\n"},
		{"a\r\n", "a\r\nb\r\n", "+ b\n"},
		{"a\n", "a\n", ""},
	} {
		if got := Diff([]byte(c.before), []byte(c.after)); got != c.want {
			t.Errorf("from %q to %q: %q, want %q", c.before, c.after, got, c.want)
		}
	}
}

func TestErrorsNameFileAndLine(t *testing.T) {
	_, err := Docker{}.Add([]byte("{\n  \"debug\": yes\n}"), sandbox)
	if got := In("/etc/docker/daemon.json", err).Error(); !strings.HasPrefix(got, "/etc/docker/daemon.json:2: not JSON: ") {
		t.Error(got)
	}
	_, err = Containerd{}.Add([]byte("version = 2\nroot =\n"), sandbox)
	if got := In("/c.toml", err).Error(); !strings.HasPrefix(got, "/c.toml:2: not TOML: ") {
		t.Error(got)
	}
	if got := In("/x", errors.New("why")).Error(); got != "/x: why" {
		t.Error(got)
	}
}
