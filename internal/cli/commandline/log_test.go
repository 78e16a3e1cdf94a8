package commandline

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The names in an error may be the sandbox's: of a file, of a process.
func TestATerminalIsToldNothingToObey(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	NewReporter(file).Fatal(errors.New("read \x1b[2J\u202e\x9b\xff\"\r: größer\n\tmore"))
	const want = Program + `: read \x1b[2J\u202e\x9b\xff"\r: größer` + "\n\tmore\n"
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}
