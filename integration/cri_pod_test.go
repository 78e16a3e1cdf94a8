package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func hostNetwork(config *criapi.PodSandboxConfig) {
	config.Hostname = "" // it is the host's
	config.Linux.SecurityContext.NamespaceOptions.Network = criapi.NamespaceMode_NODE
}

// sharedPID is a container in the pod's pid namespace.
func sharedPID(config *criapi.ContainerConfig) {
	config.Linux.SecurityContext.NamespaceOptions.Pid = criapi.NamespaceMode_POD
}

func podPID(config *criapi.PodSandboxConfig) {
	config.Linux.SecurityContext.NamespaceOptions.Pid = criapi.NamespaceMode_POD
}

var criPodCases = []criCase{
	{"life", func(t *testing.T, c *cri) {
		p := c.pod(t, "life")
		status := p.status(t)
		wantEqual(t, status.State, criapi.PodSandboxState_SANDBOX_READY)
		wantEqual(t, status.RuntimeHandler, "sandbox")
		if !strings.HasPrefix(status.Network.Ip, "10.88.") {
			t.Errorf("address %q", status.Network.Ip)
		}
		ask(t, c.api.StopPodSandbox, &criapi.StopPodSandboxRequest{PodSandboxId: p.id})
		wantEqual(t, p.status(t).State, criapi.PodSandboxState_SANDBOX_NOTREADY)
		ask(t, c.api.RemovePodSandbox, &criapi.RemovePodSandboxRequest{PodSandboxId: p.id})
		refuses(t, "not found", c.api.PodSandboxStatus, &criapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	}},
	{"the handler is the binary", func(t *testing.T, c *cri) {
		p := c.pod(t, "handler")
		var state containerState
		decode(t, run(t, exec.Command(c.runtime, "--root", "/run/containerd/runc/k8s.io", "state", p.id)).stdout, &state)
		wantEqual(t, state.Status, "running")
		wantEqual(t, state.Annotations["io.kubernetes.cri.sandbox-name"], "handler")
	}},
	{"beside the default handler", func(t *testing.T, c *cri) {
		other := c.podOf(t, "", "default")
		wantEqual(t, c.pod(t, "ours").prints(t, "c", "echo ours"), "ours\n")
		wantEqual(t, other.prints(t, "c", "echo default"), "default\n")
	}},
	{"unknown handler", func(t *testing.T, c *cri) {
		wantEqual(t, c.pod(t, "known").status(t).State, criapi.PodSandboxState_SANDBOX_READY)
		refuses(t, `no runtime for "nonsense"`, c.api.RunPodSandbox, &criapi.RunPodSandboxRequest{Config: podConfig(t, "unknown"), RuntimeHandler: "nonsense"})
	}},
	{"handler with options", func(t *testing.T, c *cri) {
		t.Cleanup(func() { _ = os.RemoveAll(criRoot) }) // before, the pod goes
		p := c.podOf(t, "options", "options")
		if _, err := os.Stat(filepath.Join(criRoot, "k8s.io", p.id)); err != nil {
			t.Errorf("the state root is not the handler's: %v", err)
		}
		wantEqual(t, p.prints(t, "c", "echo works"), "works\n")
	}},
	{"hostname and DNS", func(t *testing.T, c *cri) {
		p := c.pod(t, "named", func(config *criapi.PodSandboxConfig) {
			config.DnsConfig = &criapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"svc.cluster.local"}}
		})
		wantEqual(t, p.prints(t, "c", "hostname; cat /etc/hostname /etc/resolv.conf"), "named\nnamed\nsearch svc.cluster.local\nnameserver 10.0.0.10\n")
	}},
	{"sysctls", func(t *testing.T, c *cri) {
		p := c.pod(t, "sysctls", func(config *criapi.PodSandboxConfig) {
			config.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "80", "kernel.shm_rmid_forced": "1"}
		})
		wantEqual(t, p.prints(t, "c", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced"), "80\n1\n")
	}},
	{"own network", func(t *testing.T, c *cri) {
		p := c.pod(t, "network")
		wantEqual(t, p.prints(t, "c", "ls /sys/class/net"), "eth0\nlo\n")
		got := p.prints(t, "d", "ip -4 -o addr show eth0 | awk '{ print $4 }'; ip route | cut -d' ' -f1-3")
		if want := p.status(t).Network.Ip + "/16\n10.88.0.0/16 dev eth0\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}},
	{"host network", func(t *testing.T, c *cri) {
		p := c.pod(t, "hostnet", hostNetwork)
		got := p.prints(t, "c", "readlink /proc/self/ns/net", func(config *criapi.ContainerConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Network = criapi.NamespaceMode_NODE
		})
		wantEqual(t, strings.TrimSpace(got), link(t, "/proc/self/ns/net"))
	}},
	{"containers talk over localhost", func(t *testing.T, c *cri) {
		p := c.pod(t, "local")
		p.run(t, "server", "mkdir /www && echo served > /www/f && exec httpd -f -p 127.0.0.1:8080 -h /www")
		wantEqual(t, p.prints(t, "client", "until wget -q -O- http://127.0.0.1:8080/f 2>/dev/null; do usleep 50000; done"), "served\n")
	}},
	{"pods talk over the bridge", func(t *testing.T, c *cri) {
		server := c.pod(t, "server")
		server.run(t, "c", "mkdir /www && echo served > /www/f && exec httpd -f -p 8080 -h /www")
		got := c.pod(t, "client").prints(t, "c", "until wget -q -O- http://"+server.status(t).Network.Ip+":8080/f 2>/dev/null; do usleep 50000; done")
		wantEqual(t, got, "served\n")
	}},
	{"port forward", func(t *testing.T, c *cri) {
		p := c.pod(t, "forward")
		server := p.run(t, "c", "echo up; while :; do echo served | nc -l -p 8080; done")
		server.logs(t, "up\n")
		eventually(t, "it listens", func() bool { return server.execute(t, "netstat -tln | grep -q :8080").code == 0 })
		forward := ask(t, c.api.PortForward, &criapi.PortForwardRequest{PodSandboxId: p.id, Port: []int32{8080}})
		s := openStream(t, forward.Url+"?port=8080")
		s.shows(t, 0, "served\n")
		wantEqual(t, s.content(0)[:2], "\x90\x1f") // the port, little endian
	}},
	{"shared pid namespace", func(t *testing.T, c *cri) {
		p := c.pod(t, "pids", podPID)
		p.run(t, "a", "exec sleep 4321", sharedPID)
		wantEqual(t, p.prints(t, "b", "until ps | grep -q 'sleep 432[1]'; do usleep 50000; done; cat /proc/1/cmdline | tr '\\0' ' '", sharedPID), "/bin/sleep 1000000 ")
	}},
	{"own pid namespaces", func(t *testing.T, c *cri) {
		p := c.pod(t, "pids")
		p.run(t, "a", "exec sleep 4321")
		wantEqual(t, p.prints(t, "b", "cat /proc/1/comm; ps | grep -c 'sleep 432[1]' || true"), "sh\n0\n")
	}},
	{"pid namespace of another container", func(t *testing.T, c *cri) {
		p := c.pod(t, "target")
		target := p.run(t, "target", "exec sleep 4321")
		got := p.prints(t, "debugger", "until grep -qs sleep /proc/1/comm; do usleep 50000; done; cat /proc/1/cmdline | tr '\\0' ' '", func(config *criapi.ContainerConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Pid = criapi.NamespaceMode_TARGET
			config.Linux.SecurityContext.NamespaceOptions.TargetId = target.id
		})
		wantEqual(t, got, "sleep 4321 ")
	}},
	{"host's pid namespace", func(t *testing.T, c *cri) {
		node := func(o *criapi.NamespaceOption) { o.Pid = criapi.NamespaceMode_NODE }
		p := c.pod(t, "hostpid", func(config *criapi.PodSandboxConfig) { node(config.Linux.SecurityContext.NamespaceOptions) })
		got := p.prints(t, "c", "readlink /proc/self/ns/pid", func(config *criapi.ContainerConfig) {
			node(config.Linux.SecurityContext.NamespaceOptions)
		})
		wantEqual(t, strings.TrimSpace(got), link(t, "/proc/self/ns/pid"))
	}},
	{"shared memory of the pod", func(t *testing.T, c *cri) {
		p := c.pod(t, "shm")
		p.prints(t, "writer", "echo shared > /dev/shm/f")
		wantEqual(t, p.prints(t, "reader", "cat /dev/shm/f"), "shared\n")
		a, b := p.prints(t, "a", "readlink /proc/self/ns/ipc"), p.prints(t, "b", "readlink /proc/self/ns/ipc")
		wantEqual(t, a, b)
		if strings.TrimSpace(a) == link(t, "/proc/self/ns/ipc") {
			t.Error("the host's")
		}
	}},
	{"cgroup parent", func(t *testing.T, c *cri) {
		parent := "/kubepods-test/pod1"
		t.Cleanup(func() { removeGround(t, "kubepods-test") }) // before, the pod goes
		p := c.pod(t, "parent", func(config *criapi.PodSandboxConfig) { config.Linux.CgroupParent = parent })
		ctr := p.run(t, "c", "exec sleep 1000")
		for _, group := range cgroupsOf(t, ctr.pid(t)) {
			if group != parent+"/"+ctr.id && strings.Contains(group, ctr.id) {
				t.Errorf("in %s", group)
			}
		}
		if group := groupByController(t, ctr.pid(t), "memory"); !strings.HasSuffix(group, parent+"/"+ctr.id) {
			t.Errorf("in %s", group)
		}
	}},
	{"stop ends what runs", func(t *testing.T, c *cri) {
		p := c.pod(t, "stopped")
		ctr := p.run(t, "c", "exec sleep 1000")
		pid := ctr.pid(t)
		ask(t, c.api.StopPodSandbox, &criapi.StopPodSandboxRequest{PodSandboxId: p.id})
		wantEqual(t, ctr.status(t).ExitCode, 137)
		if alive(pid) {
			t.Error("still alive")
		}
		refuses(t, "sandbox container", c.api.CreateContainer, &criapi.CreateContainerRequest{PodSandboxId: p.id, Config: containerConfig("late", "true"), SandboxConfig: p.config})
	}},
	{"pod's first process dies", func(t *testing.T, c *cri) {
		p := c.pod(t, "dead")
		var state containerState
		decode(t, run(t, exec.Command(c.runtime, "--root", "/run/containerd/runc/k8s.io", "state", p.id)).stdout, &state)
		process, err := os.FindProcess(state.PID)
		if err == nil {
			err = process.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pod is not ready", func() bool {
			return p.status(t).State == criapi.PodSandboxState_SANDBOX_NOTREADY
		})
	}},
	{"ten in parallel", func(t *testing.T, c *cri) {
		for i := range 10 {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				p := c.pod(t, fmt.Sprintf("parallel%d", i))
				wantEqual(t, p.prints(t, "c", fmt.Sprintf("echo %d", i)), fmt.Sprintf("%d\n", i))
			})
		}
	}},
}

