package review

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

// A listener calls heard once after a text was written.
type listener struct {
	strings.Builder
	text  string
	heard func()
}

func (l *listener) Write(b []byte) (int, error) {
	n, err := l.Builder.Write(b)
	if l.heard != nil && strings.Contains(l.String(), l.text) {
		l.heard()
		l.heard = nil
	}
	return n, err
}

// A yes is about the files that the question has named. The host changes another file while the question waits.
func TestOverwriteAsksAboutEachFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one", "before")
	write("two", "before")
	change := func(_ context.Context, p *sandboxtest.Program) int {
		root, err := p.Root()
		if err != nil {
			t.Error(err)
			return 1
		}
		defer root.Close()
		for _, name := range []string{"one", "two"} {
			if err := root.WriteFile(filepath.Join(dir, name)[1:], []byte("of the sandbox"), 0o644); err != nil {
				t.Error(err)
			}
		}
		return 0
	}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{sandboxtest.Name}, Providers: []sandbox.Provider{&sandboxtest.Fake{Run: change}}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	sb, err := m.Create(t.Context(), sandbox.Config{Overlays: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"edit"}}); err != nil {
		t.Fatal(err)
	}
	c, err := sb.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answers, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	if _, err := in.WriteString("y\nn\n"); err != nil {
		t.Fatal(err)
	}
	in.Close()
	write("one", "of the host")
	out := &listener{text: "overwrite these", heard: func() { write("two", "of the host") }}
	r := &Review{Talk: &Conversation{In: answers, Out: out}, Changes: c}
	if done, err := r.applyWith(t.Context(), sandbox.ApplyOptions{}); done != nil || err != nil {
		t.Errorf("applied %+v, %v", done, err)
	}
	if n := strings.Count(out.String(), "[y/N]"); n != 2 {
		t.Errorf("%d questions in %q", n, out.String())
	}
	for _, name := range []string{"one", "two"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != "of the host" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
