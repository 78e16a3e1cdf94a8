package compile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestOtherEntriesKill takes the two other ways into an amd64 kernel, which have
// other numbers for the calls: no rule is meant for them.
func TestOtherEntriesKill(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not on PATH")
	}
	for _, entry := range []struct{ name, source string }{
		// 64 is getppid(2) in the table of i386.
		{"i386", `int main(void) { int r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(64) : "memory"); return r < 0; }`},
		// 39 is getpid(2), bit 30 chooses x32.
		{"x32", `int main(void) { long r; __asm__ volatile("syscall" : "=a"(r) : "a"(39 | 1L << 30) : "rcx", "r11", "memory"); return r < 0; }`},
	} {
		t.Run(entry.name, func(t *testing.T) {
			dir := t.TempDir()
			source, binary := filepath.Join(dir, "x.c"), filepath.Join(dir, "x")
			if err := os.WriteFile(source, []byte(entry.source), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("gcc", "-o", binary, source).CombinedOutput(); err != nil {
				t.Fatalf("gcc: %v: %s", err, out)
			}
			want := syscall.SIGSYS
			if endedBy(exec.Command(binary).Run(), syscall.SIGSEGV) {
				want = syscall.SIGSEGV // this kernel has no such entry for any program
			}
			for _, profile := range profiles() {
				if err := child(t, "exec", profile, dir, binary).Run(); !endedBy(err, want) {
					t.Errorf("under %s: %v, want %v", profile, err, want)
				}
			}
		})
	}
}

// endedBy says whether a signal ended the program.
func endedBy(err error, signal syscall.Signal) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == signal
}
