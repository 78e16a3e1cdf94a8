package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

const version = "0.1.0"

// commit is the revision the binary was built from, "-dirty" added where the
// tree had changes; empty where the build did not know.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	return revision + dirty
}

// printVersion writes the lines that daemons parse: "NAME version V" and "commit: C".
func printVersion(w io.Writer) {
	fmt.Fprintf(w, "%s version %s\n", programName, version)
	if c := commit(); c != "" {
		fmt.Fprintln(w, "commit:", c)
	}
	fmt.Fprintln(w, "spec:", specs.Version)
	fmt.Fprintln(w, "go:", runtime.Version())
	if v := container.LibseccompVersion(); v != "" {
		fmt.Fprintln(w, "libseccomp:", v)
	}
}
