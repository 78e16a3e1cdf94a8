package integration

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A kubernetes is a cluster of one node: etcd, kube-apiserver, a kubelet and containerd 2.
// There is no scheduler and no controller manager: each pod names its node. The daemons run
// in the test's world, the kubelet in a mount namespace of its own below that.
type kubernetes struct {
	*cri
	kubelet *testProcess
}

const (
	nodeLink    = "node0" // the node's address is on it, for a kubelet refuses that of lo
	nodeAddress = "10.89.0.1"
	kubeToken   = "test"
)

// kubernetesFolder is where setup-kubernetes put the programs, empty if it did not run.
var kubernetesFolder = sync.OnceValue(func() string {
	path, err := exec.Command("./setup-kubernetes", "-n").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(path))
})

// kubernetesSetup says that setup-kubernetes did not run.
func kubernetesSetup() string {
	if kubernetesFolder() == "" {
		return "no Kubernetes: run integration/setup-kubernetes"
	}
	return ""
}

// kmsg says that the kubelet cannot read the kernel's messages. It does not start then.
func kmsg() string {
	f, err := os.Open("/dev/kmsg")
	if err != nil {
		return fmt.Sprintf("no Kubernetes: %v", err)
	}
	f.Close()
	return ""
}

func startKubernetes(t *testing.T) *kubernetes {
	t.Helper()
	k := &kubernetes{cri: startNewCRI(t)}
	k.addNode(t)
	k.startServer(t)
	k.startKubelet(t)
	k.apply(t, `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: sandbox-runtime}
handler: sandbox
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: runc}
handler: runc
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default}
automountServiceAccountToken: false
`)
	k.must(t, "wait", "--for=condition=Ready", "--timeout", kubeTimeout, "node/node")
	return k
}

// startNewCRI starts containerd 2 for pods. Its default is runc. register has added the handler
// "sandbox".
func startNewCRI(t *testing.T) *cri {
	t.Helper()
	ownEtc(t)
	root, err := busyboxRoot()
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{t: t, home: openFolder(t), runtime: installed, root: root, folder: kubernetesFolder()}
	network := filepath.Join(c.home, "net")
	writeNetwork(t, network)
	c.settings = c.file(t, "config.toml", fmt.Sprintf(`version = 3
root = %q
state = %q
[grpc]
  address = %q
[plugins.'io.containerd.internal.v1.opt']
  path = %q
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [%q]
  conf_dir = %q
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = %q
`, filepath.Join(c.home, "root"), filepath.Join(c.home, "state"), c.socket(), filepath.Join(c.home, "opt"),
		pauseID, peer("usr/lib/cni"), network, peer("bin/runc")))
	register(t, "containerd", "--config", c.settings, "--write")
	c.start(t)
	node := &cri{containerd: c}
	node.prepare(t)
	return node
}

