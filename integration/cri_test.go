package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A cri is a containerd that is used as a node's kubelet uses it: by the
// Container Runtime Interface, which crictl too speaks. The binary under test
// is the runtime handler "sandbox", as a RuntimeClass would name it; the
// default handler is runc.
type cri struct {
	*containerd
	api    criapi.RuntimeServiceClient
	images criapi.ImageServiceClient
}

const (
	criBridge = "cri0"
	criImage  = "example.com/busybox:test"
	pauseID   = "example.com/pause:test"
	criRoot   = "/run/containerd/cri-options" // the state root of the handler "options"
)

func startCRI(t *testing.T) *cri {
	t.Helper()
	network := filepath.Join(t.TempDir(), "net")
	c := &cri{containerd: startContainerd(t, criSettings(t, network))}
	c.prepare(t)
	return c
}

// prepare imports the images, connects, and removes the ground of pods at the test's end.
func (c *cri) prepare(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { // while containerd still runs, but after the last pod
		if bridge, err := netlink.LinkByName(criBridge); err == nil {
			if err := netlink.LinkDel(bridge); err != nil {
				t.Error(err)
			}
		}
		removeGround(t, "k8s.io")
		for _, dir := range []string{"/var/lib/cni/results", "/var/lib/cni"} { // made by the first pod
			_ = os.Remove(dir) // unless there is something else in it
		}
	})
	c.importImage(t, "k8s.io", pauseID, imageConfig{Entrypoint: []string{"/bin/sleep", "1000000"}})
	c.importImage(t, "k8s.io", criImage, imageConfig{Env: []string{"PATH=/bin", "FROM=image"}})
	c.dial(t)
	c.ready(t)
	// It is told of an image after that was imported, and would pull what it misses.
	eventually(t, "the CRI plugin knows the images", func() bool { return c.knows(t, pauseID) && c.knows(t, criImage) })
}

// criSettings is the part of config.toml for the CRI plugin, with a network of
// a bridge that lives in the test's world. Its restrict_oom_score_adj is for
// hosts where root has no CAP_SYS_RESOURCE, as in most containers.
func criSettings(t *testing.T, network string) string {
	t.Helper()
	writeNetwork(t, network)
	return fmt.Sprintf(`
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  stats_collect_period = 1
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = %q
  conf_dir = %q
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    BinaryName = %q
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.sandbox]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.sandbox.options]
    BinaryName = %[5]q
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.options]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.options.options]
    BinaryName = %[5]q
    NoPivotRoot = true
    NoNewKeyring = true
    Root = %[6]q
`, pauseID, peer("usr/lib/cni"), network, peer("bin/runc"), binary(t), criRoot)
}

