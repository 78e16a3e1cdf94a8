package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// printRights prints what the flags of exec change.
const printRights = `grep -E '^(Uid|Gid|Groups|NoNewPrivs|Cap...):' /proc/self/status | tr -s '\t ' ' '; echo "A=$A B=$B"; pwd`

// rights is what printRights prints in a container of DockerSpec, with lines
// replaced: the keys are those of /proc/PID/status, and env and cwd.
func rights(changes map[string]string) string {
	lines := []struct{ key, value string }{
		{"Uid", "0 0 0 0"}, {"Gid", "0 0 0 0"}, {"Groups", ""},
		{"CapInh", "0000000000000000"}, {"CapPrm", dockerCaps}, {"CapEff", dockerCaps}, {"CapBnd", dockerCaps},
		{"CapAmb", "0000000000000000"}, {"NoNewPrivs", "0"}, {"env", "A= B="}, {"cwd", "/"},
	}
	var out strings.Builder
	for _, l := range lines {
		value, changed := changes[l.key]
		if !changed {
			value = l.value
		}
		if l.key != "env" && l.key != "cwd" {
			value = l.key + ": " + value
		}
		out.WriteString(value + "\n")
	}
	return out.String()
}

const (
	dockerCaps  = "00000000a80425fb"
	withSysTime = "00000000aa0425fb" // and CAP_SYS_TIME
	noCaps      = "0000000000000000"
)

var execFlags = []struct {
	name  string
	flags []string
	want  map[string]string
}{
	{"none", nil, nil},
	{"user", []string{"--user", "1000"}, map[string]string{"Uid": "1000 1000 1000 1000", "CapPrm": noCaps, "CapEff": noCaps}},
	{"user and group", []string{"-u", "0:7"}, map[string]string{"Gid": "7 7 7 7"}},
	{"additional groups", []string{"--additional-gids", "20", "--additional-gids", "10"}, map[string]string{"Groups": "10 20 "}},
	{"environment", []string{"--env", "A=a,b", "--env", "B= c"}, map[string]string{"env": "A=a,b B= c"}},
	{"the last of two values", []string{"-e", "A=1", "-e", "A=2"}, map[string]string{"env": "A=2 B="}},
	{"directory", []string{"--cwd", "/tmp"}, map[string]string{"cwd": "/tmp"}},
	{"no new privileges", []string{"--no-new-privs"}, map[string]string{"NoNewPrivs": "1"}},
	{"new privileges", []string{"--no-new-privs=false"}, nil},
	{"capability", []string{"--cap", "CAP_SYS_TIME"}, map[string]string{"CapPrm": withSysTime, "CapEff": withSysTime, "CapBnd": withSysTime}},
	{"capability of a user", []string{"-c", "CAP_SYS_TIME", "-u", "1000"},
		map[string]string{"Uid": "1000 1000 1000 1000", "CapPrm": noCaps, "CapEff": noCaps, "CapBnd": withSysTime}},
	{"unknown capability", []string{"--cap", "CAP_NONSENSE"}, nil},
	{"empty values", []string{"--cwd", "", "--user", "", "--apparmor", "", "--process-label", "", "--pid-file", ""}, nil},
}

func TestExecFlagsAreRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		for _, row := range execFlags {
			args := append([]string{"exec"}, row.flags...)
			r.shows(result{stdout: rights(row.want)}, append(args, "c", "sh", "-c", printRights)...)
		}
		// runc adds the groups of -g twice.
		r.shows(result{stdout: "0\n30\n"}, "exec", "-g", "30", "c", "sh", "-c", "id -G | tr ' ' '\n' | sort -nu")
	})
}

// With inheritable capabilities in the bundle, --cap reaches the ambient ones:
// a user then has the capability.
func TestExecCapabilityIsAmbientWhereInheritable(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) {
			s.Process.Capabilities.Inheritable = []string{"CAP_SYS_TIME"}
			s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_TIME")
		}))
		const sysTime = "0000000002000000"
		want := rights(map[string]string{"Uid": "1000 1000 1000 1000", "CapInh": sysTime, "CapPrm": sysTime, "CapEff": sysTime, "CapBnd": withSysTime, "CapAmb": sysTime})
		r.shows(result{stdout: want}, "exec", "--cap", "CAP_SYS_TIME", "--user", "1000", "c", "sh", "-c", printRights)
	})
}

