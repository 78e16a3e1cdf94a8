package source

import (
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestMain(m *testing.M) {
	// The tests must not use the user's credentials or proxies.
	for _, name := range []string{"REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		os.Unsetenv(name)
	}
	os.Setenv("HOME", "/nonexistent")
	if os.Getenv(pullVariable) != "" {
		os.Exit(pullAsProcess())
	}
	os.Exit(testhost.Run(m))
}
