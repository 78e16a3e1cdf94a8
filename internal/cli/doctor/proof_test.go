package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/server"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// goodEvidence is what a sandbox with all its walls gives.
func goodEvidence(t *testing.T) evidence {
	t.Helper()
	config, err := examined().Complete()
	if err != nil {
		t.Fatal(err)
	}
	namespaces := func(side string) map[string]string {
		all := map[string]string{}
		for _, kind := range namespaceKinds() {
			all[kind] = kind + ":" + side
		}
		return all
	}
	const none = "0000000000000000"
	memory := int64(config.Limits.Memory)
	return evidence{
		config: config,
		inside: insideView{
			UID: 1000, GID: 1000, UIDMap: "0 1879048192 65536",
			Status:     map[string]string{"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2"},
			Namespaces: namespaces("inside"),
			Mounts: []mountView{
				{"/", "tmpfs", "ro,nosuid,nodev", ""}, {"/usr", "ext4", "ro,nosuid,nodev", ""}, {"/tmp", "tmpfs", "rw,nosuid,nodev", ""},
				{"/dev", "tmpfs", "rw,nosuid", ""}, {"/dev/null", "devtmpfs", "rw", "c 1:3"}, {"/proc/scsi", "tmpfs", "ro", ""},
			},
			Devices:    map[string]string{"null": "c 1:3", "tty": "c 5:0"},
			OwnDevices: true,
			Refused:    len(forbiddenCalls()),
			Rlimits:    map[string]uint64{"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024, "RLIMIT_FSIZE": uint64(config.Limits.FileSize)},
			FileError:  "write /tmp/x: file too large", Links: []string{"lo"}, Processes: 2,
		},
		host: hostView{Namespaces: namespaces("outside"), keyring: 1},
		limits: cgroups.Settings{
			Memory: memory, MemoryAndSwap: memory, CPUs: float64(config.Limits.CPUs), Pids: config.Limits.Pids + spec.AgentPids,
			IO: []string{"254:0 104857600"},
		},
		held:    spec.LimitReport{Memory: spec.Enforced, CPU: spec.Enforced, Pids: spec.Enforced, IO: spec.Enforced},
		keyring: 2,
		memory:  spec.Result{Status: spec.StatusOOMKilled},
		pids:    spec.Result{Violations: []spec.Violation{{Kind: "limit", Detail: "limit of 16 processes and threads reached"}}},
		cpu:     0.2,
	}
}

func failedNames(proofs []proofReport) []string {
	var names []string
	for _, p := range proofs {
		if p.Status == ProofFailed {
			names = append(names, p.Name)
		}
	}
	return names
}

// Each wall that is weakened is seen, and no other.
func TestEachWallIsJudged(t *testing.T) {
	if failed := failedNames(judge(goodEvidence(t))); len(failed) != 0 {
		t.Fatalf("a good sandbox fails %q: %+v", failed, judge(goodEvidence(t)))
	}
	judged := map[string]bool{"landlock": true}
	for _, test := range []struct {
		fails  string
		weaken func(*evidence)
	}{
		{"user", func(e *evidence) { e.inside.UID = 0 }},
		{"user", func(e *evidence) { e.inside.GID = 0 }},
		{"user", func(e *evidence) { e.inside.Groups = []int{0} }},
		{"capabilities", func(e *evidence) { e.inside.Status["CapBnd"] = "0000000000000001" }},
		{"capabilities", func(e *evidence) { delete(e.inside.Status, "CapAmb") }},
		{"no_new_privs", func(e *evidence) { e.inside.Status["NoNewPrivs"] = "0" }},
		{"user_namespace", func(e *evidence) { e.inside.UIDMap = "0 0 4294967295" }},
		{"user_namespace", func(e *evidence) { e.inside.UIDMap = "0 0 65536" }},
		{"user_namespace", func(e *evidence) { e.inside.UIDMap = "0 1879048192 65535 65535 0 1" }},
		{"namespaces", func(e *evidence) { e.inside.Namespaces["pid"] = e.host.Namespaces["pid"] }},
		{"namespaces", func(e *evidence) { delete(e.inside.Namespaces, "ipc") }},
		{"processes", func(e *evidence) { e.inside.Processes = 3 }},
		{"network", func(e *evidence) { e.inside.Links = []string{"lo", "eth0"} }},
		{"host_sockets", func(e *evidence) { e.inside.Sockets = []string{"@/containerd"} }},
		{"masked_paths", func(e *evidence) { e.inside.Masked = []string{"/proc/keys"} }},
		{"readonly_paths", func(e *evidence) { e.inside.Changeable = []string{"/proc/sys"} }},
		{"readonly_base", func(e *evidence) { e.inside.Mounts[1].Options = "rw,nosuid,nodev" }},
		{"readonly_base", func(e *evidence) { e.inside.Mounts[1].Options = "ro,nodev" }},
		{"readonly_base", func(e *evidence) { e.inside.Mounts[1].Options = "ro,nosuid" }},
		{"readonly_base", func(e *evidence) { e.inside.Mounts[2].Options = "rw,nosuid" }},
		{"readonly_base", func(e *evidence) { e.inside.Mounts[4].Device = "b 254:0" }},
		{"readonly_base", func(e *evidence) { e.inside.Mounts = nil }},
		{"devices", func(e *evidence) { e.inside.Devices["null"] = "c 1:1" }},
		{"devices", func(e *evidence) { e.inside.Devices["vda"] = "b 254:0" }},
		{"devices", func(e *evidence) { e.inside.Devices = nil }},
		{"devices", func(e *evidence) { e.inside.DeviceMade = true }},
		{"keyring", func(e *evidence) { e.keyring = e.host.keyring }},
		{"nested_namespaces", func(e *evidence) { e.inside.NewNamespaces = []string{"user"} }},
		{"seccomp", func(e *evidence) { e.inside.Status["Seccomp"] = "0" }},
		{"seccomp", func(e *evidence) { e.inside.Allowed = []string{"bpf"}; e.inside.Refused-- }},
		{"seccomp", func(e *evidence) { e.inside.Refused = 0 }},
		{"descriptors", func(e *evidence) { e.inside.Inherited = []string{"7 /"} }},
		{"memory_limit", func(e *evidence) { e.limits.Memory = cgroups.NoLimit }},
		{"memory_limit", func(e *evidence) { e.limits.MemoryAndSwap = cgroups.NoLimit }},
		{"memory_limit", func(e *evidence) { e.memory.Status = spec.StatusExited }},
		{"pids_limit", func(e *evidence) { e.limits.Pids = cgroups.NoLimit }},
		{"pids_limit", func(e *evidence) { e.pids.Violations = nil }},
		{"cpu_limit", func(e *evidence) { e.limits.CPUs = cgroups.NoLimit }},
		{"cpu_limit", func(e *evidence) { e.cpu = 1 }},
		{"io_limit", func(e *evidence) { e.limits.IO = nil }},
		{"core_limit", func(e *evidence) { e.inside.Rlimits["RLIMIT_CORE"] = 1 }},
		{"nofile_limit", func(e *evidence) { e.inside.Rlimits["RLIMIT_NOFILE"] = 1 << 20 }},
		{"fsize_limit", func(e *evidence) { e.inside.Rlimits["RLIMIT_FSIZE"] = 1 << 62 }},
		{"fsize_limit", func(e *evidence) { e.inside.FileError = "" }},
	} {
		e := goodEvidence(t)
		test.weaken(&e)
		judged[test.fails] = true
		if failed := failedNames(judge(e)); !slices.Equal(failed, []string{test.fails}) {
			t.Errorf("a weakened %s fails %q", test.fails, failed)
		}
	}
	for _, w := range Walls() {
		if !judged[w.name] {
			t.Errorf("no test weakens %s", w.name)
		}
	}
}

// What the specification masks is looked at, and perhaps more.
func TestProofsLookAtAllMaskedPaths(t *testing.T) {
	config, err := spec.Config{}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	paths := spec.Build(config, spec.Host{}).Linux
	for _, path := range paths.MaskedPaths {
		if !slices.Contains(hostsSecrets(), path) {
			t.Errorf("nobody looks whether %s is masked", path)
		}
	}
	for _, path := range paths.ReadonlyPaths {
		if !slices.Contains(hostsControls(), path) {
			t.Errorf("nobody looks whether %s is read-only", path)
		}
	}
}

// What the host cannot enforce is no failure of the sandbox, and what is not
// built is not claimed.
func TestProofsDoNotClaimWhatIsNotThere(t *testing.T) {
	e := goodEvidence(t)
	const reason = "unenforced: no controller"
	e.held = spec.LimitReport{Memory: reason, CPU: reason, Pids: reason, IO: reason}
	e.limits = cgroups.Settings{}
	e.inside.OwnDevices = false
	for _, p := range judge(e) {
		switch {
		case p.Name == "landlock" && p.Status == proofNotBuilt:
		case p.Name == "devices" && p.Status == proofMissing && strings.Contains(p.Detail, "the host's"):
		case slices.Contains([]string{"memory_limit", "cpu_limit", "pids_limit", "io_limit"}, p.Name):
			if p.Status != proofMissing || !strings.Contains(p.Detail, "no controller") {
				t.Errorf("%+v", p)
			}
		case p.Status != proofOK:
			t.Errorf("%+v", p)
		}
	}
}

// proverOrSkip is for tests that start sandboxes.
func proverOrSkip(t *testing.T) *prover {
	t.Helper()
	testhost.NeedRoot(t, "sandboxes are started")
	root, err := os.MkdirTemp("", "srt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	p, err := newProver(t.Context(), func(context.Context) (Sandboxes, error) {
		return openSandboxes(launcher.Dirs{State: filepath.Join(root, "state"), Data: filepath.Join(root, "data")})
	})
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, p)
	return p
}

