package apply

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

const swaps = 10_000

// A swapper is a process that exchanges two names in a directory, as fast as it
// can, until it is stopped.
type swapper struct {
	cmd *exec.Cmd
	out *bufio.Reader
	in  io.Closer
	// enough is closed when it has swapped often enough.
	enough chan struct{}
}

func startSwapper(t *testing.T, dir, first, second string) *swapper {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", dir, first, second)
	cmd.Env = append(os.Environ(), roleVariable+"=swap")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &swapper{cmd: cmd, out: bufio.NewReader(out), in: in, enough: make(chan struct{})}
	t.Cleanup(func() { in.Close() }) // it ends, whatever has failed
	if line, err := s.out.ReadString('\n'); err != nil || line != "started\n" {
		t.Fatalf("swapper says %q: %v", line, err)
	}
	go func() {
		defer close(s.enough)
		_, _ = s.out.ReadString('\n')
	}()
	return s
}

// swapRole swaps until its standard input ends, and says when it has done so
// 10,000 times. The first name may be a pattern.
func swapRole(args []string) error {
	dir, err := os.Open(args[0])
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, _ = os.Stdin.Read(make([]byte, 1))
	}()
	os.Stdout.WriteString("started\n")
	for n := 0; ; {
		select {
		case <-stop:
			os.Stdout.WriteString(strconv.Itoa(n) + "\n")
			return nil
		default:
		}
		found, err := filepath.Glob(filepath.Join(args[0], args[1]))
		if err != nil {
			return err
		}
		for _, first := range found {
			err := unix.Renameat2(int(dir.Fd()), filepath.Base(first), int(dir.Fd()), args[2], unix.RENAME_EXCHANGE)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			if n++; n == swaps {
				os.Stdout.WriteString("enough\n")
			}
		}
	}
}

func (s *swapper) done() bool {
	select {
	case <-s.enough:
		return true
	default:
		return false
	}
}

func (s *swapper) stop(t *testing.T) {
	t.Helper()
	s.in.Close()
	line, err := s.out.ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%s swaps", strings.TrimSpace(line))
}

// An attackedTree is on a file system of its own, with a canary outside.
type attackedTree struct {
	t                  *testing.T
	dir, tree, outside string
	layers             [2]string
	kept               []string // by applies that were taken back
}

var keptName = regexp.MustCompile(regexp.QuoteMeta(keptPrefix) + "[a-z0-9]+")

func newAttackedTree(t *testing.T) *attackedTree {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	sh(t, dir, `mkdir -p tree/p/sub tree/p/gone outside/sub outside/gone A/p/sub B/p/sub B/p/gone
		echo b > tree/p/f; echo b > tree/p/g; echo b > tree/p/sub/f; echo b > tree/p/gone/f; echo canary > outside/canary
		echo canary > outside/f; echo canary > outside/g; echo canary > outside/sub/f; echo canary > outside/gone/f
		ln -s ../outside tree/l
		echo a > A/p/f; echo a > A/p/new; mknod A/p/g c 0 0; echo a > A/p/sub/f; mknod A/p/gone c 0 0; chmod 700 A/p A/p/sub
		echo b > B/p/f; mknod B/p/new c 0 0; echo b > B/p/g; echo b > B/p/sub/f; echo b > B/p/gone/f; touch -d 2001-01-01 B/p/*`)
	return &attackedTree{t: t, dir: dir, tree: filepath.Join(dir, "tree"), outside: filepath.Join(dir, "outside"),
		layers: [2]string{filepath.Join(dir, "A"), filepath.Join(dir, "B")}}
}

// apply applies one of the layers, or fails to.
func (a *attackedTree) apply(n int) error {
	a.t.Helper()
	tree := openDir(a.t, a.tree)
	defer tree.Close()
	upper := openDir(a.t, a.layers[n%2])
	defer upper.Close()
	p, err := New(&layer.Stack{Layers: []layer.Layer{{Dir: upper}}, Base: tree}, tree, Options{Overwrite: true})
	if err != nil {
		return err
	}
	_, err = p.Commit(a.t.Context())
	if err != nil {
		a.kept = append(a.kept, keptName.FindAllString(err.Error(), -1)...)
	}
	return errors.Join(err, p.Close())
}

// applyUnder applies again and again while two names are swapped.
func (a *attackedTree) applyUnder(first, second string, times int) (done, failed int) {
	a.t.Helper()
	before := describeTree(a.t, a.outside)
	s := startSwapper(a.t, a.tree, first, second)
	for n := 0; n < times || !s.done(); n++ {
		if err := a.apply(n); err == nil {
			done++
		} else {
			failed++
		}
	}
	s.stop(a.t)
	b := &box{t: a.t}
	b.wantSame(before, describeTree(a.t, a.outside))
	return done, failed
}

func TestASwappedParentLeadsNowhere(t *testing.T) {
	testhost.Concurrent(t)
	a := newAttackedTree(t)
	done, failed := a.applyUnder("p", "l", 1000)
	t.Logf("%d applied, %d not", done, failed)
	if done == 0 || failed == 0 {
		t.Errorf("%d applied, %d not: the swaps made no difference", done, failed)
	}
	tree := openDir(t, a.tree)
	ended, err := Recover(tree, false, nil)
	a.kept = append(a.kept, ended.Kept...)
	if err != nil { // what is to be restored has the other name now
		sh(t, a.tree, `mv -T p x; mv -T l p; mv -T x l`)
		ended, err := Recover(tree, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.kept = append(a.kept, ended.Kept...)
	}
	t.Logf("%d kept", len(a.kept))
	for _, name := range a.kept { // a directory that took the other one's place
		if err := os.RemoveAll(filepath.Join(a.tree, name)); err != nil {
			t.Error(err)
		}
	}
	b := &box{t: t, tree: a.tree}
	b.clean()
	// Where the link was in p's place when the plan was made, it was replaced: then
	// two directories were swapped, and a plan may have looked at both.
	for n := range 2 {
		if err := a.apply(n); err != nil {
			t.Error(err)
		}
	}
	sh(t, a.tree, `[ $(cat p/f p/g p/sub/f p/gone/f | tr -d '\n') = bbbb ]; [ ! -e p/new ]`)
}

func TestASwappedStagingDirectoryLeadsNowhere(t *testing.T) {
	testhost.Concurrent(t)
	a := newAttackedTree(t)
	done, failed := a.applyUnder(journalPrefix+"*", "l", 300)
	t.Logf("%d applied, %d not", done, failed)
	if failed == 0 {
		t.Error("the swaps made no difference")
	}
}
