package cgroups

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// helperVariable, when set, turns the test binary into one of the programs of
// programs_test.go.
const helperVariable = "CGROUPS_TEST_PROGRAM"

// joinVariable tells such a program how many tasks files of a leaf it has, from
// descriptor 3 on. It joins through them before anything else.
const joinVariable = "CGROUPS_TEST_JOIN"

// testPrefix starts the name of every group that these tests make.
var testPrefix = fmt.Sprintf("/sandbox-runtime-test-%d-", os.Getpid())

var groupCount atomic.Int32

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		os.Exit(runProgram(name, os.Args[1:]))
	}
	janitor := newProgram("janitor", testPrefix)
	ended, err := janitor.StdinPipe()
	if err == nil {
		err = janitor.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	before := descriptors() // the Go runtime keeps cpu.cfs_quota_us open
	status := m.Run()
	leaks := slices.DeleteFunc(descriptors(), func(d string) bool { return slices.Contains(before, d) })
	for _, leak := range append(leaks, leakedGroups(testPrefix)...) {
		fmt.Fprintln(os.Stderr, "left behind:", leak)
		status = max(status, 1)
	}
	ended.Close()
	janitor.Wait()
	os.Exit(status)
}

// descriptors names the open descriptors of the kinds this package opens.
func descriptors() []string {
	var open []string
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, mountRoot) || strings.Contains(target, "pidfd") {
			open = append(open, link+" → "+target)
		}
	}
	return open
}

func leakedGroups(prefix string) []string {
	leaks, _ := filepath.Glob(mountRoot + prefix + "*")
	below, _ := filepath.Glob(mountRoot + "/*" + prefix + "*")
	return append(leaks, below...)
}

// realHost probes this host, and skips the test where groups cannot be made.
func realHost(t testing.TB) *Host {
	t.Helper()
	testhost.NeedRoot(t, "cgroups are made")
	h, err := Probe()
	if err != nil {
		t.Skipf("no cgroups: %v", err)
	}
	return h
}

// views are the ways in which one host can be seen: as it is, and for a hybrid
// one also as if it had only its v1 hierarchies, or only the v2 one.
func views(t *testing.T) map[string]*Host {
	t.Helper()
	h := realHost(t)
	all := map[string]*Host{string(h.Mode): h}
	if h.Mode != Hybrid {
		return all
	}
	v1 := *h
	v1.Mode = V1
	v1.trees = slices.DeleteFunc(slices.Clone(h.trees), func(t tree) bool { return t.v2 })
	all["v1 of hybrid"] = &v1
	unified, _ := h.unified()
	v2, err := probe(unified.dir)
	if err != nil {
		t.Fatal(err)
	}
	all["v2 of hybrid"] = v2
	return all
}

// box is a parent with limits and a group in it for processes, as libcontainer
// makes it: in every hierarchy of the host.
type box struct {
	t      testing.TB
	host   *Host
	parent string
	path   string
	limits Limits // of the parent's children
}

// parentLimits are the limits of a box's parent. Zero sets none.
type parentLimits struct {
	Totals
	pids int64
}

func newBox(t testing.TB, limits *parentLimits) *box {
	t.Helper()
	if limits == nil {
		limits = &parentLimits{}
	}
	h := realHost(t)
	b := &box{t: t, host: h, parent: testPrefix + strconv.Itoa(int(groupCount.Add(1)))}
	t.Cleanup(func() { scrub(t, h, b.parent) })
	var err error
	if b.limits, err = h.EnsureParent(b.parent, limits.pids); err != nil {
		t.Fatal(err)
	}
	b.limit(limits.Totals)
	b.path = b.parent + "/box"
	b.mkdir(b.path)
	return b
}

// limit sets limits of the parent that the host enforces, that of memory with swap included.
func (b *box) limit(totals Totals) {
	b.t.Helper()
	g := &Group{host: b.host, path: b.parent}
	swap := setting{controller: "memory", file: "memory.memsw.limit_in_bytes", value: strconv.FormatInt(totals.Memory, 10)}
	if b.host.Mode == V2 {
		swap.file, swap.value = "memory.swap.max", "0"
	}
	if totals.Memory > 0 {
		_, _ = g.files().set(swap) // refused, unless the limit of memory rises
	}
	err := ignore(g.LimitTotals(totals), errors.ErrUnsupported)
	if err == nil && totals.Memory > 0 {
		_, err = g.files().set(swap)
	}
	if ignore(err, errors.ErrUnsupported) != nil {
		b.t.Fatal(err)
	}
}

