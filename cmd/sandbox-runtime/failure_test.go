package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// brokenStarts are specs and flags with which a start fails at different
// depths, and words of the error. Docker turns an error that names the command
// into 127 ("executable file not found", "no such file or directory") or 126
// ("permission denied").
var brokenStarts = []struct {
	name  string
	edit  func(*specs.Spec)
	flags []string
	words []string
}{
	{"command not on PATH", args("nosuch"), nil,
		[]string{`unable to start container process`, `exec: "nosuch": executable file not found in $PATH`}},
	{"command not there", args("/no/such"), nil,
		[]string{`unable to start container process`, `exec: "/no/such": stat /no/such: no such file or directory`}},
	{"command not executable", args("/proc/version"), nil,
		[]string{`unable to start container process`, `exec: "/proc/version": permission denied`}},
	{"command is a directory", args("/proc"), nil,
		[]string{`unable to start container process`, `exec: "/proc": is a directory`}},
	{"mount of nothing", func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Source: "/no/such", Options: []string{"bind"}})
	}, nil, []string{"/no/such", "no such file or directory"}},
	{"rootfs missing", func(s *specs.Spec) { s.Root.Path = "gone" }, nil, []string{"gone", "no such file or directory"}},
	{"cwd is a file", func(s *specs.Spec) { s.Process.Cwd = "/bin/probe" }, nil, []string{"/bin/probe", "not a directory"}},
	{"unknown rlimit", func(s *specs.Spec) { s.Process.Rlimits[0].Type = "RLIMIT_X" }, nil, []string{"wrong rlimit value: RLIMIT_X"}},
	{"unknown namespace", func(s *specs.Spec) { s.Linux.Namespaces[0].Type = "x" }, nil, []string{"namespace"}},
	{"uid of nobody at all", func(s *specs.Spec) { s.Process.User.UID = 1<<32 - 1 }, nil, []string{"invalid user 4294967295"}},
	{"prestart hook fails", func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/false"}}}
	}, nil, []string{"hook"}},
	{"poststart hook fails", func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{Poststart: []specs.Hook{{Path: "/bin/false"}}}
	}, nil, []string{"hook"}},
	{"pid file's directory missing", nil, []string{"--pid-file", "/no/such/pid"}, []string{"pid file", "/no/such"}},
	{"pidfd socket missing", nil, []string{"--pidfd-socket", "/no/such"}, []string{"pidfd socket", "/no/such"}},
	{"no such preserved descriptor", nil, []string{"--preserve-fds", "3"}, []string{"unable to stat preserved-fd 0 (of 3)"}},
	{"console socket without terminal", nil, []string{"--console-socket", "/no/such"},
		[]string{"cannot use console socket if sandbox-runtime will not detach or allocate tty"}},
	{"terminal without console socket", terminal, nil,
		[]string{"cannot allocate tty if sandbox-runtime will detach without setting console socket"}},
	{"console socket missing", terminal, []string{"--console-socket", "/no/such"}, []string{"console socket", "/no/such"}},
}

func args(a ...string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Process.Args = a }
}

func terminal(s *specs.Spec) { s.Process.Terminal = true }

func TestFailedStartLeavesNothing(t *testing.T) {
	for _, c := range brokenStarts {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			bundle := h.bundle(c.edit, "pause")
			for _, command := range [][]string{{"create"}, {"run", "--detach"}} {
				args := append(append(command, c.flags...), "--bundle", bundle, h.id())
				words := append([]string{"sandbox-runtime " + command[0] + " failed: "}, c.words...)
				h.refuse(1, words, args...)
				h.nothingLeft()
			}
		})
	}
}