// The same look at a process that is in no sandbox at all: but for what a
// process of root happens to have as well, no wall stands.
func TestProofsFailOutsideASandbox(t *testing.T) {
	testhost.NeedRoot(t, "sandboxes are started")
	outside := evidenceOf(t)
	f, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/proc/self/exe", ProbeCommand, "look")
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &outside.inside); err != nil {
		t.Fatal(err)
	}
	failed := failedNames(judge(outside))
	// Others depend on the host: limits that it sets, links, sockets, devices.
	for _, want := range []string{
		"user", "capabilities", "no_new_privs", "user_namespace", "namespaces", "processes", "masked_paths", "readonly_paths",
		"readonly_base", "devices", "keyring", "nested_namespaces", "seccomp", "descriptors", "network", "host_sockets",
		"memory_limit", "pids_limit", "cpu_limit", "io_limit", "fsize_limit",
	} {
		if !slices.Contains(failed, want) {
			t.Errorf("%s holds outside", want)
		}
	}
	if allowed := outside.inside.Allowed; len(allowed) < len(forbiddenCalls())*3/4 {
		t.Errorf("outside only these system calls are not refused: %q", allowed)
	}
}

// evidenceOf is what is known of this process as if it were a sandbox.
func evidenceOf(t *testing.T) evidence {
	t.Helper()
	e := goodEvidence(t)
	var err error
	if e.host, err = viewOfHost(); err != nil {
		t.Fatal(err)
	}
	e.keyring = e.host.keyring
	e.limits = cgroups.Settings{Memory: cgroups.NoLimit, MemoryAndSwap: cgroups.NoLimit, CPUs: cgroups.NoLimit, Pids: cgroups.NoLimit}
	return e
}

