package sandbox_test

import (
	"bytes"
	"errors"
	"os/exec"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// What the capture costs beside that of os/exec, on the same processes.
func BenchmarkCaptured(b *testing.B) {
	b.Run("os/exec", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command("/bin/true")
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("local", func(b *testing.B) {
		sb := create(b, newLocal(b), sandbox.Config{})
		for b.Loop() {
			if r, err := sb.Exec(b.Context(), command("/bin/true")); err != nil || !r.OK() {
				b.Fatal(r, err)
			}
		}
	})
	b.Run("isolated", func(b *testing.B) {
		sb := create(b, newIsolated(b), sandbox.Config{})
		for b.Loop() {
			if r, err := sb.Exec(b.Context(), command("/bin/true")); err != nil || !r.OK() {
				b.Fatal(r, err)
			}
		}
	})
}

// What a small file costs once the program inside is there.
func BenchmarkFiles(b *testing.B) {
	sb := create(b, newIsolated(b), sandbox.Config{})
	files := sb.Files()
	small, large := make([]byte, 4<<10), make([]byte, 32<<20)
	if err := errors.Join(files.WriteFile(b.Context(), "small", small, 0), files.WriteFile(b.Context(), "large", large, 0)); err != nil {
		b.Fatal(err)
	}
	b.Run("read 4 KiB", func(b *testing.B) {
		for b.Loop() {
			if _, err := files.ReadFile(b.Context(), "small"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("write 4 KiB", func(b *testing.B) {
		for b.Loop() {
			if err := files.WriteFile(b.Context(), "small", small, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read 32 MiB", func(b *testing.B) {
		b.SetBytes(int64(len(large)))
		for b.Loop() {
			if _, err := files.ReadFile(b.Context(), "large"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
