package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// doRefusals are arguments of do, before the command, that it must refuse, and
// what its one line must say. DIR stands for a folder of the test's.
var doRefusals = []struct {
	args string
	says string
}{
	{"--config DIR/missing", "DIR/missing"},
	{"--config DIR/broken.json", "DIR/broken.json"},
	{"--config DIR/unknown.json", "nonsense"},
	{"--config DIR/negative.json", "DIR/negative.json"},
	{"--memory -1", "memory"},
	{"--memory 12x", "12x"},
	{"--memory 1k", "--memory: 1k is not between 16m and [0-9]*g\n$"},
	{"--memory 99999999999999999999g", "99999999999999999999g"},
	{"--cpus -1", "cpus"},
	{"--cpus nan", "nan"},
	{"--cpus 1e300", "cpus|1e300"},
	{"--cpus many", "many"},
	{"--pids -5", "pids"},
	{"--pids 99999999999", "pids"},
	{"--file-size -1", "file-size|-1"},
	{"--io-read -1", "io-read|-1"},
	{"--io-write x", "io-write|x"},
	{"--network-rate 1m", `--network-rate: needs the network "full"`},
	{"--network none --network-quota 1m", `--network-quota: needs the network "proxied" or "full"`},
	{"--network full --network-requests 1", `--network-requests: needs the network "proxied"`},
	{"--allow example.com --network-rate 1m", `--network-rate: needs the network "full"`},
	{"--allow example.com --allow bad..name", `--allow: "bad..name": label 2, "", is empty`},
	{"--network full --observe", `--observe: needs the network "proxied"`},
	{"--network full --network-rate 0", "--network-rate: 0 is too little"},
	{"--network full --network-rate -1", "--network-rate"},
	{"--network full --network-rate 1k", "--network-rate: 1k is not between 64k and 128g"},
	{"--network full --network-rate 129g", "--network-rate: 129g is not between 64k and 128g"},
	{"--network full --network-rate 99999999999999g", "--network-rate: 99999999999999g is too large"},
	{"--network full --network-quota 0", "--network-quota: 0 is too little"},
	{"--network full --network-quota fast", "--network-quota.*fast"},
	{"--timeout -1s", "timeout"},
	{"--timeout soon", "soon"},
	{"--user -1", "user|-1"},
	{"--user ann", "--user: user ann: no such name"},
	{"--user root:ann", "--user: group ann: no such name"},
	{"--user root:", "root:"},
	{"--bind DIR:/etc/passwd --user root", "--user: .*/etc/passwd"},
	{"--rootfs DIR --user root", "--user: .*DIR/etc/passwd"},
	{"--user 65535", "65535"},
	{"--user 4294967295", "4294967295"},
	{"--env =x", "=x"},
	{"--env noequals", "noequals"},
	{"--cwd relative", "relative"},
	{"--cwd /not/there", "/not/there"},
	{"--hostname a/b", "a/b"},
	{"--seccomp nonsense", "nonsense"},
	{"--seccomp DIR/missing.json", "DIR/missing.json"},
	{"--seccomp DIR/broken.json", "DIR/broken.json"},
	{"--network nonsense", "nonsense"},
	{"--pid pod", "--pid: unknown pid namespace \"pod\""},
	{"--pid host --storage disk", "--storage: .*outlive"},
	{"--bind nocolon", "nocolon"},
	{"--bind DIR:relative", "relative"},
	{"--bind DIR/missing:/x", "DIR/missing"},
	{"--bind DIR:/x:wx", "wx"},
	{"--bind DIR:/proc", "/proc"},
	{"--bind /etc:/x:rw", "/etc"},
	{"--rootfs DIR/missing", "DIR/missing"},
	{"--rootfs DIR/broken.json", "DIR/broken.json"},
	{"--workspace DIR/missing", "DIR/missing"},
	{"--workspace DIR/broken.json", "DIR/broken.json"},
	{"--workspace /", "workspace /"},
	{"--workspace /etc", "/etc"},
	{"--workspace /etc/../etc/ssl", "/etc"},
	{"--workspace /usr", "/usr"},
	{"--workspace /usr/share", "/usr"},
	{"--workspace /bin", "/bin"},
	{"--workspace /boot", "/boot"},
	{"--workspace /dev", "/dev"},
	{"--workspace /proc", "/proc"},
	{"--workspace /sys", "/sys"},
	{"--workspace /run", "/run"},
	{"--workspace /root", "/root"},
	{"--workspace /var", "/var"},
	{"--workspace /var/lib", "/var"},
	{"--workspace DIR/to-etc", "/etc"},
	{"--workspace DIR/to-etc/ssl", "/etc"},
	{"--files 10", "files"},
	{"--disk 10", "disk"},
	{"--disk 2g", "--disk: 2g in memory is more"},
	{"--disk 500000g --storage disk", "--disk: .*free|disk.* free"},
	{"--overlay DIR/missing", "DIR/missing"},
	{"--overlay DIR/not-\xff-text", `--overlay: ".*not-.xff-text" is not UTF-8`},
	{"--storage tape", "storage"},
	{"--image .:latest", `--image \.:latest`},
	{"--network none --allow example.org", "--allow: needs the network"},
	{"--network some", "proxied"},
	{"--network full --allow example.org", "--allow"},
	{"--network full --allow example.com", "example.com"},
	{"--sensitivity secret --publish 8080:80", "--publish: needs a level"},
	{"--network full --publish 0:80", `--publish.*"0:80"`},
}

