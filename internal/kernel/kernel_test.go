package kernel

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// configured are the features that a kernel or a host may be without whatever
// its version: a matter of its configuration.
var configured = []Feature{
	Privilege, IDRange, UserNamespaces, TimeNamespaces, IDMappedMounts, Procfs, Overlay, HostOverlay, OverlayInUserNamespaces,
	MemfdExec, Ptrace, Landlock, LandlockNetwork, LandlockScopes, Nftables,
	FileEvents,
}

// A probe that fails on a kernel which has the feature is a broken probe.
func TestFeaturesAreFoundOnKernelsThatHaveThem(t *testing.T) {
	needRoot(t)
	host, err := Describe()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Survey() {
		t.Run(string(f.Name), func(t *testing.T) {
			switch {
			case f.Err == nil:
			case host.Version.Before(f.Since):
				t.Skipf("needs Linux %s, this is %s", f.Since, host.Version)
			case slices.Contains(configured, f.Name):
				t.Skipf("this host lacks %s: %v", f.Title, f.Err)
			default:
				t.Errorf("Linux %s has had it since %s: %v", host.Version, f.Since, f.Err)
			}
		})
	}
}

func TestTableIsComplete(t *testing.T) {
	seen := make(map[Feature]bool)
	for _, f := range Features() {
		if seen[f.Name] {
			t.Errorf("%s is there twice", f.Name)
		}
		seen[f.Name] = true
		if f.Group == "" || f.Title == "" || f.Lost == "" || f.Get == "" || f.probe == nil {
			t.Errorf("%s lacks a field: %+v", f.Name, f)
		}
		if f.Since == (Version{}) && f.Name != Privilege {
			t.Errorf("%s: since which kernel?", f.Name)
		}
		if strings.HasPrefix(f.Lost, noSandbox) != (f.Need == Required) {
			t.Errorf("%s is %s, and what is lost is %q", f.Name, f.Need, f.Lost)
		}
	}
}

func TestMinimumIsMountSetattrs(t *testing.T) {
	if got, want := Minimum(), v(5, 12); got != want {
		t.Errorf("Minimum() = %s, want %s: docs/kernel.md explains that one", got, want)
	}
}

func TestCheckRequiredIsSilentWhereNothingLacks(t *testing.T) {
	needRoot(t)
	for _, f := range Survey() {
		if f.Need == Required && f.Err != nil {
			t.Skipf("this host lacks %s: %v", f.Title, f.Err)
		}
	}
	if err := CheckRequired(); err != nil {
		t.Error(err)
	}
}

func TestErrorNamesFeatureCauseAndRemedy(t *testing.T) {
	p := &prober{admin: true}
	lacking := func(probe func(*prober) (string, error)) error {
		return p.find(Info{Name: IDMappedMounts, Title: "idmapped mounts", Since: v(99, 1), Get: "ask", probe: probe}).Err
	}
	err := lacking(func(*prober) (string, error) { return "", &callError{"mount_setattr", unix.ENOSYS} })
	host, _ := Describe()
	want := "idmapped mounts: not supported here (mount_setattr: function not implemented): run Linux 99.1 or newer, this is " + host.Version.String()
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if !errors.Is(err, ErrNotSupported) || !errors.Is(err, unix.ENOSYS) {
		t.Errorf("%v is not ErrNotSupported or not ENOSYS", err)
	}
	err = lacking(func(*prober) (string, error) { return "", errors.New("no memory") })
	if err == nil || errors.Is(err, ErrNotSupported) {
		t.Errorf("a probe that could not be made gave %v, want an error that is not ErrNotSupported", err)
	}
}

func TestSurveyLeavesNothing(t *testing.T) {
	children := func() string {
		var all []string
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			all = append(all, strings.Fields(read("/proc/self/task/"+task.Name()+"/children"))...)
		}
		return strings.Join(all, " ")
	}
	state := func() map[string]string {
		return map[string]string{
			"mounts":      read("/proc/self/mountinfo"),
			"descriptors": strings.Join(testhost.Descriptors(), "\n"),
			"children":    children(),
			"signals":     ProcessStatus()["SigBlk"],
			"filters":     ProcessStatus()["Seccomp"],
			"no_new_priv": ProcessStatus()["NoNewPrivs"],
		}
	}
	Survey() // the Go runtime opens its own descriptors at the first wait
	before := state()
	Survey()
	IDMappedPaths("/usr", ".", os.TempDir())
	after := state()
	for what, was := range before {
		if after[what] != was {
			t.Errorf("%s: was %q, is %q", what, was, after[what])
		}
	}
}

func TestProbesAreNobodysChildren(t *testing.T) {
	// A host of this package that waits for any child must not meet ours.
	s := newScript()
	defer s.free()
	s.call("ppoll", unix.SYS_PPOLL, num(0), num(0), num(0), num(0))
	c, err := s.start(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("wait for any child: %v, want ECHILD", err)
	}
	c.kill()
	if err := c.wait(); err == nil {
		t.Error("a child that was killed gave no error")
	}
	c.kill() // of a pid that may be another's by now: nothing
}

