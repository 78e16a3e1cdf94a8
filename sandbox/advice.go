package sandbox

import (
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

// advised returns a refusal with the binds that bring the missing file of the program, if the host has the file. The caller
// looks at the host with its own rights: the launcher must not tell a user about files that the user cannot reach.
func advised(e *NotRunError) *NotRunError {
	if e.Missing == "" {
		return e
	}
	home, _ := os.UserHomeDir() // without one there is one reason less against a directory
	dirs := languages.Bringing(e.Missing, home)
	if len(dirs) == 0 {
		return e
	}
	with := *e
	with.Reason += "; bring it with"
	for _, dir := range dirs {
		with.Reason += " --bind " + dir + ":" + dir
	}
	return &with
}