// Each is refused with status 125, one line that names what the user typed,
// nothing on stdout, and nothing left behind.
func TestDoRefusesBadInput(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"broken.json": `{"limits":`, "unknown.json": `{"nonsense": 1}`, "negative.json": `{"limits": {"memory": -5}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "to-etc")); err != nil {
		t.Fatal(err)
	}
	for _, row := range doRefusals {
		t.Run(row.args, func(t *testing.T) {
			s := newSandboxes(t)
			args := strings.Fields(strings.ReplaceAll(row.args, "DIR", dir))
			got := s.do(append(args, "--", "touch", "canary")...)
			wantRefusal(t, got, strings.ReplaceAll(row.says, "DIR", regexp.QuoteMeta(dir)))
			o := s.json(append(args, "--", "true")...)
			if o.Status != "error" || o.ExitCode != -1 || o.Reason == "" {
				t.Errorf("--json: %+v", o)
			}
		})
	}
}

func wantRefusal(t *testing.T, got result, says string) {
	t.Helper()
	if got.code != 125 || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || !regexp.MustCompile(says).MatchString(got.stderr) {
		t.Errorf("got %+v, want status 125 and one line that matches %q", got, says)
	}
}

func TestDoRefusesWrongUsage(t *testing.T) {
	s := newSandboxes(t)
	wantRefusal(t, s.do("--nonsense", "--", "true"), "nonsense")
	wantRefusal(t, s.do(), "command")
	wantRefusal(t, s.do("--"), "command")
	wantRefusal(t, s.do("--", ""), "the command is empty")
	// It would be the working directory's.
	wantRefusal(t, run(t, exec.Command(binary(t), "--root", "", "do", "--", "true")), "--root is empty")
	// What cannot be is not looked for when what was begun is undone.
	wantRefusal(t, run(t, exec.Command(binary(t), "--root", s.root, "--data", "/etc/passwd", "do", "--", "true")), "--data.*/etc/passwd")
	if left := s.state(); len(left) > 0 {
		t.Errorf("left in the state root: %q", left)
	}
}

func TestDoWithoutAWritableCgroupIsRefused(t *testing.T) {
	s := newSandboxes(t)
	need(t, peers())
	args := append([]string{"--mount", "sh", "-c", readOnlyCgroups, peer("bin/busybox")}, s.command("do", "--", "true").Args...)
	wantRefusal(t, run(t, exec.Command("unshare", args...)), "cgroup")
}

func TestDoWithoutPermissionIsRefused(t *testing.T) {
	s := newSandboxes(t)
	dir, err := os.MkdirTemp("", "program") // t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "program")
	if err := errors.Join(os.Chmod(dir, 0o755), ocibundle.CopyProgram(binary(t), program)); err != nil {
		t.Fatal(err)
	}
	asNobody := func(args ...string) result {
		cmd := exec.Command(program, append([]string{"--root", s.root}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return run(t, cmd)
	}
	wantRefusal(t, asNobody("do", "--", "true"), `run it as root.*permission denied\)\n$`)
	s.up("box")
	for _, args := range []string{"changes box", "apply --yes box", "undo box", "discard box", "snapshot box x", "down box", "prune"} {
		if got := asNobody(strings.Fields(args)...); got.code != 1 || !strings.Contains(got.stderr, "permission denied; run this as") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	wantRefusal(t, run(t, exec.Command(binary(t), "--root", "/proc/nowhere", "do", "--", "true")), "/proc/nowhere")
}

// A symlink that changes between an allowed and a forbidden folder while do
// looks at it never gets the forbidden one mounted.
func TestWorkspaceSwappedForASymlinkGainsNothing(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	allowed, link, next := filepath.Join(dir, "allowed"), filepath.Join(dir, "link"), filepath.Join(dir, "next")
	forbidden := "/run/forbidden" // all of /run is, and it is the world's own
	for _, d := range []string{allowed, forbidden} {
		if err := os.Mkdir(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.RemoveAll(forbidden) })
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- swapLinks(stop, next, link, allowed, forbidden) }()
	ran, refused := 0, 0
	for range 60 {
		switch got := s.do("--workspace", link, "--", "touch", "canary"); got.code {
		case 0:
			ran++
		case 125:
			refused++
		default:
			t.Errorf("got %+v", got)
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if ran == 0 || refused == 0 {
		t.Logf("the race was not run: %d ran, %d refused", ran, refused)
	}
	if exists(filepath.Join(forbidden, "canary")) {
		t.Error("the forbidden folder was written to")
	}
}

// swapLinks points link to one target after the other until stop is closed.
func swapLinks(stop <-chan struct{}, next, link string, targets ...string) error {
	for i := 0; ; i++ {
		if err := os.Symlink(targets[i%len(targets)], next); err != nil {
			return err
		}
		if err := os.Rename(next, link); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

func TestDoLocalRefusesOverlays(t *testing.T) {
	s, dir := newSandboxes(t), t.TempDir()
	got := s.do("--local", "--workspace", dir, "--overlay", dir, "--", "touch", "written")
	want := "--overlay: a command without isolation cannot have this; leave it out, or run in a sandbox"
	if got.code != 125 || !strings.Contains(got.stderr, want) {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "written")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the command ran on the host: %v", err)
	}
}
