package jobs

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// tracers are programs that trace others with ptrace(2).
var tracers = []string{"dlv", "gdb", "gdbserver", "lldb", "ltrace", "rr", "strace"}

// browsers start their own sandbox in user namespaces, unless they get --no-sandbox.
var browsers = []string{
	"brave", "brave-browser", "chrome", "chromium", "chromium-browser", "electron", "google-chrome", "google-chrome-stable",
	"microsoft-edge", "opera", "vivaldi",
}

// namespaceMakers are programs that make containers or other sandboxes.
var namespaceMakers = []string{
	"apptainer", "bubblewrap", "buildah", "bwrap", "crun", "firejail", "flatpak", "lxc-start", "nsenter", "nsjail", "podman", "runc",
	"singularity", "snap", "systemd-nspawn", "unshare",
}

// builtInProfile is the name of the profile of a sandbox. It is empty for a profile of the caller's own.
func builtInProfile(config spec.Config) string {
	if slices.Contains(seccomp.Names(), config.Seccomp) {
		return config.Seccomp
	}
	return ""
}

// forbids says why a command's program cannot do its work in the sandbox, and the way out. The
// system calls of such a program return EPERM, and nothing counts them. forbids is empty for other
// programs, and for a profile of the caller's own.
func forbids(config spec.Config, args []string) string {
	if builtInProfile(config) == "" {
		return ""
	}
	switch program := programOf(args); {
	case setsGroupID(args) && len(record.WritableBinds(config)) > 0:
		return "with a writable directory of the host no set-group-ID bit can be set (use --overlay in place of --workspace, or set the bit on the host)"
	case slices.Contains(tracers, program) && config.Seccomp != "debug":
		return fmt.Sprintf("the profile %s forbids programs to trace others (allow it with --seccomp debug)", config.Seccomp)
	case program == "mount" || program == "umount":
		return "a sandbox cannot mount file systems (show a directory of the host with --bind)"
	case slices.Contains(browsers, program) && !slices.Contains(argWords(args), "--no-sandbox"):
		return fmt.Sprintf("a sandbox has no user namespaces for the sandbox of %s (start it with --no-sandbox: the walls around it stay)", program)
	case slices.Contains(namespaceMakers, program):
		return "a sandbox makes no namespaces, so no container or other sandbox starts in it"
	case strings.Contains(strings.Join(args, " "), "io_uring"):
		return "no built-in profile allows io_uring (choose another engine in the program, or give a profile file to --seccomp)"
	case program == "perf":
		return "no built-in profile allows performance events (give a profile file to --seccomp)"
	}
	return ""
}

// setsGroupID says whether a command is to set the set-group-ID bit, by chmod(1) or git-init(1).
func setsGroupID(args []string) bool {
	words := argWords(args)
	if len(words) < 2 {
		return false
	}
	switch path.Base(words[0]) {
	case "git":
		return slices.Contains(words, "init") && slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--shared") })
	case "chmod":
		i := slices.IndexFunc(words[1:], func(w string) bool { return !strings.HasPrefix(w, "-") })
		return i >= 0 && slices.ContainsFunc(strings.Split(words[1+i], ","), groupIDMode().MatchString)
	}
	return false
}

// groupIDMode is a mode of chmod(1), or one of its clauses, with the set-group-ID bit.
var groupIDMode = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(0*[2367][0-7]{3}|(|[ugoa]*[ga][ugoa]*)[+=][rwxX]*s[rwxXst]*)$`)
})

// programOf is the name of the program that a command runs. If that is a shell with a line, it is the
// first word of the line.
func programOf(args []string) string {
	words := argWords(args)
	if len(words) == 0 {
		return ""
	}
	return path.Base(words[0])
}

// argWords are the arguments of a command, or the words of a shell's line.
func argWords(args []string) []string {
	if len(args) == 3 && path.Base(args[0]) == "sh" && args[1] == "-c" {
		return strings.Fields(args[2])
	}
	return args
}
