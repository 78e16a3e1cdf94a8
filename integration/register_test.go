package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// installed is where a user puts the binary. register refuses the places where
// tests are at home.
const installed = "/usr/local/bin/sandbox-runtime"

// ownEtc gives the test an /etc and a /usr/local/bin that it may write to, with
// the binary installed: the host's are below and stay as they are.
func ownEtc(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"/etc", "/usr/local/bin"} {
		layers := t.TempDir()
		upper, work := filepath.Join(layers, "upper"), filepath.Join(layers, "work")
		for _, d := range []string{upper, work} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
			t.Fatalf("mount over %s: %v", dir, err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Errorf("unmount %s: %v", dir, err)
			}
		})
	}
	for _, dir := range []string{"docker", "containerd", "containers"} { // of the host's own engines
		if err := os.RemoveAll(filepath.Join("/etc", dir)); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(installed, program, 0o755); err != nil {
		t.Fatal(err)
	}
}

// register runs the installed binary's register, and returns what it printed.
func register(t *testing.T, args ...string) string {
	t.Helper()
	got := run(t, exec.Command(installed, append([]string{"register"}, args...)...))
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("register %q: %+v", args, got)
	}
	return got.stdout
}

func writeConfig(t *testing.T, path, config string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(config), 0o640); err != nil {
		t.Fatal(err)
	}
}

// TestRegisterDocker: a dockerd that runs already takes the runtime on SIGHUP;
// one that starts has it as default.
func TestRegisterDocker(t *testing.T) {
	leavesNothing(t)
	need(t, peers(), world())
	ownEtc(t)
	const file = "/etc/docker/daemon.json"
	const before = "{\n  \"exec-opts\": [\"native.cgroupdriver=cgroupfs\"],\n  \"max-concurrent-downloads\": 7\n}\n"
	writeConfig(t, file, before)
	d, process := startDockerd(t)
	runtimes := func() string {
		return run(t, d.client("info", "--format", "{{range $name, $r := .Runtimes}}{{$name}}={{$r.Path}} {{end}}{{.DefaultRuntime}}")).stdout
	}
	runWith := []string{"run", "--rm", "--runtime", "sandbox", "busybox", "echo", "hello"}
	if got := run(t, d.client(runWith...)); got.code == 0 ||
		!strings.Contains(got.stderr, "Unknown runtime specified sandbox") && !strings.Contains(got.stderr, "unknown or invalid runtime name: sandbox") {
		t.Errorf("before it was registered: %+v", got)
	}

	if out := register(t, "docker", "--write"); !strings.Contains(out, "+       \"path\": \""+installed+"\"\n") || !strings.Contains(out, "systemctl reload docker") {
		t.Errorf("said %s", out)
	}
	reload(t, process)
	eventually(t, "dockerd knows the runtime", func() bool { return strings.Contains(runtimes(), "sandbox="+installed) })
	if got := run(t, d.client(runWith...)); got.code != 0 || got.stdout != "hello\n" {
		t.Errorf("got %+v", got)
	}

	if out := register(t, "docker", "--remove"); !strings.Contains(out, "-       \"path\": \""+installed+"\"\n") {
		t.Errorf("said %s", out)
	}
	if got := content(t, file); got != before {
		t.Errorf("left %s", got)
	}
	interrupt(t, process)

	register(t, "docker", "--write", "--default", "--name", "walled")
	d, _ = startDockerd(t)
	if got := runtimes(); !strings.HasSuffix(got, " walled\n") || strings.Contains(got, "sandbox=") {
		t.Errorf("dockerd's runtimes: %s", got)
	}
	if got := run(t, d.client("run", "--rm", "busybox", "echo", "hello")); got.code != 0 || got.stdout != "hello\n" {
		t.Errorf("as default: %+v", got)
	}
	register(t, "docker", "--remove", "--name", "walled")
	if got := content(t, file); got != before {
		t.Errorf("left %s", got)
	}
}

