package images

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// steps are the progress of an image of two layers.
func steps() []sandbox.ImageProgress {
	one, two := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	return []sandbox.ImageProgress{
		{Layer: one, State: sandbox.LayerExists},
		{Layer: two, Index: 1, State: sandbox.LayerWaiting},
		{Layer: two, Index: 1, State: sandbox.LayerDownloading, Done: 1000, Total: 2000},
		{Layer: two, Index: 1, State: sandbox.LayerDownloading, Done: 2000, Total: 2000},
		{Layer: two, Index: 1, State: sandbox.LayerAdding, Done: 500, Total: 2000},
		{Layer: two, Index: 1, State: sandbox.LayerAdded, Done: 2000, Total: 2000},
	}
}

func TestProgressOfAPullInAFile(t *testing.T) {
	var out bytes.Buffer
	p := newPullProgress(&out)
	for _, s := range steps() {
		p.tell(s)
	}
	want := "111111111111: Already exists\n222222222222: Pulling fs layer\n222222222222: Downloading\n222222222222: Extracting\n222222222222: Pull complete\n"
	if err := p.end(); err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestProgressOfAPullOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 24, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	p := newPullProgress(terminal)
	for _, s := range steps() {
		p.tell(s)
	}
	if err := p.end(); err != nil {
		t.Error(err)
	}
	terminal.Close()
	text := readAll(screen)
	for _, want := range []string{"222222222222: Downloading [=========================>                        ]      1kB/2kB", "\x1b[2A\r\x1b[J", "222222222222: Extracting [============>"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	last := text[strings.LastIndex(text, "\x1b[J")+3:]
	if last != "111111111111: Already exists\r\n222222222222: Pull complete\r\n" {
		t.Errorf("%q", last)
	}
}

// readAll reads a terminal whose other end is closed: the read then fails.
func readAll(f *os.File) string {
	var b bytes.Buffer
	_, _ = b.ReadFrom(f)
	return b.String()
}

func TestProgressOnANarrowTerminalHasNumbersAndNoBar(t *testing.T) {
	p := &pullProgress{layers: steps()[3:4]}
	if got := p.lines(80); len(got) != 1 || got[0] != "222222222222: Downloading      2kB/2kB" {
		t.Errorf("%q", got)
	}
}

func TestImportHasNoFlagsOfRegistries(t *testing.T) {
	for _, flag := range importCommand().Flags {
		if name := flag.Names()[0]; !slices.Contains([]string{"name", "platform", "max-bytes", "quiet", "json"}, name) {
			t.Errorf("--%s", name)
		}
	}
}

func TestProgressOfManyLayersIsOneLine(t *testing.T) {
	p := &pullProgress{layers: steps()[:2]}
	if got := p.summary(); got != "1 of 2 layers complete" {
		t.Error(got)
	}
}

func TestMirrors(t *testing.T) {
	got, err := mirrorsOf([]string{"docker.io=a", "docker.io=b/c", "x:1=d"})
	if err != nil || len(got) != 2 || strings.Join(got["docker.io"], " ") != "a b/c" {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []string{"a", "=a", "a="} {
		if _, err := mirrorsOf([]string{wrong}); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}