// The process of --process is the file's alone: no flag changes it.
func TestExecProcessFileIsAll(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sleep", "1000"})
		r.started(b)
		process := processFile(t, b, []string{"sh", "-c", printRights}, func(p *specs.Process) {
			p.Env = append(p.Env, "A=file")
			p.Cwd = "/tmp"
			p.User = specs.User{UID: 5, GID: 6, AdditionalGids: []uint32{7}}
			p.NoNewPrivileges = true
			p.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_TIME"}}
		})
		want := rights(map[string]string{
			"Uid": "5 5 5 5", "Gid": "6 6 6 6", "Groups": "7 ", "CapPrm": noCaps, "CapEff": noCaps, "CapBnd": "0000000002000000",
			"NoNewPrivs": "1", "env": "A=file B=", "cwd": "/tmp",
		})
		r.shows(result{stdout: want}, "exec", "-p", process, "--user", "1000", "--env", "B=flag", "--cwd", "/", "--no-new-privs=false", "c")
		r.shows(result{stdout: want}, "exec", "--process", process, "c", "echo", "ignored")
	})
}

func TestExecInACreatedContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.create(newBundle(t, []string{"sleep", "1000"}), "c")
		r.shows(result{stdout: "inside\n"}, "exec", "c", "echo", "inside")
		if got := r.state("c").Status; got != "created" {
			t.Errorf("status %s", got)
		}
	})
}

// Where the command's flags begin those of exec end.
func TestExecTellsItsFlagsFromTheCommands(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		r.shows(result{stdout: "--user 5 -e -- x\n"}, "exec", "c", "echo", "--user", "5", "-e", "--", "x")
		r.shows(result{stdout: "x\n"}, "exec", "--", "c", "echo", "x")
	})
}

// --cgroup takes controller:path on v1, path on v2, below the container's own.
func TestExecInASubCgroup(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pid := r.started(newBundle(t, []string{"sleep", "1000"}))
		if pureV2(t) {
			execInASubCgroupV2(t, r, pid)
		} else {
			execInASubCgroupV1(t, r, pid)
		}
	})
}

func execInASubCgroupV1(t *testing.T, r *ociRuntime, pid int) {
	t.Helper()
	for _, controller := range []string{"pids", "memory"} {
		makeSubCgroup(t, groupByController(t, pid, controller))
	}
	show := func(want string, flags ...string) {
		t.Helper()
		args := append(append([]string{"exec"}, flags...), "c", "grep", "-oE", ":(pids|memory|freezer):.*", "/proc/self/cgroup")
		got := sorted(r.run(args...).stdout)
		if got != sorted(want) {
			t.Errorf("%v: in %s, want %s", flags, got, sorted(want))
		}
	}
	show(":pids:/c\n:memory:/c\n:freezer:/c\n")
	show(":pids:/c/sub\n:memory:/c\n:freezer:/c\n", "--cgroup", "pids:sub")
	show(":pids:/c/sub\n:memory:/c/sub\n:freezer:/c\n", "--cgroup", "pids,memory:sub")
	show(":pids:/c/sub\n:memory:/c/sub\n:freezer:/c\n", "--cgroup", "pids:sub", "--cgroup", "memory:/sub")
	refused := func(says string, flags ...string) {
		t.Helper()
		r.shows(result{code: 255, stderr: says}, append(append([]string{"exec"}, flags...), "c", "true")...)
	}
	refused("invalid --cgroup argument: sub .missing <controller>: prefix", "--cgroup", "sub", "--cgroup", "pids:sub")
	refused("empty <controller> prefix", "--cgroup", ":sub")
	refused("controller pids specified multiple times", "--cgroup", "pids:sub", "--cgroup", "pids:sub")
	refused("unknown controller nonsense in SubCgroupPaths", "--cgroup", "nonsense:sub")
	refused("no such file or directory", "--cgroup", "pids:absent")
	refused("bad sub cgroup path: ../..", "--cgroup", "pids:../..")
}

func execInASubCgroupV2(t *testing.T, r *ociRuntime, pid int) {
	t.Helper()
	makeSubCgroup(t, groupByController(t, pid, ""))
	r.shows(result{stdout: "0::/c/sub\n"}, "exec", "--cgroup", "sub", "c", "cat", "/proc/self/cgroup")
	r.shows(result{code: 255, stderr: "empty <controller> prefix"}, "exec", "--cgroup", ":sub", "c", "true")
	r.shows(result{code: 255, stderr: "no such file or directory"}, "exec", "--cgroup", "absent", "c", "true")
	r.shows(result{code: 255, stderr: "bad sub cgroup path: ../.."}, "exec", "--cgroup", "../..", "c", "true")
}