// A real sandbox that was weakened is judged so, in just what was weakened.
func TestProofsFailInAWeakenedSandbox(t *testing.T) {
	p := proverOrSkip(t)
	weak := filepath.Join(t.TempDir(), "weak.json")
	if err := os.WriteFile(weak, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	shown := t.TempDir()
	for _, path := range []string{shown, filepath.Dir(shown)} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	if err := unix.Bind(socket, &unix.SockaddrUnix{Name: filepath.Join(shown, "daemon.sock")}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		weaken func(*spec.Config)
		want   []string
	}{
		"as it is":  {func(*spec.Config) {}, nil},
		"no filter": {func(c *spec.Config) { c.Seccomp = weak }, []string{"nested_namespaces", "seccomp"}},
		"root":      {func(c *spec.Config) { c.User = &spec.User{} }, []string{"user"}},
		"a writable bind with a socket": {
			func(c *spec.Config) { c.Binds = []spec.Bind{{Source: shown, Target: "/run/host", Writable: true}} },
			[]string{"host_sockets", "readonly_base"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := examined()
			test.weaken(&c)
			proofs, err := p.prove(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			if failed := failedNames(proofs); !slices.Equal(slices.Sorted(slices.Values(failed)), test.want) {
				t.Errorf("fails %q, want %q: %+v", failed, test.want, proofs)
			}
		})
	}
}

// testSandboxes are sandboxes of a launcher in this process.
type testSandboxes struct {
	*sandbox.Manager
	launcher *launcher.Launcher
	server   *server.Server
}

func openSandboxes(dirs launcher.Dirs) (Sandboxes, error) {
	l, err := launcher.New(dirs)
	if err != nil {
		return nil, err
	}
	b := &testSandboxes{launcher: l, server: server.New(server.Of(l), server.Rules{}, slog.New(slog.DiscardHandler))}
	b.Manager, err = sandbox.NewManager(sandbox.ManagerConfig{
		Dial: func(context.Context) (*net.UnixConn, error) { return b.server.Connect() },
	})
	return b, err
}

func (b *testSandboxes) Settings(ctx context.Context, id string) (cgroups.Settings, error) {
	s, err := b.launcher.Open(ctx, id)
	if err != nil {
		return cgroups.Settings{}, err
	}
	defer s.Release()
	return s.Settings()
}

func (b *testSandboxes) Close() error {
	err := b.Manager.Close()
	b.server.Shutdown(context.Background())
	b.launcher.Close()
	return err
}

// TestMain looks around in place of the program where a sandbox runs the test binary. It
// ends without os.Exit then, which sleeps for a second under the race detector.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == ProbeCommand {
		code := 0
		if err := Probe(os.Args[2], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
	os.Exit(m.Run())
}
