package integration

import "path/filepath"

// changeCases freeze running containers.
var changeCases = []cliCase{
	{"pause stops time, unpause goes on", "", func(c cli) {
		id, count := c.counter()
		c.ok("pause", id)
		if got := c.field(id, ".State.Status"); got != "paused" {
			c.Errorf("it is %s", got)
		}
		before := content(c, count)
		c.ok("inspect", id)
		if after := content(c, count); after != before {
			c.Errorf("it counted on: %d, then %d", len(before), len(after))
		}
		if got := c.inside(id, "true"); got.code == 0 {
			c.Errorf("exec in it: %+v", got)
		}
		c.ok("unpause", id)
		eventually(c, "it counts on", func() bool { return content(c, count) != before })
		c.want(c.inside(id, "echo here"), "here\n")
	}},
	{"paused it can be stopped", "docker", func(c cli) {
		id := c.start(traps)
		c.says(id, "ready")
		c.ok("pause", id)
		c.ok("stop", "--time", "1", id)
		if got := c.status(id); got != 15 && got != 137 { // Docker thaws it once it is to be killed
			c.Errorf("status %d", got)
		}
	}},
	{"paused it can be removed", "", func(c cli) {
		id, _ := c.counter()
		pid := c.hostPID(id)
		c.ok("pause", id)
		if got := run(c, c.removal(id)); got.code != 0 || alive(pid) {
			c.Errorf("got %+v", got)
		}
	}},
}

// counter starts a container that makes a file grow, and returns the file.
func (c cli) counter() (id, file string) {
	c.Helper()
	dir := c.TempDir()
	id = c.start("while :; do echo -n x >> /d/count; usleep 1000; done", "--volume", dir+":/d")
	file = filepath.Join(dir, "count")
	eventually(c, "it counts", func() bool { return exists(file) && content(c, file) != "" })
	return id, file
}