func TestBrokenBundlesAreNamed(t *testing.T) {
	h := newHost(t)
	empty := t.TempDir()
	cases := []struct {
		config string
		words  []string
	}{
		{`{"ociVersion": "1.0.2",`, []string{"parse ", "unexpected EOF"}},
		{`not json`, []string{"parse ", "invalid character"}},
		{`null`, []string{"config cannot be null"}},
		{`{}`, []string{"process property must not be empty"}},
		{`{"process":{"cwd":"x","args":["y"]}}`, []string{"Cwd must be an absolute path"}},
		{`{"process":{"cwd":"","args":["y"]}}`, []string{"Cwd property must not be empty"}},
		{`{"process":{"cwd":"/","args":[]}}`, []string{"args must not be empty"}},
		{`{"process":{"cwd":"/","args":["y"]}}`, []string{"root"}},
		{`{"process":{"cwd":"/","args":["y"],"user":{"uid":-1}}}`, []string{"parse ", "uid"}},
	}
	for _, c := range cases {
		bundle := t.TempDir()
		h.write(filepath.Join(bundle, frontend.ConfigName), c.config)
		words := append([]string{"create failed: "}, c.words...)
		if c.words[0] != "root" {
			words = append(words, filepath.Join(bundle, frontend.ConfigName))
		}
		h.refuse(1, words, "create", "--bundle", bundle, h.id())
	}
	h.refuse(1, []string{"JSON specification file " + filepath.Join(empty, frontend.ConfigName) + " not found"}, "create", "--bundle", empty, h.id())
	h.refuse(1, []string{"bundle", "/no/such", "no such file or directory"}, "create", "--bundle", "/no/such", h.id())
	h.nothingLeft()
}

func TestLogFileIsWhatShimsParse(t *testing.T) {
	h := newHost(t)
	log := filepath.Join(h.dir, "log.json")
	bundle := h.bundle(args("nosuch"))
	r := h.run("--log", log, "--log-format", "json", "create", "--bundle", bundle, h.id())
	want := `sandbox-runtime create failed: unable to start container process: error during container init: exec: "nosuch": executable file not found in $PATH`
	if r.code != 1 || r.stderr != want+"\n" {
		t.Errorf("status %d, stderr %q", r.code, r.stderr)
	}
	lines := strings.Split(strings.TrimSpace(h.read(log)), "\n")
	var entry struct {
		Level string
		Msg   string
		Time  time.Time
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &entry); err != nil {
		t.Fatal(err)
	}
	if entry.Level != "error" || entry.Msg != want || time.Since(entry.Time) > time.Minute {
		t.Errorf("%+v", entry)
	}
	// A second failure is appended.
	h.run("--log", log, "--log-format", "json", "state", "unknown")
	if n := strings.Count(h.read(log), "\n"); n != len(lines)+1 {
		t.Errorf("%d lines after two failures", n)
	}
}

func TestWrongFlagsAreLoggedToo(t *testing.T) {
	h := newHost(t)
	log := filepath.Join(h.dir, "log.json")
	r := h.run("--log", log, "--log-format", "json", "create", "--bogus")
	if got := h.read(log); r.code != 1 || !strings.Contains(got, `"level":"error","msg":"flag provided but not defined: -bogus`) {
		t.Errorf("%+v, log %q", r, got)
	}
}

// A person gets the name that nothing has. Callers that log as runc does get runc's words.
func TestUnknownNamesAreNamed(t *testing.T) {
	h := newHost(t)
	for _, args := range [][]string{
		{"exec", "nobody", "true"}, {"ps", "nobody"}, {"pause", "nobody"}, {"resume", "nobody"},
		{"update", "--memory", "64m", "nobody"}, {"kill", "nobody"}, {"state", "nobody"},
	} {
		if r := h.run(args...); !strings.Contains(r.stderr, "sandbox-runtime: nobody does not exist: no sandbox or container has this name") {
			t.Errorf("%q: %+v", args, r)
		}
		logged := append([]string{"--log-format", "json"}, args...)
		if r := h.run(logged...); !strings.Contains(r.stderr, `container does not exist"`) {
			t.Errorf("%q: %+v", logged, r)
		}
	}
}

func TestDebugLogHasTheContainersInit(t *testing.T) {
	h := newHost(t)
	log := filepath.Join(h.dir, "log")
	if r := h.run("--debug", "--log", log, "run", "-b", h.bundle(nil, "exit", "0"), h.id()); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"level=debug", "nsexec", "child process in init()"} {
		if got := h.read(log); !strings.Contains(got, want) {
			t.Errorf("debug log lacks %q: %s", want, got)
		}
	}
}

