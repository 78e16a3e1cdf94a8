package container

import (
	"os"

	// The device half of the cgroup managers registers itself; without it
	// libcontainer refuses to start anything.
	_ "github.com/opencontainers/cgroups/devices"
	"github.com/opencontainers/runc/libcontainer"

	// C code that runs before Go's runtime in a re-executed program and joins
	// or makes the namespaces.
	_ "github.com/opencontainers/runc/libcontainer/nsenter"
)

// init is the second life of the program: libcontainer re-executes it inside the new
// container, where it sets up the root and then executes the container's own command. The
// environment variable distinguishes this from a user's command "sandbox-runtime init".
//
// The third life is that of [CompileSeccomp], which ends here, too.
func init() {
	switch {
	case len(os.Args) < 2:
	case os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "":
		watchMainThread()
		libcontainer.Init()
	case os.Args[1] == compileArgument && os.Getenv(compileVariable) != "":
		loadOwnFilter()
	}
}
