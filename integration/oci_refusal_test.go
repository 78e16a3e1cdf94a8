package integration

import (
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A refusal is a call that an OCI runtime must refuse, and how.
type refusal struct {
	name string
	// spec changes the bundle's.
	spec func(*specs.Spec)
	// config replaces the bundle's config.json, unless empty.
	config string
	// before brings the container c into the state the call meets.
	before func(*ociRuntime, *bundle)
	// args are the call's; BUNDLE stands for the bundle's directory.
	args []string
	// says matches the message, which the shim reads from the JSON log.
	says string
}

func created(r *ociRuntime, b *bundle) { r.create(b, "c") }

func started(r *ociRuntime, b *bundle) {
	r.create(b, "c")
	r.run("start", "c")
}

func stopped(r *ociRuntime, b *bundle) {
	started(r, b)
	r.run("kill", "c", "9")
	r.waitUntil("c", "stopped")
}

var runIt = []string{"run", "--bundle", "BUNDLE", "c"}

var refusals = []refusal{
	{name: "unknown flag", args: []string{"create", "--nonsense", "c"}, says: "nonsense"},
	{name: "unknown global flag", args: []string{"--nonsense", "list"}, says: "nonsense"},
	{name: "bad log format", args: []string{"--log-format", "xml", "list"}, says: "invalid log-format: xml"},
	{name: "no id", args: []string{"create", "--bundle", "BUNDLE"}, says: "requires exactly 1 argument"},
	{name: "too many ids", args: []string{"state", "a", "b"}, says: "requires exactly 1 argument"},
	{name: "empty id", args: []string{"state", ""}, says: "container id cannot be empty"},
	{name: "missing bundle", args: []string{"create", "--bundle", "/nowhere", "c"}, says: "/nowhere.*no such file or directory"},
	{name: "bundle without config.json", args: []string{"create", "--bundle", "/bin", "c"}, says: "config.json not found"},
	{name: "broken config.json", config: `{"ociVersion":`, args: runIt, says: "unexpected EOF"},
	{name: "config.json of another type", config: `{"process": 7}`, args: runIt, says: "cannot unmarshal number"},
	{name: "null config.json", config: `null`, args: runIt, says: "config cannot be null"},
	{name: "config.json without process", config: `{"ociVersion":"1.0.2","root":{"path":"/"}}`, args: runIt, says: "process property must not be empty"},
	{name: "no command", spec: func(s *specs.Spec) { s.Process.Args = nil }, args: runIt, says: "args must not be empty"},
	{name: "relative working directory", spec: func(s *specs.Spec) { s.Process.Cwd = "tmp" }, args: runIt, says: "Cwd must be an absolute path"},
	{name: "missing root", spec: func(s *specs.Spec) { s.Root.Path = "/nowhere" }, args: runIt, says: "/nowhere"},
	{name: "unknown capability drops to a warning only", spec: func(s *specs.Spec) {
		s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_NONSENSE")
		s.Process.Args = []string{"/nowhere"}
	}, args: runIt, says: "no such file or directory"},
	{name: "unknown rlimit", spec: func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NONSENSE"}} }, args: runIt, says: "RLIMIT_NONSENSE"},
	{name: "unknown namespace", spec: func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "nonsense"})
	}, args: runIt, says: "nonsense"},
	{name: "negative memory limit", spec: func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(-5))}
	}, args: runIt, says: "memory"},
	{name: "memory limit too small to start", spec: func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(4096))}
	}, args: runIt, says: "memory|OOM|init|EOF"},
	{name: "cpu quota too small", spec: func(s *specs.Spec) {
		s.Linux.Resources.CPU = &specs.LinuxCPU{Quota: new(int64(1)), Period: new(uint64(100000))}
	}, args: runIt, says: "cpu"},
	{name: "cpus that do not exist", spec: func(s *specs.Spec) { s.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "4000"} }, args: runIt, says: "cpuset"},
	{name: "command not in PATH", spec: func(s *specs.Spec) { s.Process.Args = []string{"nonsense"} }, args: runIt, says: `exec: "nonsense": executable file not found in \$PATH`},
	{name: "command not in PATH at create", spec: func(s *specs.Spec) { s.Process.Args = []string{"nonsense"} },
		args: []string{"create", "--bundle", "BUNDLE", "c"}, says: `exec: "nonsense": executable file not found in \$PATH`},
	{name: "command that does not exist", spec: func(s *specs.Spec) { s.Process.Args = []string{"/nonsense"} }, args: runIt, says: "no such file or directory"},
	{name: "command that is not executable", spec: func(s *specs.Spec) { s.Process.Args = []string{"/etc/passwd"} }, args: runIt, says: "permission denied"},
	{name: "command that is a directory", spec: func(s *specs.Spec) { s.Process.Args = []string{"/etc"} }, args: runIt, says: "is a directory|permission denied"},
	{name: "id with a slash", args: []string{"create", "--bundle", "BUNDLE", "a/b"}, says: "invalid container ID format|container-id"},
	{name: "id that climbs", args: []string{"create", "--bundle", "BUNDLE", ".."}, says: "invalid container ID format|container-id"},
	{name: "state of an id that climbs", args: []string{"state", "../x"}, says: "invalid container ID format|does not exist"},
	{name: "delete of an id that climbs", args: []string{"delete", "--force", "../../x"}, says: "invalid container ID format|does not exist"},
	{name: "id too long", args: []string{"create", "--bundle", "BUNDLE", strings.Repeat("x", 1025)}, says: "invalid container ID format|name too long"},
	{name: "id in use", before: created, args: []string{"create", "--bundle", "BUNDLE", "c"}, says: "container with given ID already exists"},
	{name: "state of an unknown id", args: []string{"state", "nobody"}, says: "container does not exist"},
	{name: "start of an unknown id", args: []string{"start", "nobody"}, says: "container does not exist"},
	{name: "kill of an unknown id", args: []string{"kill", "nobody", "9"}, says: "container does not exist"},
	{name: "delete of an unknown id", args: []string{"delete", "nobody"}, says: "container does not exist"},
	{name: "exec in an unknown id", args: []string{"exec", "nobody", "true"}, says: "container does not exist"},
	{name: "unknown signal", before: created, args: []string{"kill", "c", "NONSENSE"}, says: `unknown signal "NONSENSE"`},
	{name: "kill of a stopped one", before: stopped, args: []string{"kill", "c", "9"}, says: "container not running"},
	{name: "start twice", before: started, args: []string{"start", "c"}, says: "cannot start an already running container"},
	{name: "start of a stopped one", before: stopped, args: []string{"start", "c"}, says: "cannot start a container that has stopped"},
	{name: "delete of a running one", before: started, args: []string{"delete", "c"}, says: "cannot delete container c that is not stopped: running"},
	{name: "exec in a stopped one", before: stopped, args: []string{"exec", "c", "true"}, says: "cannot exec in a stopped container"},
	{name: "exec of nothing", before: started, args: []string{"exec", "c"}, says: "exec args cannot be empty"},
	{name: "exec not in PATH", before: started, args: []string{"exec", "c", "nonsense"}, says: `exec: "nonsense": executable file not found in \$PATH`},
	{name: "exec of what is not executable", before: started, args: []string{"exec", "c", "/etc/passwd"}, says: "permission denied"},
	{name: "exec in a directory that is not there", before: started, args: []string{"exec", "--cwd", "/nowhere", "c", "true"}, says: "no such file or directory"},
	{name: "exec as a name", before: started, args: []string{"exec", "--user", "nobody", "c", "true"}, says: "bad uid"},
	{name: "exec with a missing process file", before: started, args: []string{"exec", "--process", "/nowhere", "c"}, says: "/nowhere: no such file or directory"},
	{name: "exec with a broken process file", before: started, args: []string{"exec", "--process", "/etc/passwd", "c"}, says: "invalid character"},
	{name: "terminal without a console socket", spec: func(s *specs.Spec) { s.Process.Terminal = true },
		args: []string{"create", "--bundle", "BUNDLE", "c"}, says: "cannot allocate tty if .* will detach without setting console socket"},
	{name: "console socket without a terminal", args: []string{"create", "--bundle", "BUNDLE", "--console-socket", "/nowhere", "c"},
		says: "cannot use console socket if .* will not detach or allocate tty"},
	{name: "console socket that is not there", spec: func(s *specs.Spec) { s.Process.Terminal = true },
		args: []string{"create", "--bundle", "BUNDLE", "--console-socket", "/nowhere", "c"}, says: "/nowhere"},
	{name: "preserved descriptor that is not open", args: []string{"create", "--bundle", "BUNDLE", "--preserve-fds", "100", "c"}, says: "unable to stat preserved-fd"},
	{name: "failing hook", spec: func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/false"}}}
	}, args: runIt, says: "hook"},
	{name: "pid file in a directory that is not there", args: []string{"create", "--bundle", "BUNDLE", "--pid-file", "/nowhere/pid", "c"}, says: "/nowhere/.*no such file or directory"},
	{name: "list of a state root that is not there", args: []string{"list"}, says: "no such file or directory"},
	{name: "list in an unknown format", before: created, args: []string{"list", "--format", "xml"}, says: "invalid format option"},
	{name: "spec where there is one", args: []string{"spec", "--bundle", "BUNDLE"}, says: "config.json exists. Remove it first"},
}

