package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file and the output are those of docs/reference.md.
func TestConfigOfTheReferenceRuns(t *testing.T) {
	page, err := os.ReadFile("../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	config, rest, _ := strings.Cut(rest, "```\n")
	_, output, _ := strings.Cut(rest, "\"$GREETING from $PWD\"'\n    ")
	output, _, _ = strings.Cut(output, "\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "box.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSandboxes(t)
	cmd := s.command("do", "--config", "box.json", "--", "sh", "-c", `echo "$GREETING from $PWD"`)
	cmd.Dir = dir
	if got := run(t, cmd); output == "" || got != (result{0, output + "\n", ""}) {
		t.Errorf("got %+v, want %q", got, output)
	}
}
