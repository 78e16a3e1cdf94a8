package layer

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// swaps is how often names are exchanged under the reader at least.
const swaps = 10_000

const canary = "the canary, which nobody may read"

// TestSwapsNeverLeadOutside has another process exchange directories and files
// with links that lead outside, in the layer and in the base, while they are
// listed and opened.
func TestSwapsNeverLeadOutside(t *testing.T) {
	o := newOverlay(t)
	outside := filepath.Join(o.dir, "outside")
	sh(t, o.dir, `mkdir outside; mkdir outside/sub; chmod 751 outside/sub`)
	for _, name := range []string{"f", "g", "only-outside", "sub/f"} {
		write(t, filepath.Join(outside, name), canary)
	}
	for i, dir := range []string{o.base, o.layer(0)} {
		o.mkdir(dir)
		sh(t, dir, fmt.Sprintf(`mkdir -p d/sub d/more; echo %d > d/f; echo > d/g; echo > d/sub/f; echo > file; mkfifo fifo
			ln -s %s d-swap; ln -s %s/f file-swap; ln -s %s/f fifo-swap; mkdir x; echo > x-swap`, i, outside, outside, outside))
	}
	o.layers = 1
	s := o.stack()
	stop := swapIn(t, o.base, o.layer(0))
	seen := map[string]bool{}
	for n := 0; n < 300 || stop.count() < swaps; n++ {
		listAll(t, s, seen)
		openAll(t, s, seen)
		if t.Failed() {
			break
		}
	}
	stop.end()
	if n := stop.count(); n < swaps {
		t.Errorf("names were exchanged only %d times", n)
	}
	for _, want := range []string{"d directory", "d symlink", "d/f", "open d/f", "not d/f", "open file", "not file"} {
		if !seen[want] {
			t.Errorf("never saw %q: nothing was tested", want)
		}
	}
}

func listAll(t *testing.T, s *Stack, seen map[string]bool) {
	for _, options := range []Options{{}, {Names: true}, {Deleted: true}} {
		for c, err := range s.Changes(options) {
			if err != nil {
				t.Errorf("list %s: %v", c.Path, err)
			}
			if c.Size == int64(len(canary)) || c.Mode == 0o751 || strings.HasSuffix(c.Path, "only-outside") {
				t.Errorf("the list tells of outside: %+v", c)
			}
			seen[c.Path] = true
			seen[c.Path+" "+string(c.Type)] = true
		}
	}
}

func openAll(t *testing.T, s *Stack, seen map[string]bool) {
	for _, path := range []string{"d/f", "d/sub/f", "file", "fifo", "x/f", "d-swap/f", "file-swap"} {
		for _, open := range []func(string) (*os.File, error){s.Open, s.OpenBelow} {
			f, err := open(path)
			if err != nil {
				seen["not "+path] = true
				continue
			}
			seen["open "+path] = true
			b := make([]byte, 100)
			n, _ := f.Read(b)
			f.Close()
			if string(b[:n]) == canary {
				t.Errorf("%s: read the canary", path)
			}
		}
		c, err := s.Below(path)
		if err == nil && (c.Type == spec.TypeFile && c.Size == int64(len(canary)) || c.Mode == 0o751) {
			t.Errorf("below %s: %+v", path, c)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("below %s: %v", path, err)
		}
	}
}

// swapper is this program, run again as the other process.
type swapper struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface{ Close() error }
	out *bufio.Scanner
	n   int
}

const swapVariable = "LAYER_TEST_SWAP"

func swapIn(t *testing.T, dirs ...string) *swapper {
	t.Helper()
	return another(t, swapVariable+"="+strings.Join(dirs, ":"))
}

func another(t *testing.T, variable string) *swapper {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), variable)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &swapper{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(s.end)
	return s
}

// count asks how often it has exchanged names.
func (s *swapper) count() int {
	if s.in == nil {
		return s.n
	}
	if s.out.Scan() {
		s.n, _ = strconv.Atoi(s.out.Text())
	}
	return s.n
}

func (s *swapper) end() {
	if s.in == nil {
		return
	}
	s.in.Close()
	for s.out.Scan() {
		s.n, _ = strconv.Atoi(s.out.Text())
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Error(err)
	}
	s.in = nil
}

// TestListingWhileTheSandboxWrites is one of what there was at some time, without
// an error and with an end.
func TestListingWhileTheSandboxWrites(t *testing.T) {
	o := newOverlay(t)
	monkey{rand.New(rand.NewPCG(1, 2))}.act(o.base, 300)
	o.push()
	sh(t, o.merged, "rm -r a/* || true")
	s := o.stack()
	other := another(t, monkeyVariable+"="+o.merged)
	for n := 0; n < 200 || other.count() < swaps; n++ {
		for _, options := range []Options{{}, {Names: true}, {Deleted: true}} {
			for c, err := range s.Changes(options) {
				if err != nil {
					t.Errorf("%q: %v", c.Path, err)
				}
				if c.Kind != spec.Deleted && c.Type == spec.TypeFile {
					if f, err := s.Open(c.Path); err == nil {
						f.Close()
					}
				}
			}
		}
		if t.Failed() {
			break
		}
	}
	other.end()
	sameContents(t, s, o.merged)
}

const monkeyVariable = "LAYER_TEST_MONKEY"

// writeOn is what the other process does for that.
func writeOn(dir string) {
	m := monkey{rand.New(rand.NewPCG(3, 4))}
	untilEnd(func() int {
		m.act(dir, 100)
		return 100
	})
}

// untilEnd does something until its input ends, and tells how often it did.
func untilEnd(do func() int) {
	ended := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		close(ended)
	}()
	for n, told := 0, 0; ; {
		n += do()
		select {
		case <-ended:
			fmt.Println(n)
			return
		default:
			if n >= told+1000 {
				fmt.Println(n)
				told = n
			}
		}
	}
}

// swap is what the other process does until its input ends.
func swap(dirs []string) {
	untilEnd(func() (n int) {
		for _, dir := range dirs {
			for _, name := range []string{"d", "file", "fifo", "x"} {
				path := filepath.Join(dir, name)
				if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+"-swap", unix.RENAME_EXCHANGE); err != nil {
					fmt.Fprintln(os.Stderr, path, err)
					os.Exit(1)
				}
				n++
			}
		}
		return n
	})
}