// TestCRIRestart holds that pods outlive their containerd.
func TestCRIRestart(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers())
	c := startCRI(t)
	p := c.pod(t, "survivor")
	ctr := p.run(t, "c", "trap 'exit 3' TERM; echo up; while :; do usleep 10000; done")
	ctr.logs(t, "up\n")
	ended := p.run(t, "ended", "exec sleep 1000")
	pid := ended.pid(t)

	interrupt(t, c.process)
	if process, err := os.FindProcess(pid); err != nil || process.Kill() != nil {
		t.Fatal("cannot kill", pid)
	}
	c.launch(t)
	c.ready(t)

	wantEqual(t, p.status(t).State, criapi.PodSandboxState_SANDBOX_READY)
	wantEqual(t, ctr.status(t).State, criapi.ContainerState_CONTAINER_RUNNING)
	wantEqual(t, ended.exited(t).ExitCode, 137)
	wantEqual(t, ctr.execute(t, "cat /proc/1/comm; exit 9"), result{code: 9, stdout: "sh\n"})
	ask(t, c.api.StopContainer, &criapi.StopContainerRequest{ContainerId: ctr.id, Timeout: 20})
	wantEqual(t, ctr.exited(t).ExitCode, 3)
	wantEqual(t, p.prints(t, "after", "echo after"), "after\n")
}