func sorted(lines string) string {
	return strings.Join(slices.Sorted(strings.Lines(lines)), "")
}

// A frozen container is one that is paused, whoever froze it.
func TestExecInAPausedContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pid := r.started(newBundle(t, []string{"sleep", "1000"}))
		freeze(t, pid)
		if got := r.state("c").Status; got != "paused" {
			t.Errorf("status %s", got)
		}
		r.shows(result{code: 255, stderr: "exec failed: cannot exec in a paused container .use --ignore-paused to override"}, "exec", "c", "true")
		p := start(t, r.command("exec", "--ignore-paused", "c", "echo", "thawed"))
		eventually(t, "a second process waits in the container", func() bool {
			return strings.Count(content(t, filepath.Join(groupByController(t, pid, "freezer"), "cgroup.procs")), "\n") > 1
		})
		if p.ended() {
			t.Errorf("ended in a frozen container: %+v", p.wait())
		}
		thaw(t, pid)
		if got, want := p.wait(), (result{stdout: "thawed\n"}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// Descriptors of --preserve-fds come after stdio in their order, no other does.
func TestExecPreservesAsManyDescriptorsAsAsked(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		files := []*os.File{filled(t, "first"), filled(t, "second"), filled(t, "third")}
		for flags, want := range map[string]result{
			"--preserve-fds=0":   {stdout: "0 1 2 3\n"}, // 3 is ls's own
			"--preserve-fds=2":   {stdout: "0 1 2 3 4 5\nfirst\nsecond\n"},
			"--preserve-fds=100": {code: 255, stderr: `unable to stat preserved-fd [0-9]+ .of 100.: (no such file or directory|bad file descriptor)`},
			"--preserve-fds=x":   {code: 1, stderr: `invalid value \\?"x\\?" for flag -preserve-fds`},
		} {
			cmd := r.command("exec", flags, "c", "sh", "-c", "echo $(ls /proc/self/fd); test ! -e /proc/self/fd/4 || cat /dev/fd/3 /dev/fd/4")
			cmd.ExtraFiles = files
			r.compare(run(t, cmd), want, []string{flags})
		}
	})
}

// filled returns a pipe's read end with a line in it.
func filled(t *testing.T, line string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if _, err := w.WriteString(line + "\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return r
}

func TestExecPIDFileAndPidfdAreTheProcesss(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		socket := listenForFDs(t)
		dir := t.TempDir()
		cmd := r.command("exec", "--detach", "--pid-file", "pid", "--pidfd-socket", socket.path, "c", "sleep", "2000")
		cmd.Dir = dir // --pid-file starts from there
		if got := run(t, cmd); got != (result{}) {
			t.Fatalf("%+v", got)
		}
		pid, err := strconv.Atoi(content(t, filepath.Join(dir, "pid")))
		if err != nil {
			t.Fatal(err)
		}
		if got := socket.receivePidfd(t); got != pid {
			t.Errorf("pidfd of %d, pid file %d", got, pid)
		}
		r.shows(result{code: 255, stderr: "/nowhere"}, "exec", "--pidfd-socket", "/nowhere", "c", "true")
		r.shows(result{code: 255, stderr: "/nowhere/.*no such file or directory"}, "exec", "--pid-file", "/nowhere/pid", "c", "true")
	})
}

