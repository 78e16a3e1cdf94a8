package integration

import (
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// dockerCases need the daemon: name service, health checks on time.
var dockerCases = []cliCase{
	{"names on a network of one's own", "docker", func(c cli) {
		c.network("own")
		id := c.start(serve, "--network", "own", "--name", "server", "--network-alias", "alias")
		c.says(id, "ready")
		c.want(c.once(fetch("server"), "--network", "own"), "hello\n")
		c.want(c.once(fetch("alias"), "--network", "own"), "hello\n")
	}},
	{"healthy, then not", "docker", func(c cli) {
		id := c.start("touch /health; exec sleep 1000",
			"--health-cmd", "echo checked; test -e /health", "--health-interval", "100ms", "--health-retries", "2")
		eventually(c, "it is healthy", func() bool { return c.field(id, ".State.Health.Status") == "healthy" })
		c.want(c.inside(id, "rm /health"), "")
		eventually(c, "it is unhealthy", func() bool { return c.field(id, ".State.Health.Status") == "unhealthy" })
		if got := c.field(id, "json .State.Health.Log"); !strings.Contains(got, "checked") || !strings.Contains(got, `"ExitCode":1`) {
			c.Errorf("the checks: %s", got)
		}
	}},
	{"health check that hangs is ended", "docker", func(c cli) {
		// Long enough for its exec to have started, on any host: where it has not, dockerd
		// 20.10 can hold the container's execs, and with them its end, for 45 s.
		id := c.start("exec sleep 1000", "--health-cmd", "exec sleep 1001", "--health-interval", "100ms", "--health-timeout", "8s", "--health-retries", "1")
		eventually(c, "it is unhealthy", func() bool { return c.field(id, ".State.Health.Status") == "unhealthy" })
		c.ok("kill", id)
		c.status(id)
	}},
	{"rm -f ends it without its main thread", "docker", func(c cli) {
		id := strings.TrimSpace(c.ok("run", "--detach", "--volume", testhost.Headless(c)+":/headless", "busybox", "/headless"))
		c.says(id, "ready")
		pid := c.hostPID(id)
		wantStatus(c.T, c.removal(id), 0)
		eventually(c, "its process has ended", func() bool { return processStat(pid) == "" })
	}},
}
