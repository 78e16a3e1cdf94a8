package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestProgramsComeFromTheirSources makes the programs anew: nobody can review their bytes,
// and the sources say nothing if other bytes are committed. With other compilers the test
// skips if the bytes differ, which fails in CI.
func TestProgramsComeFromTheirSources(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the programs of this architecture are not committed")
	}
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		t.Skip("musl-gcc is not on PATH")
	}
	dir := t.TempDir()
	script(t, "make", dir)
	for name, committed := range map[string]string{"agent-amd64": program, "files-amd64": filesProgram} {
		made, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(made) == committed {
			continue
		}
		record, err := os.ReadFile("programs/made-from-amd64")
		if err != nil {
			t.Fatal(err)
		}
		if here := script(t, "compilers"); !strings.HasSuffix(string(record), here) {
			t.Skipf("%s cannot be checked with other compilers; if these are the new ones, run scripts/programs anew and commit.\nhere:\n%scommitted:\n%s",
				name, here, record)
		}
		t.Errorf("internal/inside/agent/programs/%s is not made from its sources: run scripts/programs anew and commit", name)
	}
}

// script runs scripts/programs.
func script(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("../../../scripts/programs", args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scripts/programs %s: %v\n%s", strings.Join(args, " "), err, said.String())
	}
	return string(out)
}