func TestWrongUsageIsOneLine(t *testing.T) {
	h := newHost(t)
	h.refuse(1, []string{"flag provided but not defined: -bogus", "create --help"}, "create", "--bogus", "x")
	h.refuse(1, []string{"flag needs an argument", "--bundle"}, "create", "--bundle")
	h.refuse(1, []string{`"create" requires exactly 1 argument(s)`}, "create")
	h.refuse(1, []string{`"state" requires exactly 1 argument(s)`}, "state", "a", "b")
	h.refuse(1, []string{`"kill" requires a maximum of 2 argument(s)`}, "kill", "a", "b", "c")
	h.refuse(1, []string{`"exec" requires a minimum of 1 argument(s)`}, "exec")
	h.refuse(3, []string{`unknown command "bogus"`}, "bogus")
	h.refuse(3, []string{`unknown command "init"`}, "init")
	h.refuse(3, []string{`unknown command "snapshoot"; did you mean snapshot?`}, "snapshoot")
	h.refuse(125, []string{"unknown flag --memry; did you mean --memory?"}, "do", "--memry", "1g", "true")
	h.refuse(125, []string{"unknown flag --work; did you mean --workspace?"}, "do", "--work", ".", "true")
	h.refuse(125, []string{"unknown flag --nonsense (see"}, "do", "--nonsense", "true")
	h.refuse(1, []string{"invalid log-format: xml"}, "--log-format", "xml", "list")
	h.refuse(1, []string{"/no/such/log"}, "--log", "/no/such/log", "list")
	for command, code := range map[string]int{"do": 125, "attach": 125, "up": 1, "down": 1, "doctor": 1} {
		h.refuse(code, []string{"--root is empty"}, "--root=", command)
	}
	h.refuse(1, []string{`does not know the shell "tcsh"`}, "completion", "tcsh")
	h.refuse(1, []string{"--rootless"}, "--rootless", "perhaps", "run", "-b", h.bundle(nil, "pause"), h.id())
}

// The commands that use no launcher that listens refuse --socket, as docs/launcher.md says.
func TestCommandsWithoutALauncherRefuseASocket(t *testing.T) {
	h := newHost(t)
	for _, args := range [][]string{
		{"create", "x"},
		{"start", "x"},
		{"run", "x"},
		{"spec"},
		{"features"},
		{"checkpoint", "x"},
		{"restore", "x"},
		{"kill", "x"},
		{"events", "x"},
		{"prune"},
		{"register"},
		{"register", "docker"},
		{"register", "containerd"},
		{"register", "podman"},
	} {
		h.refuse(1, []string{"--socket is not for " + args[0] + ": "}, append([]string{"--socket", "l.sock"}, args...)...)
	}
	h.refuse(1, []string{"--socket is not for register: "}, "register", "docker", "--socket", "l.sock")
}

func TestXDGRootIsForUsers(t *testing.T) {
	testhost.NeedRoot(t, "the rule is about root")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/0")
	t.Setenv("XDG_DATA_HOME", "/root/data")
	if path, ofUser := commandline.DefaultRoot(); path != "/run/sandbox-runtime" || ofUser {
		t.Errorf("root of the host: %s, %v", path, ofUser)
	}
	if path := commandline.DefaultData(); path != "/var/lib/sandbox-runtime" {
		t.Errorf("data of root of the host: %s", path)
	}
}

// TestALauncherRefusesSandboxesOfOthers: the commands refuse such a state root, too.
func TestALauncherRefusesSandboxesOfOthers(t *testing.T) {
	h := newHost(t)
	sandboxes := filepath.Join(h.root, "@sandboxes")
	if err := errors.Join(os.MkdirAll(sandboxes, 0o700), os.Chown(sandboxes, 4242, 4242)); err != nil {
		t.Fatal(err)
	}
	h.refuse(1, []string{sandboxes + " belongs to user 4242", "chown it to root"}, "launcher", "--fd", "1")
}
