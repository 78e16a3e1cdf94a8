package main

import (
	"os"
	"testing"
)

func TestHelpThatCannotBeWrittenIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	h := newHost(t)
	for _, args := range [][]string{{"help"}, {"--help"}, {}, {"do", "--help"}, {"exec", "--help"}, {"--version"}} {
		cmd := h.command(args...)
		cmd.Stdout = full
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%q: status %d", args, cmd.ProcessState.ExitCode())
		}
	}
}
