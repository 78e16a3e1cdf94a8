package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// podmanCases are of what Docker's command line does not have.
var podmanCases = []cliCase{
	{"init creates, start starts", "podman", func(c cli) {
		id := strings.TrimSpace(c.ok("create", "busybox", "sh", "-c", "exit 3"))
		c.ok("init", id)
		if comm := content(c, fmt.Sprintf("/proc/%d/comm", c.hostPID(id))); comm == "sh\n" {
			c.Error("init has started its command")
		}
		c.ok("start", id)
		if got := c.status(id); got != 3 {
			c.Errorf("status %d", got)
		}
	}},
	{"annotations arrive at the runtime", "podman", func(c cli) {
		id := c.start("sleep 1000", "--annotation", "org.example.a=b c")
		var state containerState
		got := run(c, exec.Command(binary(c), "state", id))
		decode(c, got.stdout, &state)
		if state.Annotations["org.example.a"] != "b c" {
			c.Errorf("state: %+v", got)
		}
	}},
	{"ids are mapped", "podman", func(c cli) {
		id := c.start("sleep 1000", "--uidmap", "0:100000:1000", "--gidmap", "0:200000:1000")
		c.want(c.inside(id, "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '; id -u; touch /new && stat -c %u:%g /new"),
			" 0 100000 1000\n 0 200000 1000\n0\n0:0\n")
		info, err := os.Stat(fmt.Sprintf("/proc/%d/root/new", c.hostPID(id)))
		if err != nil {
			c.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 100000 || owner.Gid != 200000 {
			c.Errorf("on the host %d:%d", owner.Uid, owner.Gid)
		}
		if got := c.once("mount -t tmpfs t /tmp", "--uidmap", "0:100000:1000", "--gidmap", "0:200000:1000"); got.code == 0 {
			c.Errorf("mounts: %+v", got)
		}
	}},
	{"hooks run on the host at their time", "podman", func(c cli) {
		dir := c.TempDir()
		hook := filepath.Join(dir, "hook")
		write(c, hook, "#!/bin/sh\n# gets the state\n{ echo \"$1\"; cat; echo; } >> "+dir+"/\"$1\"\n")
		if err := os.Chmod(hook, 0o755); err != nil {
			c.Fatal(err)
		}
		stages := []string{"prestart", "createRuntime", "poststart", "poststop"}
		for _, stage := range stages {
			write(c, filepath.Join(dir, stage+".json"), fmt.Sprintf(
				`{"version": "1.0.0", "hook": {"path": %q, "args": ["hook", %q]}, "when": {"always": true}, "stages": [%[2]q]}`, hook, stage))
		}
		c.want(run(c, c.command("--hooks-dir", dir, "run", "--rm", "busybox", "echo", "ran")), "ran\n")
		for _, stage := range stages {
			var state containerState
			var name string
			data := content(c, filepath.Join(dir, stage))
			if _, err := fmt.Sscan(data, &name); err != nil || name != stage {
				c.Errorf("%s: %q", stage, data)
				continue
			}
			decode(c, data[len(name):], &state)
			// As runc has them; by the specification poststart's is running.
			want := map[string]string{"prestart": "creating", "createRuntime": "creating", "poststart": "created", "poststop": "stopped"}[stage]
			if state.ID == "" || state.Status != want {
				c.Errorf("%s: %+v", stage, state)
			}
		}
	}},
	{"descriptors are passed on", "podman", func(c cli) {
		id := c.start("sleep 1000")
		for _, cmd := range []*exec.Cmd{
			c.command("run", "--rm", "--preserve-fds", "1", "busybox", "cat", "/proc/self/fd/3"),
			c.command("exec", "--preserve-fds", "1", id, "cat", "/proc/self/fd/3"),
		} {
			r, w, err := os.Pipe()
			if err != nil {
				c.Fatal(err)
			}
			defer r.Close()
			cmd.ExtraFiles = []*os.File{r}
			if _, err := w.WriteString("passed\n"); err != nil {
				c.Fatal(err)
			}
			w.Close()
			c.want(run(c, cmd), "passed\n")
		}
	}},
	{"pod shares what it says", "podman", func(c cli) {
		c.ok("pod", "create", "--name", "p", "--share", "net,ipc,uts", "--infra-image", "busybox", "--infra-command", "sleep 1000", "--hostname", "podhost")
		group := "libpod_parent/" + strings.TrimSpace(c.ok("pod", "inspect", "--format", "{{.ID}}", "p"))
		c.Cleanup(func() {
			c.ok("pod", "rm", "--force", "--time", "0", "p")
			removeGround(c.T, group) // podman forgets it where it has no limits to set
		})
		id := c.start(serve, "--pod", "p")
		c.says(id, "ready")
		c.want(c.once(fetch("127.0.0.1"), "--pod", "p"), "hello\n")
		c.want(c.once("hostname; readlink /proc/self/ns/ipc", "--pod", "p"), "podhost\n"+namespace(c, c.hostPID(id), "ipc")+"\n")
	}},
	{"health check by hand", "podman", func(c cli) {
		id := c.start("touch /health; echo ready; exec sleep 1000", "--health-cmd", "test -e /health", "--health-retries", "1", "--health-interval", "disable")
		c.says(id, "ready")
		c.ok("healthcheck", "run", id)
		c.want(c.inside(id, "rm /health"), "")
		if got := run(c, c.command("healthcheck", "run", id)); got.code != 1 {
			c.Errorf("got %+v", got)
		}
		if got := c.field(id, ".State.Health.Status"); got != "unhealthy" {
			c.Errorf("it is %s", got)
		}
	}},
	{"root is a folder", "podman", func(c cli) {
		root := newBusyboxRoot(c)
		c.want(run(c, c.command("run", "--rm", "--rootfs", root, "sh", "-c", "echo new > /new; id -u")), "0\n")
		if got := content(c, filepath.Join(root, "new")); got != "new\n" {
			c.Errorf("the host has %q", got)
		}
	}},
	{"time is up", "podman", func(c cli) {
		inLongerTime(c, time.Second, func(timeout string) bool {
			got := c.once("echo ready; exec sleep 1000", "--timeout", strings.TrimSuffix(timeout, "s"))
			if got.code == 0 {
				c.Errorf("got %+v", got)
			}
			return got.stdout == "ready\n"
		})
	}},
}
