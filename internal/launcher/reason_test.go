package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// bomb takes memory until it is killed.
const bomb = "exec tail /dev/zero"

func TestAMemoryBombEndsAlone(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{Limits: spec.Limits{Memory: 64 << 20}})
	sibling, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	r, _ := sh(t, sb, bomb)
	if r.Status != spec.StatusOOMKilled || r.ExitCode != 137 || r.Signal != "SIGKILL" || !strings.Contains(r.Reason, "64m") || len(r.Violations) != 1 {
		t.Errorf("got %+v", r)
	}
	// A child of the command, which goes on; on v2 the kernel kills them together.
	status, code, printed := spec.StatusExited, 4, "137\n"
	if host, err := l.host(); err != nil || host.Mode == cgroups.V2 {
		status, code, printed = spec.StatusOOMKilled, 137, ""
	}
	r, out := sh(t, sb, "sh -c '"+bomb+"'; echo $?; exit 4")
	if r.Status != status || r.ExitCode != code || out.stdout != printed || !strings.Contains(r.Reason, "64m") || len(r.Violations) != 1 {
		t.Errorf("got %+v, %q", r, out.stdout)
	}
	// Those before it are not this one's.
	if r, _ := sh(t, sb, "exit 4"); len(r.Violations) > 0 || strings.Contains(r.Reason, "memory") {
		t.Errorf("got %+v", r)
	}
	if err := sibling.Signal(unix.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	if r, err := sibling.Wait(t.Context()); err != nil || r.Signal != "SIGTERM" || len(r.Violations) > 0 {
		t.Errorf("the sibling: %+v, %v", r, err)
	}
}

func TestAForkBombEndsAlone(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{Limits: spec.Limits{Pids: 32}})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"perl", "-e", "fork while 1"}})
	eventually(t, "the bomb is at its limit", func() bool {
		pids, err := p.Leaf.Pids()
		return err == nil && len(pids) == 32
	})
	// Another starts beside it, again and again.
	for range 10 {
		if r, _ := sh(t, sb, "true"); !r.OK() {
			t.Errorf("beside it: %+v", r)
		}
	}
	if err := p.Signal(unix.SIGKILL, true); err != nil {
		t.Error(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Status == spec.StatusExited || len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Detail, "limit of 32 ") {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, out := sh(t, sb, "ps ax -o args"); strings.Contains(out.stdout, "perl") {
		t.Errorf("left:\n%s", out.stdout)
	}
}

func TestFullDisksAreNamed(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{Limits: spec.Limits{FileSize: 1 << 30, Disk: 64 << 20}, Binds: []spec.Bind{
		{Source: t.TempDir(), Target: "/tmp/shown"}, {Source: t.TempDir(), Target: "/tmp/writable", Writable: true}}})
	r, _ := sh(t, sb, "head -c 100m /dev/zero > /tmp/big")
	if r.Status != spec.StatusExited || r.OK() || !strings.Contains(r.Reason, "disk limit of 64m") || len(r.Violations) != 1 || r.Violations[0].Detail != "disk limit of 64m reached (raise it with --disk)" {
		t.Errorf("got %+v", r)
	}
	// A success is one, and is told that it has filled it.
	for _, write := range []string{"head -c 100m /dev/zero > /tmp/big || true", ": > /tmp/empty"} {
		r, _ := sh(t, sb, write)
		if !r.OK() || len(r.Violations) != 1 || r.Violations[0].Detail != "disk limit of 64m reached (raise it with --disk)" || !strings.Contains(r.Reason, "succeeded; the disk limit of 64m") {
			t.Errorf("%s: %+v", write, r)
		}
	}
	if r, _ := sh(t, sb, "echo x > /tmp/writable/x"); !r.OK() || len(r.Violations) > 0 {
		t.Errorf("another place: %+v", r)
	}
	// It is full still, but nobody has failed or written.
	if r, _ := sh(t, sb, "true"); !r.OK() || len(r.Violations) > 0 {
		t.Errorf("got %+v", r)
	}
	if r, _ := sh(t, sb, "rm /tmp/big; exit 1"); len(r.Violations) > 0 || strings.Contains(r.Reason, "limit") {
		t.Errorf("got %+v", r)
	}
	r, _ = sh(t, sb, "i=0; while : > many$i; do i=$((i+1)); done; exit 1")
	if !strings.Contains(r.Reason, "limit of 8192 files") || len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Detail, "--files") {
		t.Errorf("no file more: %+v", r)
	}
	if r, _ := sh(t, sb, "rm many*; head -c 100m /dev/zero > /dev/shm/big"); !strings.Contains(r.Reason, "/dev/shm (64m) is full (raise it with --shm-size)") || len(r.Violations) != 1 ||
		!strings.Contains(r.Violations[0].Detail, "--shm-size") {
		t.Errorf("shared memory: %+v", r)
	}
}

