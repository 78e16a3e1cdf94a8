package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// secured changes a container's security context.
func secured(change func(*criapi.LinuxContainerSecurityContext)) func(*criapi.ContainerConfig) {
	return func(config *criapi.ContainerConfig) { change(config.Linux.SecurityContext) }
}

type securityContext = criapi.LinuxContainerSecurityContext

var criSecurityCases = []criCase{
	{"user and groups", func(t *testing.T, c *cri) {
		got := c.pod(t, "user").prints(t, "c", "id -u; id -g; id -G; grep CapEff /proc/self/status", secured(func(s *securityContext) {
			s.RunAsUser, s.RunAsGroup = &criapi.Int64Value{Value: 1000}, &criapi.Int64Value{Value: 1001}
			s.SupplementalGroups = []int64{4321}
		}))
		lines := strings.SplitN(got, "\n", 4)
		wantEqual(t, lines[:2], []string{"1000", "1001"})
		if !strings.Contains(" "+lines[2]+" ", " 4321 ") {
			t.Errorf("groups %q", lines[2])
		}
		wantEqual(t, lines[3], "CapEff:\t0000000000000000\n")
	}},
	{"user by name", func(t *testing.T, c *cri) {
		got := c.pod(t, "username").prints(t, "c", "id -u; id -g", secured(func(s *securityContext) { s.RunAsUsername = "user" }))
		wantEqual(t, got, "1000\n1000\n")
	}},
	{"exec is the user's too", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "execuser").sleeper(t, secured(func(s *securityContext) {
			s.RunAsUser = &criapi.Int64Value{Value: 1000}
			s.NoNewPrivs = true
		}))
		got := ctr.execute(t, "id -u; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status")
		wantEqual(t, got.stdout, "1000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t0\n")
	}},
	{"capabilities", func(t *testing.T, c *cri) {
		p := c.pod(t, "caps")
		with := func(name string, add, drop []string) uint64 {
			return capabilities(t, p.prints(t, name, "grep CapEff /proc/self/status", secured(func(s *securityContext) {
				s.Capabilities = &criapi.Capability{AddCapabilities: add, DropCapabilities: drop}
			})))
		}
		plain := with("plain", nil, nil)
		wantEqual(t, with("add", []string{"SYS_PTRACE"}, nil), plain|1<<unix.CAP_SYS_PTRACE)
		wantEqual(t, with("drop", nil, []string{"CHOWN"}), plain&^(1<<unix.CAP_CHOWN))
		wantEqual(t, with("none", nil, []string{"ALL"}), uint64(0))
		wantEqual(t, with("one", []string{"NET_BIND_SERVICE"}, []string{"ALL"}), uint64(1<<unix.CAP_NET_BIND_SERVICE))
	}},
	{"read-only root", func(t *testing.T, c *cri) {
		p := c.pod(t, "readonly")
		got := p.prints(t, "c", "touch /x || true; touch /dev/shm/x && echo volumes are writable", secured(func(s *securityContext) { s.ReadonlyRootfs = true }))
		wantEqual(t, got, "touch: /x: Read-only file system\nvolumes are writable\n")
		wantEqual(t, p.prints(t, "d", "touch /x && echo writable"), "writable\n")
	}},
	{"no new privileges", func(t *testing.T, c *cri) {
		p := c.pod(t, "nnp")
		probe := "grep NoNewPrivs /proc/self/status"
		wantEqual(t, p.prints(t, "c", probe, secured(func(s *securityContext) { s.NoNewPrivs = true })), "NoNewPrivs:\t1\n")
		wantEqual(t, p.prints(t, "d", probe), "NoNewPrivs:\t0\n")
	}},
	{"seccomp profiles", func(t *testing.T, c *cri) {
		p := c.pod(t, "seccomp")
		file := filepath.Join(t.TempDir(), "profile.json")
		rules := `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 122}]}`
		if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
		with := func(name string, profile *criapi.SecurityProfile) string {
			return p.prints(t, name, "grep Seccomp: /proc/self/status; unshare -U true 2>/dev/null && echo a user namespace || echo none; mkdir /d || true",
				secured(func(s *securityContext) { s.Seccomp = profile }))
		}
		wantEqual(t, with("default", &criapi.SecurityProfile{ProfileType: criapi.SecurityProfile_RuntimeDefault}), "Seccomp:\t2\nnone\n")
		wantEqual(t, with("unconfined", &criapi.SecurityProfile{ProfileType: criapi.SecurityProfile_Unconfined}), "Seccomp:\t0\na user namespace\n")
		wantEqual(t, with("own", &criapi.SecurityProfile{ProfileType: criapi.SecurityProfile_Localhost, LocalhostRef: file}),
			"Seccomp:\t2\na user namespace\nmkdir: can't create directory '/d': Disk quota exceeded\n")
	}},
	{"masked and read-only paths", func(t *testing.T, c *cri) {
		got := c.pod(t, "masked").prints(t, "c", "wc -c < /proc/meminfo; ls /proc/fs | wc -l; (echo 1 > /proc/sys/kernel/shm_rmid_forced) || true", secured(func(s *securityContext) {
			s.MaskedPaths = []string{"/proc/meminfo", "/proc/fs", "/proc/nonsense"}
			s.ReadonlyPaths = []string{"/proc/sys"}
		}))
		wantEqual(t, got, "0\n0\nsh: can't create /proc/sys/kernel/shm_rmid_forced: Read-only file system\n")
	}},
	{"cgroups are read-only", func(t *testing.T, c *cri) {
		got := c.pod(t, "cgroups").prints(t, "c", "mkdir /sys/fs/cgroup/memory/x || true")
		wantEqual(t, got, "mkdir: can't create directory '/sys/fs/cgroup/memory/x': Read-only file system\n")
	}},
	{"host's ipc namespace", func(t *testing.T, c *cri) {
		p := c.pod(t, "hostipc", func(config *criapi.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Ipc = criapi.NamespaceMode_NODE
		})
		got := p.prints(t, "c", "readlink /proc/self/ns/ipc", secured(func(s *securityContext) { s.NamespaceOptions.Ipc = criapi.NamespaceMode_NODE }))
		wantEqual(t, strings.TrimSpace(got), link(t, "/proc/self/ns/ipc"))
	}},
	{"privileged", func(t *testing.T, c *cri) {
		p := c.pod(t, "privileged", func(config *criapi.PodSandboxConfig) { config.Linux.SecurityContext.Privileged = true })
		got := p.prints(t, "c", "mkdir /m && mount -t tmpfs none /m && touch /m/f && echo mounted; test -e /dev/loop-control && echo devices", secured(func(s *securityContext) { s.Privileged = true }))
		wantEqual(t, got, "mounted\ndevices\n")
	}},
}