// mkdir makes a group in every hierarchy.
func (b *box) mkdir(path string) {
	b.t.Helper()
	for _, tree := range b.host.trees {
		b.mkdirIn(tree, path)
	}
}

func (b *box) mkdirIn(tree tree, path string) {
	b.t.Helper()
	if err := os.MkdirAll(tree.path(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if !slices.Contains(tree.controllers, "cpuset") || tree.v2 {
		return
	}
	for _, file := range []string{"/cpuset.cpus", "/cpuset.mems"} {
		value := readString(b.t, filepath.Dir(tree.path(path))+file)
		writeString(b.t, tree.path(path)+file, value)
	}
}

// join moves a process into the group at path in every hierarchy.
func (b *box) join(pid int, path string) {
	b.t.Helper()
	for _, tree := range b.host.trees {
		writeString(b.t, tree.path(path)+"/cgroup.procs", strconv.Itoa(pid))
	}
}

// group opens the box's group as host sees it; nil means the host as it is.
func (b *box) group(host *Host) *Group {
	b.t.Helper()
	if host == nil {
		host = b.host
	}
	g, err := host.Open(b.path)
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

// program is one of the programs of programs_test.go, running.
type program struct {
	*exec.Cmd
	in   io.WriteCloser
	pipe *os.File      // its stdout
	out  *bufio.Reader // of pipe
}

// run starts a program, moves it into the box's group and then lets it go.
func (b *box) run(name string, args ...string) *program {
	b.t.Helper()
	p := newProgram(name, args...)
	p.start(b.t)
	b.join(p.Process.Pid, b.path)
	p.release(b.t)
	return p
}

func newProgram(name string, args ...string) *program {
	p := &program{Cmd: exec.Command("/proc/self/exe", args...)}
	p.Env = append(os.Environ(), helperVariable+"="+name)
	p.Stderr = os.Stderr
	return p
}

// start starts the program, which waits until it is released.
func (p *program) start(t testing.TB) {
	t.Helper()
	var err error
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.pipe = out.(*os.File)
	p.out = bufio.NewReader(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.in.Close()
		p.Process.Kill()
		if p.ProcessState == nil {
			p.wait(time.Second) // a frozen one ends only when the box is scrubbed
		}
	})
}

func (p *program) release(t testing.TB) {
	t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		t.Fatal(err)
	}
}

// line reads a line of what the program prints.
func (p *program) line(t testing.TB) string {
	t.Helper()
	if err := p.pipe.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("read from the program: %v", err)
	}
	return strings.TrimSpace(line)
}

const patience = testhost.Patience

// bounded is a context for calls that have to end.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// wait waits for the program's end, at most for so long.
func (p *program) wait(atMost time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- p.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(atMost):
		return errors.New("the program does not end")
	}
}

// killed waits for the program's end and tells whether SIGKILL was it.
func (p *program) killed() bool {
	var exit *exec.ExitError
	if !errors.As(p.wait(patience), &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// scrub kills and removes a group with everything in it by other means than
// the code under test, so that a test that fails leaves nothing either.
func scrub(t testing.TB, h *Host, path string) {
	t.Helper()
	var dirs []string
	for _, tree := range h.trees {
		dirs = append(dirs, tree.path(path))
	}
	if err := scrubAll(dirs); err != nil {
		t.Errorf("cannot clean up: %v", err)
	}
}

func scrubAll(groups []string) error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		err = nil
		for _, group := range groups {
			err = errors.Join(err, scrubOnce(group))
		}
		if err == nil {
			break
		}
	}
	return err
}

// scrubOnce thaws, kills and removes what it can.
func scrubOnce(group string) error {
	var dirs []string
	filepath.WalkDir(group, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, name)
		}
		return nil
	})
	slices.Reverse(dirs)
	var errs []error
	for _, dir := range dirs {
		for file, value := range map[string]string{"/cgroup.freeze": "0", "/freezer.state": "THAWED"} {
			if exists(dir + file) {
				os.WriteFile(dir+file, []byte(value), 0)
			}
		}
		procs, _ := os.ReadFile(dir + "/cgroup.procs")
		for pid := range strings.FieldsSeq(string(procs)) {
			if n, _ := strconv.Atoi(pid); n > 0 { // 0 stands for one in another pid namespace
				unix.Kill(n, unix.SIGKILL)
			}
		}
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("rmdir %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

func readString(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func writeString(t testing.TB, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}