func TestForbiddenCallsAndSignalsAreToldApart(t *testing.T) {
	l := newTestLauncher(t)
	profile := filepath.Join(t.TempDir(), "kill.json")
	if err := os.WriteFile(profile, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_AARCH64"],
		"syscalls":[{"names":["sethostname"],"action":"SCMP_ACT_KILL_PROCESS"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	sb := createUp(t, l, "", spec.Config{Seccomp: profile})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"hostname", "x"}})
	if r, err := p.Wait(t.Context()); err != nil || r.Status != spec.StatusDenied || r.Signal != "SIGSYS" || len(r.Violations) != 1 || r.Violations[0].Kind != "syscall" {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, _ := sh(t, sb, "hostname x; exit $?"); r.Status != spec.StatusExited || r.ExitCode != 159 || !strings.Contains(r.Reason, "forbids") {
		t.Errorf("got %+v", r)
	}
	if r, _ := sh(t, sb, "kill -9 $$"); r.Status != spec.StatusSignaled || r.ExitCode != 137 || !strings.Contains(r.Reason, "no limit") {
		t.Errorf("got %+v", r)
	}
}

// That memory has run out before, in a command, is not why the sandbox is gone.
func TestALossIsNotBlamedOnAnEarlierBomb(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{Limits: spec.Limits{Memory: 64 << 20}})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	if r, _ := sh(t, sb, bomb); r.Status != spec.StatusOOMKilled {
		t.Fatalf("got %+v", r)
	}
	killInit(t, sb)
	if r, err := p.Wait(t.Context()); err != nil || r.Status != spec.StatusLost || !strings.Contains(r.Reason, "outside") {
		t.Errorf("got %+v, %v", r, err)
	}
}

// What comes as stdio is a pipe without a name or nothing.
func TestOnlyPipesArePassed(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*os.File{"socket": os.NewFile(uintptr(pair[0]), "socket"), "other socket": os.NewFile(uintptr(pair[1]), "socket")}
	for name, path := range map[string]string{"file": filepath.Join(dir, "file"), "fifo": fifo, "null": "/dev/null", "terminal": "/dev/ptmx"} {
		if files[name], err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if files["directory"], err = os.Open(dir); err != nil {
		t.Fatal(err)
	}
	for name, f := range files {
		defer f.Close()
		for i := range 3 {
			var stdio [3]*os.File
			stdio[i] = f
			before, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			p, err := sb.Start(t.Context(), spec.Command{Args: []string{"true"}}, stdio)
			if err == nil {
				p.Close()
			}
			if !isA[*fault.ConfigError](err) {
				t.Errorf("%s as %d: %v", name, i, err)
			}
			after, err := f.Stat()
			if err != nil || before.Sys().(*syscall.Stat_t).Uid != after.Sys().(*syscall.Stat_t).Uid {
				t.Errorf("%s changed hands: %v", name, err)
			}
		}
	}
	// A real one can be opened again by the command's user.
	for _, user := range []spec.User{{UID: 0, GID: 0}, {UID: 1000, GID: 1000}, {UID: 77, GID: 88}} {
		p, read := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "echo $(id -u) > /dev/stdout; echo e > /proc/self/fd/2"}, User: &user})
		if r, err := p.Wait(t.Context()); err != nil || !r.OK() {
			t.Errorf("user %v: %+v, %v", user, r, err)
		}
		if out := read(); out.stderr != "e\n" {
			t.Errorf("user %v: %q", user, out)
		}
	}
}

func TestWhatCannotStartIsTold(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	for name, test := range map[string]struct {
		command spec.Command
		is      func(error) bool
	}{
		"nothing":             {spec.Command{}, isA[*fault.ConfigError]},
		"not there":           {spec.Command{Args: []string{"no-such-command"}}, isA[*fault.NotRunError]},
		"not executable":      {spec.Command{Args: []string{"/etc/passwd"}}, isA[*fault.NotRunError]},
		"no such directory":   {spec.Command{Args: []string{"true"}, Cwd: "/nowhere"}, isA[*fault.ConfigError]},
		"relative directory":  {spec.Command{Args: []string{"true"}, Cwd: "x"}, isA[*fault.ConfigError]},
		"the agent's user":    {spec.Command{Args: []string{"true"}, User: &spec.User{UID: spec.AgentID}}, isA[*fault.ConfigError]},
		"a variable of none":  {spec.Command{Args: []string{"true"}, Env: map[string]string{"A=": "b"}}, isA[*fault.ConfigError]},
		"too little memory":   {spec.Command{Args: []string{"true"}, Limits: spec.Limits{Memory: 1 << 10}}, isA[*fault.ConfigError]},
		"negative processes":  {spec.Command{Args: []string{"true"}, Limits: spec.Limits{Pids: -1}}, isA[*fault.ConfigError]},
		"disk traffic":        {spec.Command{Args: []string{"true"}, Limits: spec.Limits{IORead: 1 << 20}}, isA[*fault.ConfigError]},
		"NUL":                 {spec.Command{Args: []string{"a\x00b"}}, isA[*fault.ConfigError]},
		"negative time":       {spec.Command{Args: []string{"true"}, Timeout: -1}, isA[*fault.ConfigError]},
		"detached terminal":   {spec.Command{Args: []string{"true"}, Detached: true, Terminal: &spec.Winsize{Rows: 1, Columns: 1}}, isA[*fault.ConfigError]},
		"detached, not there": {spec.Command{Args: []string{"no-such-command"}, Detached: true}, isA[*fault.NotRunError]},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := sb.Start(t.Context(), test.command, [3]*os.File{})
			if err == nil {
				err = p.Started(t.Context())
				if _, waitErr := p.Wait(t.Context()); waitErr == nil {
					t.Error("Wait knows a Result")
				}
				p.Close()
			}
			if !test.is(err) {
				t.Errorf("got %v", err)
			}
		})
	}
	if execs, err := sb.Execs(t.Context()); err != nil || len(execs) > 0 {
		t.Errorf("execs %+v, %v", execs, err)
	}
	all, err := sb.session.DetachedExecs()
	if err != nil || len(all) > 0 {
		t.Errorf("state left of %v, %v", all, err)
	}
}