func TestScriptEndsAtTheFirstFailure(t *testing.T) {
	s := newScript()
	defer s.free()
	r := s.call("getppid", unix.SYS_GETPPID)
	s.call("close", unix.SYS_CLOSE, num(-1))
	s.call("exit", unix.SYS_EXIT_GROUP, num(7))
	err := s.run(0, nil)
	var failed *callError
	if !errors.As(err, &failed) || failed.call != "close" || !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v, want that close failed with EBADF", err)
	}
	if got := s.result(r); got != os.Getpid() {
		t.Errorf("the child's parent is %d, want %d", got, os.Getpid())
	}
}

func TestScriptWantsItsErrors(t *testing.T) {
	s := newScript()
	defer s.free()
	s.call("close", unix.SYS_CLOSE, num(-1))
	s.want(unix.EBADF)
	s.call("getpid", unix.SYS_GETPID)
	s.want(unix.ENOSYS)
	if err := s.run(0, nil); err == nil || !strings.Contains(err.Error(), "getpid: no error") {
		t.Errorf("got %v, want that getpid succeeded where it should not", err)
	}
}

func TestScriptHasLimits(t *testing.T) {
	s := newScript()
	defer s.free()
	for range maxCalls + 1 {
		s.call("getpid", unix.SYS_GETPID)
	}
	if err := s.run(0, nil); err == nil {
		t.Error("a script of too many calls ran")
	}
	big := newScript()
	defer big.free()
	big.buffer(2 * sharedMemory)
	if err := big.run(0, nil); err == nil {
		t.Error("a script with too long arguments ran")
	}
}

func TestHangingCallIsGivenUp(t *testing.T) {
	t.Parallel()
	s := newScript()
	defer s.free()
	s.call("ppoll", unix.SYS_PPOLL, num(0), num(0), num(0), num(0))
	if err := s.run(0, nil); err == nil || !strings.Contains(err.Error(), "ppoll: no answer") {
		t.Errorf("got %v, want that ppoll gave no answer", err)
	}
}

func TestOtherPidNamespacesProcIsNotWritten(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "unchanged", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, UserNamespaces)
	if v := got[UserNamespaces]; v.NotSupported || !strings.Contains(v.Text, "/proc belongs to another pid namespace") {
		t.Errorf("got %q, want that it was not tried", v.Text)
	}
}

func TestIDMappedPathsNameTheFileSystem(t *testing.T) {
	for _, p := range IDMappedPaths("/proc", "/does/not/exist") {
		switch {
		case p.Path == "/proc" && p.Filesystem != "proc":
			t.Errorf("/proc is on %q", p.Filesystem)
		case p.Path != "/proc" && p.Filesystem != "unknown":
			t.Errorf("%s is on %q", p.Path, p.Filesystem)
		case p.IDMapped == nil:
			t.Errorf("%s can be mounted with other ids", p.Path)
		}
	}
}

func TestVersions(t *testing.T) {
	for release, want := range map[string]Version{"6.1.0-18-amd64": v(6, 1), "5.12": v(5, 12), "4.19.112+": v(4, 19)} {
		if got, err := parseVersion(release); err != nil || got != want {
			t.Errorf("parseVersion(%q) = %v, %v; want %v", release, got, err, want)
		}
	}
	for _, release := range []string{"", "six", "6", "6."} {
		if got, err := parseVersion(release); err == nil {
			t.Errorf("parseVersion(%q) = %v, want an error", release, got)
		}
	}
	if !v(5, 9).Before(v(5, 12)) || !v(4, 19).Before(v(5, 0)) || v(5, 12).Before(v(5, 12)) || v(6, 0).Before(v(5, 12)) {
		t.Error("Before is not an order of versions")
	}
}

func TestSubordinateIDs(t *testing.T) {
	owners := []string{"1000", "alice"}
	tests := map[string]struct {
		start int
		ok    bool
	}{
		"alice:100000:65536":  {100000, true},
		"1000:200000:131072":  {200000, true},
		"alice:100000:65535":  {0, false},
		"alicia:100000:65536": {0, false},
		"alice:many:65536":    {0, false},
		"alice:100000":        {0, false},
		"":                    {0, false},
	}
	for line, want := range tests {
		file := filepath.Join(t.TempDir(), "subuid")
		if err := os.WriteFile(file, []byte("alice:many:65536\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		start, ok, err := subordinateOf(file, owners)
		if err != nil || ok != want.ok || start != want.start {
			t.Errorf("%q: %d, %v, %v; want %d, %v", line, start, ok, err, want.start, want.ok)
		}
	}
}

func TestSubordinateIDsComeFromNewuidmap(t *testing.T) {
	needRoot(t)
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	if _, err := subordinateStart("/etc/subuid"); err != nil {
		t.Skipf("root has no subordinate ids: %v", err)
	}
	if _, err := probeSubordinateIDs(); err != nil {
		t.Error(err)
	}
}
