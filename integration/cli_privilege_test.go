package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// privilegeCases try what a container may and may not do.
var privilegeCases = []cliCase{
	{"a profile's system calls are denied", "", func(c cli) {
		profile := filepath.Join(c.TempDir(), "profile.json")
		rules := `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
			{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"},
			{"names": ["chmod", "fchmod", "fchmodat", "fchmodat2"], "action": "SCMP_ACT_KILL_PROCESS"}]}`
		if err := os.WriteFile(profile, []byte(rules), 0o600); err != nil {
			c.Fatal(err)
		}
		const script = "mkdir /new 2>&1; touch /file && chmod 700 /file; echo $?"
		c.want(c.once(script), "0\n")
		c.want(c.once(script, "--security-opt", "seccomp="+profile), "mkdir: can't create directory '/new': Operation not permitted\n159\n")
	}},
	{"the default profile holds for exec", "", func(c cli) {
		id := c.start("sleep 1000")
		if got := c.inside(id, "linux64 -R echo ran; grep Seccomp: /proc/self/status"); got.stdout != "Seccomp:\t2\n" {
			c.Errorf("got %+v", got)
		}
	}},
	{"privileged has all devices and capabilities, or says what is lacking", "", func(c cli) {
		const script = "grep CapEff /proc/self/status; (: </dev/fuse) && echo opened"
		c.privileged(c.once(script, "--privileged"), "opened\n")
		c.privileged(c.inside(c.start("sleep 1000"), script, "--privileged"), "") // exec adds no device
	}},
}

// privileged looks at what came of --privileged: podman asks for what the host
// has, and so does dockerd 29; dockerd 20.10 asks for everything.
func (c cli) privileged(got result, device string) {
	c.Helper()
	own, all := hostCapabilities(c)
	if c.name == "podman" || own == all || onDocker29() {
		if want := fmt.Sprintf("CapEff:\t%016x\n%s", own, device); got.stdout != want {
			c.Errorf("%+v, want %q", got, want)
		}
	} else if got.code == 0 || !strings.Contains(got.stdout+got.stderr, "unable to apply caps: can't apply capabilities: operation not permitted") {
		c.Errorf("got %+v", got)
	}
}

// hostCapabilities returns this process's effective capabilities, and all that
// the kernel has.
func hostCapabilities(t testing.TB) (own, all uint64) {
	t.Helper()
	_, line, _ := strings.Cut(content(t, "/proc/self/status"), "CapEff:")
	last, err := strconv.Atoi(strings.TrimSpace(content(t, "/proc/sys/kernel/cap_last_cap")))
	if n, scanErr := fmt.Sscanf(line, "%x", &own); n != 1 || err != nil {
		t.Fatal(scanErr, err)
	}
	return own, 1<<(last+1) - 1
}
