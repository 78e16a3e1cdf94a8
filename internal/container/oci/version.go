package oci

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// The linker writes these variables: see LDFLAGS in the Makefile.
var (
	version = "0.1.0"
	stamped string // the commit; empty: the build did not stamp one
)

// commit names the revision of the source, with "-dirty" where the source had changes. It
// is empty if nothing is known.
func commit() string {
	if stamped != "" {
		return stamped
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return commitOf(info)
}

// commitOf is the revision that Go has recorded. A module that "go install" has fetched has
// only a version: a tag, or a pseudo-version, which ends with the revision.
func commitOf(info *debug.BuildInfo) string {
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision != "" {
		return revision + dirty
	}
	if strings.HasPrefix(info.Main.Version, "v") { // not "(devel)"
		return info.Main.Version
	}
	return ""
}

// PrintVersion writes the lines that daemons parse: "NAME version V" and "commit: C".
func PrintVersion(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s version %s\n", commandline.Program, version)
	if c := commit(); c != "" {
		fmt.Fprintln(&text, "commit:", c)
	}
	fmt.Fprintln(&text, "spec:", specs.Version)
	fmt.Fprintln(&text, "go:", runtime.Version())
	if v := container.LibseccompVersion(); v != "" {
		fmt.Fprintln(&text, "libseccomp:", v)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