// file writes a file in the home and returns its path.
func (c *containerd) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(c.home, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// folderIn makes a folder in the home and returns its path.
func (c *containerd) folderIn(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(c.home, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// addNode makes the link with the node's address.
func (k *kubernetes) addNode(t *testing.T) {
	t.Helper()
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: nodeLink}}
	address, err := netlink.ParseAddr(nodeAddress + "/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	if err := netlink.AddrAdd(link, address); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

// startServer starts etcd and the API server, which trusts each caller with the token.
func (k *kubernetes) startServer(t *testing.T) {
	t.Helper()
	const etcd = "http://127.0.0.1:2379"
	k.daemon(t, "etcd", "--data-dir", k.folderIn(t, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync")
	key := k.file(t, "key", newKey(t))
	server := k.daemon(t, "kube-apiserver", "--etcd-servers", etcd, "--bind-address", nodeAddress, "--advertise-address", nodeAddress,
		"--cert-dir", k.folderIn(t, "certificates"), "--token-auth-file", k.file(t, "tokens", kubeToken+",test,test,system:masters\n"),
		"--authorization-mode", "RBAC", "--anonymous-auth=false", "--allow-privileged",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", "10.96.0.0/24", "--endpoint-reconciler-type", "none", "--kubelet-preferred-address-types", "InternalIP")
	k.file(t, "kubeconfig", fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s:6443", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, nodeAddress, kubeToken))
	eventually(t, "the API server is ready", func() bool {
		if server.ended() {
			t.Fatalf("kube-apiserver: %s", lastLines(server.stderr(), 20))
		}
		return k.kubectl("get", "--raw", "/readyz").Run() == nil && k.kubectl("get", "namespace", "default").Run() == nil
	})
}

// newKey is a private key for the tokens of service accounts.
func newKey(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

// kubeletMounts is a script that starts the kubelet in a mount namespace of its own. The
// kubelet writes to /run, /var/lib and /var/log: they are empty there. It sets six sysctls of
// the whole machine, and fails if it cannot: files with the values it wants lie over them, so
// it leaves them alone. Its arguments are the folder for these files, and the command.
const kubeletMounts = `set -e
dir=$1; shift
for at in /run /var/lib /var/log; do mount -n -t tmpfs tmpfs $at; done
over() {
	file=$dir/$(basename $1)
	echo $2 > $file
	mount -n --bind $file /proc/sys/$1
}
over vm/overcommit_memory 1
over vm/panic_on_oom 0
over kernel/panic 10
over kernel/panic_on_oops 1
over kernel/keys/root_maxkeys 1000000
over kernel/keys/root_maxbytes 25000000
exec "$@"
`

// startKubelet starts the kubelet. Its volumes are mounted in a tree that it shares with
// containerd.
func (k *kubernetes) startKubelet(t *testing.T) {
	t.Helper()
	root := k.folderIn(t, "kubelet")
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // with all that the kubelet has left mounted in it
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", root, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	config := k.file(t, "kubelet.yaml", fmt.Sprintf(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%s
address: %s
podLogsDir: %s
volumePluginDir: %s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: true
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
`, k.socket(), nodeAddress, k.folderIn(t, "logs"), k.folderIn(t, "plugins")))
	t.Cleanup(func() { // the groups of pods, after the kubelet that makes them again
		removeGround(t, "kubepods")
	})
	cmd := exec.Command("/bin/sh", "-c", kubeletMounts, "sh", k.folderIn(t, "sysctls"), k.program("kubelet"),
		"--config", config, "--kubeconfig", filepath.Join(k.home, "kubeconfig"), "--root-dir", root,
		"--hostname-override", "node", "--node-ip", nodeAddress)
	cmd.Env = peerEnvironment(k.home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	t.Cleanup(func() { k.removePods(t) }) // after the kubelet, which does so some time later
	k.kubelet = daemon(t, cmd, func() {})
	eventually(t, "the kubelet registers its node", func() bool {
		if k.kubelet.ended() {
			t.Fatalf("kubelet: %s", lastLines(k.kubelet.stderr(), 20))
		}
		return k.kubectl("get", "node", "node").Run() == nil
	})
}

// removePods stops and removes all pods by the CRI.
func (k *kubernetes) removePods(t *testing.T) {
	t.Helper()
	for _, p := range ask(t, k.api.ListPodSandbox, &criapi.ListPodSandboxRequest{}).Items {
		if p.State == criapi.PodSandboxState_SANDBOX_READY {
			ask(t, k.api.StopPodSandbox, &criapi.StopPodSandboxRequest{PodSandboxId: p.Id})
		}
		ask(t, k.api.RemovePodSandbox, &criapi.RemovePodSandboxRequest{PodSandboxId: p.Id})
	}
}

// daemon starts a daemon that the test's end stops.
func (k *kubernetes) daemon(t *testing.T, name string, args ...string) *testProcess {
	t.Helper()
	cmd := exec.Command(k.program(name), args...)
	cmd.Env = peerEnvironment(k.home)
	return daemon(t, cmd, func() {})
}

func (k *kubernetes) kubectl(args ...string) *exec.Cmd {
	cmd := exec.Command(k.program("kubectl"), append([]string{"--kubeconfig", filepath.Join(k.home, "kubeconfig")}, args...)...)
	cmd.Env = peerEnvironment(k.home)
	return cmd
}

// must returns what a kubectl command that works prints.
func (k *kubernetes) must(t *testing.T, args ...string) string {
	t.Helper()
	got := run(t, k.kubectl(args...))
	if got.code != 0 {
		t.Fatalf("kubectl %q: %+v", args, got)
	}
	return got.stdout
}

// apply creates objects.
func (k *kubernetes) apply(t *testing.T, manifest string) {
	t.Helper()
	cmd := k.kubectl("apply", "--filename", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if got := run(t, cmd); got.code != 0 {
		t.Fatalf("apply: %+v\n%s", got, manifest)
	}
}