// TestRegisterDockerReload: a dockerd that reads the file again goes on, with its
// own default. dockerd 20.10 crashed without a default beside another runtime.
func TestRegisterDockerReload(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers(), world())
	ownEtc(t)
	const file = "/etc/docker/daemon.json"
	const other = "{\n  \"exec-opts\": [\"native.cgroupdriver=cgroupfs\"],\n  \"runtimes\": {\n    \"other\": {\n      \"path\": \"runc\"\n    }\n  }%s\n}\n"
	writeConfig(t, file, fmt.Sprintf(other, ""))
	register(t, "docker", "--write", "--default")
	d, process := startDockerd(t)
	info := func() string {
		return run(t, d.client("info", "--format", "{{range $name, $r := .Runtimes}}{{$name}} {{end}}{{.DefaultRuntime}}")).stdout
	}
	if got := info(); !strings.HasSuffix(got, " sandbox\n") {
		t.Errorf("dockerd's runtimes: %s", got)
	}
	if out := register(t, "docker", "--remove"); !strings.Contains(out, "systemctl restart docker") || !strings.Contains(out, "on a reload only if the file has another runtime") {
		t.Errorf("said %s", out)
	}
	if got, want := content(t, file), fmt.Sprintf(other, ",\n  \"default-runtime\": \"runc\""); got != want {
		t.Errorf("left %s", got)
	}
	reload(t, process)
	eventually(t, "dockerd has its own default again", func() bool {
		if process.ended() {
			t.Fatalf("dockerd: %s", lastLines(process.stderr(), 20))
		}
		return strings.HasSuffix(info(), " runc\n")
	})
	if got := info(); strings.Contains(got, "sandbox") || !strings.Contains(got, "other") {
		t.Errorf("dockerd's runtimes: %s", got)
	}
	interrupt(t, process)

	// The last runtime: only a dockerd that starts again forgets it. The file goes.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	register(t, "docker", "--write", "--default")
	d, process = startDockerd(t, "--exec-opt", "native.cgroupdriver=cgroupfs")
	register(t, "docker", "--remove")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file that register made is there: %v", err)
	}
	reload(t, process)
	eventually(t, "dockerd has read its configuration again", func() bool { return strings.Contains(process.stderr(), "Reloaded configuration") })
	if got := info(); !strings.Contains(got, "sandbox") {
		t.Errorf("dockerd forgot it on a reload: %s", got)
	}
	interrupt(t, process)
	d, _ = startDockerd(t, "--exec-opt", "native.cgroupdriver=cgroupfs")
	if got := info(); strings.Contains(got, "sandbox") {
		t.Errorf("dockerd's runtimes: %s", got)
	}
}

