package launcher

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// program32 is a static program for i386 that exits with status 3.
func program32() []byte {
	const base, header, entry = 0x08048000, 52 + 32, 0x08048000 + 52 + 32
	code := []byte{0xb8, 1, 0, 0, 0, 0xbb, 3, 0, 0, 0, 0xcd, 0x80} // mov $1, %eax; mov $3, %ebx; int $0x80
	elf := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	half := func(values ...uint16) {
		for _, v := range values {
			elf = binary.LittleEndian.AppendUint16(elf, v)
		}
	}
	word := func(values ...uint32) {
		for _, v := range values {
			elf = binary.LittleEndian.AppendUint32(elf, v)
		}
	}
	half(2, 3) // ET_EXEC, EM_386
	word(1, entry, 52, 0, 0)
	half(52, 32, 1, 0, 0, 0)
	size := uint32(header + len(code))
	word(1, 0, base, base, size, size, 5, 0x1000) // PT_LOAD, readable and executable
	return append(elf, code...)
}

// The built-in profiles end a 32-bit program, and the Result says why. A profile of the user's own
// may allow the architecture.
func TestPrograms32AreExplained(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	if err := os.WriteFile(path, program32(), 0o755); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	err := exec.Command(path).Run()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skip("this kernel runs no 32-bit programs")
	}
	if !asExit(err, &exit) || exit.ExitCode() != 3 {
		t.Fatalf("the program without a sandbox: %v, want exit status 3", err)
	}
	binds := []spec.Bind{{Source: dir, Target: "/data"}}
	for _, profile := range []string{"default", "strict", "debug"} {
		sb := createUp(t, l, "", spec.Config{Seccomp: profile, Binds: binds})
		if r, _ := sh(t, sb, "exec /data/program"); r.Status != spec.StatusDenied || !strings.Contains(r.Reason, "as for a 32-bit system call: the profile "+profile) {
			t.Errorf("%s: %+v", profile, r)
		}
		if r, _ := sh(t, sb, "/data/program; exit $?"); r.ExitCode != 159 || !strings.Contains(r.Reason, "64-bit programs only") {
			t.Errorf("%s: %+v", profile, r)
		}
	}
	open := filepath.Join(dir, "open.json")
	const text = `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
		"syscalls": [{"names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}`
	if err := os.WriteFile(open, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sb := createUp(t, l, "", spec.Config{Seccomp: open, Binds: binds})
	if r, _ := sh(t, sb, "exec /data/program"); r.ExitCode != 3 {
		t.Errorf("a profile with the architecture: %+v", r)
	}
}

func asExit(err error, to **exec.ExitError) (is bool) {
	*to, is = err.(*exec.ExitError) //nolint:errorlint // nothing wraps it
	return is
}
