package sandbox_test

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

func TestIsolatedKeepsThePromisesOfAProvider(t *testing.T) {
	testhost.Concurrent(t)
	needLauncher(t)
	p, err := sandbox.NewIsolatedProvider(launcherOnly())
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Suite(t, p, sandboxtest.SuiteOptions{})
}

func TestLocalKeepsThePromisesOfAProvider(t *testing.T) {
	testhost.Concurrent(t)
	sandboxtest.Suite(t, sandbox.NewLocalProvider(), sandboxtest.SuiteOptions{Without: []sandboxtest.Ability{
		sandboxtest.Directories, sandboxtest.Terminals, sandboxtest.Detached, sandboxtest.Overlays, sandboxtest.Pauses,
		sandboxtest.Limits, sandboxtest.Statistics, sandboxtest.Events, sandboxtest.OtherWorkspaces, sandboxtest.Connections,
		sandboxtest.NetworkChanges, sandboxtest.Images,
	}})
}