// Each bad call ends as runc's does: same status, same kind of message in a
// log with the same keys, and nothing left behind.
func TestRefusalsAreRuncs(t *testing.T) {
	testhost.Long(t)
	for _, row := range slices.Concat(refusals, pauseRefusals, psRefusals, updateRefusals, realtimeRefusals(), eventsRefusals, checkpointRefusals) {
		t.Run(row.name, func(t *testing.T) {
			leavesNothing(t)
			want := row.refuse(t, reference)
			got := row.refuse(t, ours)
			compareRefusals(t, got, want, row.says)
		})
	}
}

// A refusalReport has the output and the log of a refused call.
type refusalReport struct {
	result
	log []map[string]string
}

// refuse makes the call and removes what was set up for it, so that the next
// runtime can use the same names.
func (row refusal) refuse(t *testing.T, with func(testing.TB) *ociRuntime) refusalReport {
	t.Helper()
	r := with(t)
	var changes []func(*specs.Spec)
	if row.spec != nil {
		changes = append(changes, row.spec)
	}
	b := newBundle(t, []string{"sleep", "1000"}, changes...)
	if row.config != "" {
		b.write(t, row.config)
	}
	if row.before != nil {
		row.before(r, b)
	}
	setUp := r.ids()
	earlier := len(r.logged())
	var args []string
	for _, a := range row.args {
		args = append(args, strings.ReplaceAll(a, "BUNDLE", b.dir))
	}
	got := run(t, r.command(args...))
	log := r.logged()[earlier:]
	// runc itself keeps a container whose preserved descriptor is missing.
	if left := r.ids(); r.program == binary(t) && !slices.Equal(left, setUp) {
		t.Errorf("containers in the state root before %q, after %q", setUp, left)
	}
	for _, id := range r.ids() {
		r.run("delete", "--force", id)
	}
	return refusalReport{got, log}
}