// writeNetwork makes a folder with the configuration of the pods' network.
func writeNetwork(t *testing.T, network string) {
	t.Helper()
	conf := fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "test", "plugins": [{
  "type": "bridge", "bridge": %q, "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/16"}]]}
}]}`, criBridge, filepath.Join(network, "addresses"))
	if err := os.MkdirAll(network, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(network, "test.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
}

// dial connects, once: the connection outlives a restart of containerd.
func (c *cri) dial(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+c.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c.api, c.images = criapi.NewRuntimeServiceClient(conn), criapi.NewImageServiceClient(conn)
}

func (c *cri) knows(t *testing.T, image string) bool {
	t.Helper()
	return ask(t, c.images.ImageStatus, &criapi.ImageStatusRequest{Image: &criapi.ImageSpec{Image: image}}).Image != nil
}

// ready waits for the plugin and its network.
func (c *cri) ready(t *testing.T) {
	t.Helper()
	eventually(t, "the CRI plugin is ready", func() bool {
		answer, err := c.api.Status(context.Background(), &criapi.StatusRequest{})
		if err != nil {
			return false
		}
		for _, condition := range answer.Status.Conditions {
			// containerd 2 has a condition that is false while a setting is deprecated.
			if !condition.Status && (condition.Type == criapi.RuntimeReady || condition.Type == criapi.NetworkReady) {
				return false
			}
		}
		return true
	})
}

// ask makes a call that must succeed.
func ask[Q, A any](t testing.TB, call func(context.Context, Q, ...grpc.CallOption) (A, error), question Q) A {
	t.Helper()
	answer, err := try(call, question)
	if err != nil {
		t.Fatalf("%T: %v", question, err)
	}
	return answer
}

func try[Q, A any](call func(context.Context, Q, ...grpc.CallOption) (A, error), question Q) (A, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return call(ctx, question)
}

// refuses makes a call that must fail with a reason.
func refuses[Q, A any](t testing.TB, why string, call func(context.Context, Q, ...grpc.CallOption) (A, error), question Q) {
	t.Helper()
	if _, err := try(call, question); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("%T: got %v, want a failure with %q", question, err, why)
	}
}

// A pod is a pod sandbox; its logs lie in a folder of the test's.
type pod struct {
	*cri
	id     string
	config *criapi.PodSandboxConfig
}

// pod runs a pod that the test's end stops and removes.
func (c *cri) pod(t *testing.T, name string, changes ...func(*criapi.PodSandboxConfig)) *pod {
	t.Helper()
	return c.podOf(t, "sandbox", name, changes...)
}

// podOf runs a pod of a runtime handler.
func (c *cri) podOf(t *testing.T, handler, name string, changes ...func(*criapi.PodSandboxConfig)) *pod {
	t.Helper()
	p := &pod{cri: c, config: podConfig(t, name, changes...)}
	p.id = ask(t, c.api.RunPodSandbox, &criapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: handler}).PodSandboxId
	t.Cleanup(func() { p.remove(t) })
	return p
}

func podConfig(t *testing.T, name string, changes ...func(*criapi.PodSandboxConfig)) *criapi.PodSandboxConfig {
	t.Helper()
	config := &criapi.PodSandboxConfig{
		Metadata:     &criapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "test"},
		Hostname:     name,
		LogDirectory: t.TempDir(),
		Linux: &criapi.LinuxPodSandboxConfig{SecurityContext: &criapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &criapi.NamespaceOption{Pid: criapi.NamespaceMode_CONTAINER},
		}},
	}
	for _, change := range changes {
		change(config)
	}
	return config
}

// remove stops and removes the pod, if it is still there.
func (p *pod) remove(t *testing.T) {
	t.Helper()
	_, err := try(p.api.StopPodSandbox, &criapi.StopPodSandboxRequest{PodSandboxId: p.id})
	if status.Code(err) == codes.NotFound {
		return
	}
	if err != nil && strings.Contains(err.Error(), "ttrpc: closed") {
		// A container ended, and its shim with it, while containerd 1.6 wanted to kill the container. The kubelet
		// asks again, too.
		_, err = try(p.api.StopPodSandbox, &criapi.StopPodSandboxRequest{PodSandboxId: p.id})
	}
	if err != nil {
		t.Errorf("stop pod: %v", err)
	}
	if _, err := try(p.api.RemovePodSandbox, &criapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Errorf("remove pod: %v", err)
	}
}

func (p *pod) status(t *testing.T) *criapi.PodSandboxStatus {
	t.Helper()
	return ask(t, p.api.PodSandboxStatus, &criapi.PodSandboxStatusRequest{PodSandboxId: p.id}).Status
}

// A podContainer is a container in a pod.
type podContainer struct {
	*pod
	id  string
	log string
}

// create creates a container that runs a script. The pod's end removes it.
func (p *pod) create(t *testing.T, name, script string, changes ...func(*criapi.ContainerConfig)) *podContainer {
	t.Helper()
	config := containerConfig(name, script, changes...)
	id := ask(t, p.api.CreateContainer, &criapi.CreateContainerRequest{PodSandboxId: p.id, Config: config, SandboxConfig: p.config}).ContainerId
	return &podContainer{pod: p, id: id, log: filepath.Join(p.config.LogDirectory, config.LogPath)}
}

func containerConfig(name, script string, changes ...func(*criapi.ContainerConfig)) *criapi.ContainerConfig {
	config := &criapi.ContainerConfig{
		Metadata: &criapi.ContainerMetadata{Name: name},
		Image:    &criapi.ImageSpec{Image: criImage},
		Command:  []string{"sh", "-c", script},
		LogPath:  name + ".log",
		Linux: &criapi.LinuxContainerConfig{
			Resources: &criapi.LinuxContainerResources{},
			SecurityContext: &criapi.LinuxContainerSecurityContext{
				NamespaceOptions: &criapi.NamespaceOption{Pid: criapi.NamespaceMode_CONTAINER},
			},
		},
	}
	for _, change := range changes {
		change(config)
	}
	return config
}

func (c *podContainer) start(t *testing.T) {
	t.Helper()
	ask(t, c.api.StartContainer, &criapi.StartContainerRequest{ContainerId: c.id})
}

// run creates and starts a container.
func (p *pod) run(t *testing.T, name, script string, changes ...func(*criapi.ContainerConfig)) *podContainer {
	t.Helper()
	c := p.create(t, name, script, changes...)
	c.start(t)
	return c
}

// prints returns what a script prints in a container of its own that must
// succeed, on both streams. It lives on until its pod ends.
func (p *pod) prints(t *testing.T, name, script string, changes ...func(*criapi.ContainerConfig)) string {
	t.Helper()
	c := p.run(t, name, livesOn("exec 2>&1; "+script), changes...)
	text, status := told(t, func() string { return c.logged(t, "stdout") })
	if status != 0 {
		t.Errorf("%s: status %d", script, status)
	}
	return text
}

func (c *podContainer) status(t *testing.T) *criapi.ContainerStatus {
	t.Helper()
	return ask(t, c.api.ContainerStatus, &criapi.ContainerStatusRequest{ContainerId: c.id}).Status
}

// exited waits for the container's end and returns how it ended.
func (c *podContainer) exited(t *testing.T) *criapi.ContainerStatus {
	t.Helper()
	var last *criapi.ContainerStatus
	eventually(t, "container "+c.id+" exited", func() bool {
		last = c.status(t)
		return last.State == criapi.ContainerState_CONTAINER_EXITED
	})
	return last
}

// logged returns what is in the log of one stream:
// "2016-10-06T00:17:09.669794202Z stdout F the line".
func (c *podContainer) logged(t *testing.T, stream string) string {
	t.Helper()
	data, err := os.ReadFile(c.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var text strings.Builder
	for line := range strings.Lines(string(data)) {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 && f[1] == stream {
			text.WriteString(f[3])
		}
	}
	return text.String()
}

func (c *podContainer) logs(t *testing.T, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the log is %q", text), func() bool { return c.logged(t, "stdout") == text })
}

// untilFile is a script that waits for a file of the test's, which a container
// with the folder has: an exec that makes it could be killed by the end it makes.
func untilFile(name string) string {
	return "until test -e /test/" + name + "; do usleep 10000; done; "
}

func folder(dir string) func(*criapi.ContainerConfig) {
	return func(config *criapi.ContainerConfig) {
		config.Mounts = []*criapi.Mount{{HostPath: dir, ContainerPath: "/test", Readonly: true}}
	}
}

// execute runs a script in the container.
func (c *podContainer) execute(t *testing.T, script string) result {
	t.Helper()
	got := ask(t, c.api.ExecSync, &criapi.ExecSyncRequest{ContainerId: c.id, Cmd: []string{"sh", "-c", script}, Timeout: int64(patience / time.Second)})
	return result{int(got.ExitCode), string(got.Stdout), string(got.Stderr)}
}

// criCase is a case of one of the tests below, each with a containerd for all
// its cases.
type criCase struct {
	name string
	test func(*testing.T, *cri)
}

// warmUp runs a first pod: what containerd and its network make once is there
// from then on.
func (c *cri) warmUp(t *testing.T) {
	t.Helper()
	before := processes(t)
	p := &pod{cri: c, config: podConfig(t, "first")}
	got, err := try(c.api.RunPodSandbox, &criapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: "sandbox"})
	if err != nil { // with a runtime this broken, each case is to say so
		t.Error(err)
		return
	}
	p.id = got.PodSandboxId
	p.remove(t)
	keepersGo(t, before)
}

func testCRI(t *testing.T, cases []criCase) {
	t.Helper()
	leavesNothing(t)
	need(t, peers())
	c := startCRI(t)
	c.warmUp(t)
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			test.test(t, c)
		})
	}
}

func TestCRIPods(t *testing.T) { testCRI(t, criPodCases) }

func TestCRIContainers(t *testing.T) {
	testhost.Long(t)
	testCRI(t, criContainerCases)
}

func TestCRISecurity(t *testing.T) {
	testhost.Long(t)
	testCRI(t, criSecurityCases)
}

// pid returns the container's first process, as the host numbers it.
func (c *podContainer) pid(t *testing.T) int {
	t.Helper()
	var info struct{ Pid int }
	answer := ask(t, c.api.ContainerStatus, &criapi.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	decode(t, answer.Info["info"], &info)
	if info.Pid == 0 {
		t.Fatalf("container %s has no process", c.id)
	}
	return info.Pid
}