func reload(t *testing.T, daemon *testProcess) {
	t.Helper()
	if err := daemon.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// startDockerd starts one that reads /etc/docker/daemon.json.
func startDockerd(t *testing.T, flags ...string) (*docker, *testProcess) {
	t.Helper()
	d := newDocker(t)
	cmd := d.daemon(append([]string{
		"--host", d.socket(),
		"--data-root", filepath.Join(d.home, "data"), "--exec-root", filepath.Join(d.home, "exec"), "--pidfile", filepath.Join(d.home, "pid"),
	}, flags...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	process := daemon(t, cmd, func() { removeGround(t, "docker", "/run/docker", "/run/containerd") })
	eventually(t, "dockerd answers", func() bool {
		if process.ended() {
			t.Fatalf("dockerd: %s", lastLines(process.stderr(), 20))
		}
		return d.client("version").Run() == nil
	})
	importRoot(t, d.client("import", "-", "busybox"))
	return d, process
}

// TestRegisterContainerd: containerd reads what was written, keeps its own
// runtime, and loads its CRI plugin.
func TestRegisterContainerd(t *testing.T) {
	leavesNothing(t)
	need(t, peers(), world())
	ownEtc(t)
	const file = "/etc/containerd/config.toml"
	dump := func() string {
		t.Helper()
		what := "dump"
		if _, err := os.Stat(file); err != nil {
			what = "default" // dump wants a file
		}
		cmd := exec.Command(peer("usr/bin/containerd"), "config", what)
		cmd.Env = peerEnvironment(t.TempDir())
		got := run(t, cmd)
		if got.code != 0 {
			t.Fatalf("containerd: %s", got.stderr)
		}
		return got.stdout
	}
	for _, before := range []string{"", content(t, peer("etc/containerd/config.toml"))} {
		if before != "" {
			writeConfig(t, file, before)
		}
		plain := dump()
		if out := register(t, "containerd", "--write"); !strings.Contains(out, "systemctl restart containerd") {
			t.Errorf("said %s", out)
		}
		config := dump()
		for _, want := range []string{
			".containerd.runtimes.runc]", ".containerd.runtimes.sandbox]", ".containerd.runtimes.sandbox.options]",
			"BinaryName = \"" + installed + "\"", "default_runtime_name = \"runc\"",
		} {
			if !strings.Contains(config, want) {
				t.Errorf("no %s in\n%s", want, config)
			}
		}
		register(t, "containerd", "--remove")
		if _, err := os.Stat(file); before == "" && !os.IsNotExist(err) {
			t.Errorf("the file that register made is there: %v", err)
		}
		if before != "" && content(t, file) != before {
			t.Errorf("left %s", content(t, file))
		}
		if now := dump(); now != plain {
			t.Errorf("was\n%s\nis\n%s", plain, now)
		}
	}
}

// TestRegisteredContainerdLoadsCRI: the plugin that a kubelet talks to does not
// load where containerd's own runtime is missing from the file.
func TestRegisteredContainerdLoadsCRI(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers(), world())
	ownEtc(t)
	home := t.TempDir()
	const file = "/etc/containerd/config.toml"
	socket := filepath.Join(home, "s")
	writeConfig(t, file, fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n[plugins.\"io.containerd.internal.v1.opt\"]\npath = %q\n",
		filepath.Join(home, "root"), filepath.Join(home, "state"), socket, filepath.Join(home, "opt")))
	register(t, "containerd", "--write")
	cmd := exec.Command(peer("usr/bin/containerd"))
	cmd.Env = peerEnvironment(home)
	process := daemon(t, cmd, func() { removeGround(t, "default", "/run/containerd") })
	plugins := func() result {
		ctr := exec.Command(peer("usr/bin/ctr"), "--address", socket, "plugins", "ls")
		ctr.Env = peerEnvironment(home)
		return run(t, ctr)
	}
	eventually(t, "containerd answers", func() bool {
		if process.ended() {
			t.Fatalf("containerd: %s", lastLines(process.stderr(), 20))
		}
		return plugins().code == 0
	})
	for line := range strings.Lines(plugins().stdout) {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "cri" && f[3] == "ok" {
			return
		}
	}
	t.Errorf("the CRI plugin is not loaded: %s", plugins().stdout)
}

// TestRegisteredHandlerRunsAPod: what a node has configured stays in force, and
// a pod that names the new handler runs with the binary.
func TestRegisteredHandlerRunsAPod(t *testing.T) {
	leavesNothing(t)
	need(t, peers(), world())
	ownEtc(t)
	c := startCRI(t)
	before := content(t, c.settings)
	runPod := func() (*pod, error) {
		p := &pod{cri: c, config: podConfig(t, "walled")}
		answer, err := try(c.api.RunPodSandbox, &criapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: "walled"})
		if err == nil {
			p.id = answer.PodSandboxId
		}
		return p, err
	}
	listed := func() string {
		return run(t, exec.Command(installed, "--root", "/run/containerd/runc/k8s.io", "list", "--quiet")).stdout
	}
	restart := func() {
		t.Helper()
		interrupt(t, c.process)
		c.launch(t)
		c.ready(t)
	}
	if _, err := runPod(); err == nil || !strings.Contains(err.Error(), `no runtime for "walled"`) {
		t.Errorf("before it was registered: %v", err)
	}
	register(t, "containerd", "--write", "--name", "walled", "--config", c.settings)
	restart()
	p, err := runPod()
	if err != nil {
		t.Fatal(err)
	}
	defer p.remove(t) // a clean-up would come after containerd's end
	if got := p.prints(t, "hello", "echo hello"); got != "hello\n" {
		t.Errorf("printed %q", got)
	}
	if got := listed(); !strings.Contains(got, p.id) {
		t.Errorf("the pod %s is not where docs/containerd.md says: %s", p.id, got)
	}
	p.remove(t)
	register(t, "containerd", "--remove", "--name", "walled", "--config", c.settings)
	if got := content(t, c.settings); got != before {
		t.Errorf("left %s", got)
	}
	restart()
	if _, err := runPod(); err == nil || !strings.Contains(err.Error(), `no runtime for "walled"`) {
		t.Errorf("after it was removed: %v", err)
	}
}

// TestRegisterPodman: podman finds the runtime by its name, and does not once
// it was removed.
func TestRegisterPodman(t *testing.T) {
	leavesNothing(t)
	need(t, peers(), world())
	ownEtc(t)
	p := newPodman(t)
	// podman, and the one that conmon starts to clean up, are to read /etc.
	elsewhere := "CONTAINERS_CONF=" + p.in("containers.conf")
	writeConfig(t, "/etc/containers/containers.conf", strings.Replace(p.config(), strconv.Quote(elsewhere)+", ", "", 1))
	writeConfig(t, "/etc/containers/registries.conf", "")
	podman := func(args ...string) result {
		t.Helper()
		cmd := p.client()
		cmd.Args = append([]string{cmd.Args[0], "--tmpdir", podmanRun + "/tmp"}, args...)
		cmd.Env = slices.DeleteFunc(cmd.Env, func(e string) bool { return e == elsewhere })
		return run(t, cmd)
	}
	if got := podman("--runtime", "sandbox", "run", "--rm", "busybox", "echo", "hello"); got.code == 0 {
		t.Errorf("before it was registered: %+v", got)
	}
	register(t, "podman", "--write")
	if got := podman("--runtime", "sandbox", "run", "--rm", "busybox", "echo", "hello"); got.code != 0 || got.stdout != "hello\n" {
		t.Errorf("got %+v", got)
	}
	if got := podman("--runtime", "crun", "info", "--format", "{{.Host.OCIRuntime.Name}}"); got.code != 0 || got.stdout != "crun\n" {
		t.Errorf("podman's own runtimes: %+v", got)
	}
	// The runtime's words, without a log's time and level before them.
	if got := podman("--runtime", "sandbox", "run", "--rm", "busybox", "nonsense"); got.code != 127 ||
		!strings.HasPrefix(got.stderr, "Error: sandbox: sandbox-runtime create failed: ") || strings.Contains(got.stderr, "level=") {
		t.Errorf("a command that there is not: %+v", got)
	}
	register(t, "podman", "--write", "--default")
	if got := podman("info", "--format", "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}"); got.stdout != "sandbox "+installed+"\n" {
		t.Errorf("as default: %+v", got)
	}
	register(t, "podman", "--remove")
	if files, err := os.ReadDir("/etc/containers/containers.conf.d"); err != nil || len(files) != 0 {
		t.Errorf("left %v, %v", files, err)
	}
	if got := podman("--runtime", "sandbox", "run", "--rm", "busybox", "true"); got.code == 0 {
		t.Errorf("after it was removed: %+v", got)
	}
}

// TestRegisterPrints: without --write, what is on stdout can be taken from
// there, the rest is on stderr, and nothing is written.
func TestRegisterPrints(t *testing.T) {
	need(t, world())
	ownEtc(t)
	for engine, want := range map[string]string{
		"docker": "{\n    \"runtimes\": {\n        \"walled\": {\n            \"path\": \"" + installed + "\"\n        }\n    }\n}\n",
		"podman": "# begin sandbox-runtime register walled\nengine.runtimes.walled = [\"" + installed + "\"]\n# end sandbox-runtime register walled\n" +
			"\n# begin sandbox-runtime register (runtimes whose log podman reads)\n" +
			"engine.runtime_supports_json = [\"crun\", \"runc\", \"kata\", \"runsc\", \"youki\", \"krun\", \"walled\"]\n" +
			"# end sandbox-runtime register (runtimes whose log podman reads)\n",
	} {
		got := run(t, exec.Command(installed, "register", engine, "--name", "walled"))
		if got.code != 0 || got.stdout != want || !strings.Contains(got.stderr, "--write puts it there") {
			t.Errorf("%s: %+v", engine, got)
		}
		if _, err := os.Stat("/etc/" + engine); !os.IsNotExist(err) {
			t.Errorf("%s: something was written: %v", engine, err)
		}
		register(t, engine, "--write", "--name", "walled")
		if again := register(t, engine, "--write", "--name", "walled"); !strings.Contains(again, "already; nothing was changed") {
			t.Errorf("%s, written twice: %s", engine, again)
		}
		register(t, engine, "--remove", "--name", "walled")
		if again := register(t, engine, "--remove", "--name", "walled"); !strings.Contains(again, "has no runtime \"walled\"; nothing was changed") {
			t.Errorf("%s, removed twice: %s", engine, again)
		}
	}
}

// TestRegisterRefuses: nothing is written, and the way out is named.
func TestRegisterRefuses(t *testing.T) {
	need(t, world())
	ownEtc(t)
	writeConfig(t, "/etc/docker/daemon.json", "{\n  \"debug\": yes\n}")
	writeConfig(t, "/etc/containerd/config.toml", "version = 2\n[debug\n")
	writeConfig(t, "/etc/containers/containers.conf", "[engine]\nruntime = crun\n")
	away := filepath.Join(t.TempDir(), "sandbox-runtime")
	if err := os.Link(binary(t), away); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"/etc/docker/daemon.json:2: not JSON", []string{installed, "register", "docker", "--write"}},
		{"/etc/docker/daemon.json:2: not JSON", []string{installed, "register", "docker"}},
		{"/etc/docker/daemon.json:2: not JSON", []string{installed, "register", "docker", "--remove"}},
		{"/etc/containerd/config.toml:2: not TOML", []string{installed, "register", "containerd", "--write"}},
		{"/etc/containers/containers.conf:2: not TOML", []string{installed, "register", "podman", "--write"}},
		{"install -m 755 " + away, []string{away, "register", "docker", "--write"}},
		{"name docker, containerd or podman", []string{installed, "register", "dokcer"}},
		{"Name docker, containerd or podman", []string{installed, "register"}},
		{"--name runc is the name of another runtime", []string{installed, "register", "docker", "--name", "runc"}},
		{"takes flags only", []string{installed, "register", "docker", "podman"}},
		{"do not go together", []string{installed, "register", "docker", "--write", "--remove"}},
		{"do not go together", []string{installed, "register", "docker", "--default", "--remove"}},
	} {
		got := run(t, exec.Command(c.args[0], c.args[1:]...))
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, c.words) {
			t.Errorf("%q: %+v; want %q", c.args, got, c.words)
		}
	}
	runtimeDir := openFolder(t)
	if err := os.Chown(runtimeDir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	user := exec.Command(installed, "register", "docker", "--write", "--config", "/etc/new/daemon.json")
	user.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	user.Env = []string{"XDG_RUNTIME_DIR=" + runtimeDir}
	if got := run(t, user); got.code != 1 || !strings.Contains(got.stderr, "permission denied: run it as root") {
		t.Errorf("as a user: %+v", got)
	}
	if got := content(t, "/etc/docker/daemon.json"); got != "{\n  \"debug\": yes\n}" {
		t.Errorf("daemon.json: %s", got)
	}
	if _, err := os.Stat("/etc/containers/containers.conf.d"); !os.IsNotExist(err) {
		t.Errorf("containers.conf.d: %v", err)
	}
}