func compareRefusals(t *testing.T, got, want refusalReport, says string) {
	t.Helper()
	if want.code == 0 || got.code != want.code {
		t.Errorf("status %d, runc's %d; stderr %s", got.code, want.code, got.stderr)
	}
	message := regexp.MustCompile(says)
	for _, r := range []struct {
		name string
		refusalReport
	}{{"ours", got}, {"runc", want}} {
		if !message.MatchString(r.stderr + r.stdout) {
			t.Errorf("%s: stderr %q does not match %q", r.name, r.stderr, says)
		}
	}
	g, w := lastError(got.log), lastError(want.log)
	if !slices.Equal(slices.Sorted(maps.Keys(g)), slices.Sorted(maps.Keys(w))) {
		t.Errorf("last error in the log: %v, runc's: %v", g, w)
	}
	if w != nil && (!message.MatchString(w["msg"]) || !message.MatchString(g["msg"])) {
		t.Errorf("log: %q, runc's %q, want both to match %q", g["msg"], w["msg"], says)
	}
}

// lastError is what containerd's shim shows of a log.
func lastError(log []map[string]string) map[string]string {
	var last map[string]string
	for _, e := range log {
		if e["level"] == "error" {
			last = e
		}
	}
	return last
}

// readOnlyCgroups is a shell script that runs its arguments with all cgroup
// mounts read-only; $0 is busybox, whose mount leaves no file in /run.
const readOnlyCgroups = `for m in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts)
do $0 mount -o remount,bind,ro $m || exit 99; done; exec "$@"`

func TestNoWritableCgroupIsRefused(t *testing.T) {
	leavesNothing(t)
	try := func(r *ociRuntime) result {
		b := newBundle(t, []string{"true"})
		args := append([]string{"--mount", "sh", "-c", readOnlyCgroups, peer("bin/busybox")}, r.command("run", "--bundle", b.dir, "c").Args...)
		return run(t, exec.Command("unshare", args...))
	}
	got, want := try(ours(t)), try(reference(t))
	if got.code != want.code || !strings.Contains(got.stderr, "read-only file system") || !strings.Contains(want.stderr, "read-only file system") {
		t.Errorf("got %+v, runc %+v", got, want)
	}
}