// Wrong values end with 255 as a process that can't be started, and with 1
// where the command line itself is at fault.
func TestExecRefusesWrongValuesAsRunc(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sleep", "1000"})
		r.started(b)
		labelled := processFile(t, b, []string{"true"}, func(p *specs.Process) { p.SelinuxLabel = "system_u:system_r:x_t:s0" })
		profiled := processFile(t, b, []string{"true"}, func(p *specs.Process) { p.ApparmorProfile = "nonsense" })
		limited := processFile(t, b, []string{"true"}, func(p *specs.Process) { p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NONSENSE"}} })
		empty := processFile(t, b, nil, nil)
		relative := processFile(t, b, []string{"true"}, func(p *specs.Process) { p.Cwd = "tmp" })
		for _, row := range []struct {
			code int
			says string
			args []string
		}{
			{1, `invalid value \\?"x\\?" for flag -g`, []string{"-g", "x", "c", "true"}},
			{1, `invalid value \\?"x\\?" for flag -additional-gids`, []string{"--additional-gids", "x", "c", "true"}},
			{255, "additional-gids must be a positive number -1", []string{"--additional-gids", "-1", "c", "true"}},
			{1, "flag needs an argument: --?user", []string{"--user"}},
			{1, "flag provided but not defined: -nonsense", []string{"--nonsense", "c", "true"}},
			{1, "requires a minimum of 1 argument", nil},
			{255, "container id cannot be empty", []string{"", "true"}},
			{255, "bad uid", []string{"--user", "root", "c", "true"}},
			{255, "bad uid", []string{"--user", ":5", "c", "true"}},
			{255, "bad gid", []string{"--user", "5:wheel", "c", "true"}},
			{255, "bad gid", []string{"--user", "5:", "c", "true"}},
			{255, "Cwd must be an absolute path", []string{"--cwd", "tmp", "c", "true"}},
			{255, "selinux label is specified in config, but selinux is disabled or not supported", []string{"--process-label", "system_u:system_r:x_t:s0", "c", "true"}},
			{255, "selinux label is specified in config, but selinux is disabled or not supported", []string{"--process", labelled, "c"}},
			{255, "apparmor", []string{"--apparmor", "nonsense", "c", "true"}},
			{255, "apparmor", []string{"--process", profiled, "c"}},
			{255, "RLIMIT_NONSENSE", []string{"--process", limited, "c"}},
			{255, "args must not be empty", []string{"--process", empty, "c"}},
			{255, "Cwd must be an absolute path", []string{"--process", relative, "c"}},
			{255, "cannot allocate tty if NAME will detach without setting console socket", []string{"--tty", "--detach", "c", "true"}},
			{255, "cannot use console socket if NAME will not detach or allocate tty", []string{"--console-socket", "/nowhere", "c", "true"}},
			{255, "/nowhere", []string{"--tty", "--detach", "--console-socket", "/nowhere", "c", "true"}},
		} {
			r.shows(result{code: row.code, stderr: row.says}, append([]string{"exec"}, row.args...)...)
		}
	})
}

// An exec starts on the processors of execCPUAffinity.initial and runs on those
// of final.
func TestExecCPUAffinity(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) {
			s.Process.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0", Final: "0"}
		})
		r.started(b)
		const show = "grep Cpus_allowed_list /proc/self/status"
		r.shows(result{stdout: "Cpus_allowed_list:\t0\n"}, "exec", "c", "sh", "-c", show)
		final := processFile(t, b, []string{"sh", "-c", show}, func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Final: "0-0"} })
		r.shows(result{stdout: "Cpus_allowed_list:\t0\n"}, "exec", "--process", final, "c")
		wrong := processFile(t, b, []string{"true"}, func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "nonsense"} })
		r.shows(result{code: 255, stderr: "nonsense"}, "exec", "--process", wrong, "c")
	})
}

// What the fields of a process say holds for an exec's too.
func TestExecProcessFieldsAreRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sleep", "1000"})
		r.started(b)
		const show = "ionice; awk '{ print $41, $19 }' /proc/self/stat; ulimit -n"
		process := processFile(t, b, []string{"sh", "-c", show}, func(p *specs.Process) {
			p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_IDLE}
			p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 3}
			p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 77, Hard: 88}}
		})
		r.shows(result{stdout: "idle\n3 3\n77\n"}, "exec", "--process", process, "c")
	})
}

// With --tty the process has a terminal of its own: in the foreground as large
// as the caller's, detached one that the console socket receives.
func TestExecTTYFlagIsRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		script := []string{"c", "sh", "-c", "tty; read line; test \"$line\" = detached || until stty size | grep -qx '33 99'; do sleep 0.01; done; echo \"got $line\"; exit 6"}
		for _, flag := range []string{"--tty", "-t"} {
			term, p := onTerminal(t, r.command(append([]string{"exec", flag}, script...)...))
			term.shows(t, "/dev/pts/")
			if err := pty.Setsize(term.master, &pty.Winsize{Rows: 33, Cols: 99}); err != nil {
				t.Fatal(err)
			}
			term.typeIn(t, "hello\n")
			term.shows(t, "got hello")
			if got := p.wait(); got.code != 6 {
				t.Errorf("%s: status %d", flag, got.code)
			}
		}
		socket := listenForConsole(t)
		r.shows(result{}, append([]string{"exec", "-t", "-d", "--console-socket", socket.path}, script...)...)
		console := socket.receive(t)
		console.typeIn(t, "detached\n")
		console.shows(t, "got detached")

		cmd := r.command("exec", "--tty", "c", "true") // no terminal anywhere
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		r.compare(run(t, cmd), result{code: 255, stderr: "exec failed: .*(/dev/tty|no terminal)"}, cmd.Args)
	})
}
