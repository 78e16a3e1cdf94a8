package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// podman has no daemon: each command is one, and conmon stays with each
// container.
type podman struct{ home, runtime string }

func TestPodman(t *testing.T) {
	leavesNothing(t)
	need(t, peers())
	p := newPodman(t)
	testEngine(t, p)
	testCLI(cli{t, "podman", p.client, os.Getpid()})
}

// podmanRun is where podman keeps what lasts until the next boot. It refuses a
// path of more than 50 bytes, which a test's folder has.
const podmanRun = "/run/podman"

// newPodman sets podman up with everything it writes below a folder of the
// test's, but for a few things in /run, and imports busybox as an image.
func newPodman(t *testing.T) *podman {
	t.Helper()
	p := &podman{home: t.TempDir(), runtime: binary(t)}
	for name, content := range map[string]string{
		"containers.conf":                p.config(),
		"storage.conf":                   fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", p.in("root"), podmanRun),
		"registries.conf":                "",
		".config/containers/policy.json": `{"default": [{"type": "insecureAcceptAnything"}]}`,
	} {
		if err := os.MkdirAll(filepath.Dir(p.in(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.in(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		// podman mounts it on itself once; not yet if it never ran a container.
		if err := unix.Unmount("/run/netns", 0); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			t.Errorf("unmount /run/netns: %v", err)
		}
		removeGround(t, "libpod_parent", podmanRun, "/run/containers", "/run/netns", "/dev/shm/libpod_lock")
	})
	before := processes(t)
	t.Cleanup(func() { // conmon cleans up by another podman, which nobody waits for
		eventually(t, "podman's keepers are gone", func() bool { return before.diff(processes(t)) == "" })
	})
	importRoot(t, p.client("import", "-", "busybox"))
	return p
}

func (p *podman) in(name string) string { return filepath.Join(p.home, name) }

func (p *podman) config() string {
	// conmon gets this environment and no other, and starts podman to clean up.
	var environment []string
	for _, e := range p.environment() {
		environment = append(environment, fmt.Sprintf("%q", e))
	}
	// Without CAP_SYS_RESOURCE podman's default limits are out of reach.
	return fmt.Sprintf(`[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
seccomp_profile = %q
init_path = %q
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
conmon_path = [%q]
conmon_env_vars = [%s]
helper_binaries_dir = [%q]
[network]
network_backend = "netavark"
network_config_dir = %q
`, peer("usr/share/containers/seccomp.json"), peer("usr/bin/tini-static"), peer("usr/bin/conmon"), strings.Join(environment, ", "),
		peer("usr/lib/podman"), p.in("networks"))
}

func (p *podman) environment() []string {
	return append(peerEnvironment(p.home), "CONTAINERS_CONF="+p.in("containers.conf"),
		"CONTAINERS_REGISTRIES_CONF="+p.in("registries.conf"), "CONTAINERS_STORAGE_CONF="+p.in("storage.conf"))
}

func (p *podman) client(args ...string) *exec.Cmd {
	cmd := exec.Command(peer("usr/bin/podman"), append([]string{"--tmpdir", podmanRun + "/tmp", "--runtime", p.runtime}, args...)...)
	cmd.Env = p.environment()
	cmd.Dir = p.home // conmon stays there, and leaves a file "oom" in it
	return cmd
}

func (p *podman) run(_ *testing.T, c container) *exec.Cmd {
	return p.client(c.dockerRun()...)
}

func (p *podman) exec(id string, tty bool, args ...string) *exec.Cmd {
	return p.client(dockerExec(id, tty, args)...)
}

func (p *podman) kill(id string) *exec.Cmd   { return p.client("kill", id) }
func (p *podman) remove(id string) *exec.Cmd { return p.client("rm", id) }

func (p *podman) status(t *testing.T, id string) int {
	t.Helper()
	return printedStatus(t, run(t, p.client("wait", id)))
}

func (p *podman) startFailure(status int) int { return status }
