package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// What is known of a sandbox that is up is damaged, file by file: no command
// hangs or crashes, what it says is one line, and down brings the host back.
// Where PID 1 can still be reached it may go on to work.
func TestDamagedSandboxThatIsUp(t *testing.T) {
	testhost.Long(t)
	s := newSandboxStorm(t)
	before := s.host()
	for _, name := range []string{"sandbox.json", "names.json", "owner", "agent.sock", "execs/*/exec.json", "execs/*/stdout"} {
		t.Run(name, func(t *testing.T) {
			s := s.of(t)
			s.harm(name, "missing", before, func(path string) error { return os.Remove(path) })
			for damage := range damages("any") {
				s.harm(name, damage, before, func(path string) error {
					whole, err := os.ReadFile(path)
					if err != nil || len(whole) == 0 { // a socket, or no output
						whole = []byte("anything")
						err = os.Remove(path)
					}
					if err != nil {
						return err
					}
					return os.WriteFile(path, []byte(damages(string(whole))[damage]), 0o600)
				})
			}
		})
	}
}

// harm damages the files of a sandbox that match, uses it and removes it.
func (s *sandboxStorm) harm(name, damage string, before host, change func(path string) error) {
	t := s.storm.t
	t.Helper()
	s.works(name, "up", "c")
	id := s.detached("c", "exec sleep 1000")
	files, err := filepath.Glob(filepath.Join(s.root, "@sandboxes", "c", name))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %q, %v", name, files, err)
	}
	if err := change(files[0]); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"exec", "c", "true"}, {"exec", "--detach", "c", "true"}, {"ps", "--execs", "c"}, {"list"}, {"state", "c"},
		{"attach", "--kill", "c", id}, {"pause", "c"}, {"resume", "c"}, {"update", "--pids-limit", "50", "c"}, {"prune"}, {"up", "c"},
	} {
		got := run(t, s.command(args...))
		if got.code != 0 && got.stderr == "" && args[0] != "attach" || strings.Count(got.stderr, "\n") > 2 || strings.Contains(got.stderr, "goroutine ") {
			t.Errorf("%s, %s: %q: %s", name, damage, args, answered(got))
		}
	}
	s.takeDown(name + ", " + damage)
	s.isBack(name+", "+damage, before)
}

// The number of a sandbox's PID 1 is another process's now, in each of the files
// that name it: that process is left alone, and the sandbox is none that is up.
func TestReusedPIDOfASandbox(t *testing.T) {
	s := newSandboxStorm(t)
	before := s.host()
	for _, commands := range [][][]string{
		{{"exec", "c", "true"}, {"down", "c"}},
		{{"prune"}},
		{{"delete", "--force", "c"}},
		{{"kill", "c", "KILL"}, {"down", "c"}},
		{{"up", "c"}, {"exec", "c", "true"}, {"down", "c"}},
	} {
		s.works("before", "up", "c")
		pid := s.pid("c")
		s.stop("c")
		bystander := startBystander(t, content(t, filepath.Join(s.root, "c/state.json")))
		for file, field := range map[string]string{"@sandboxes/c/sandbox.json": `("init":\{"pid":)%d,`, "c/state.json": `("init_process_pid":)%d,`} {
			path := filepath.Join(s.root, file)
			whole := content(t, path)
			now := regexp.MustCompile(fmt.Sprintf(field, pid)).ReplaceAllString(whole, fmt.Sprintf("${1}%d,", bystander.cmd.Process.Pid))
			if now == whole {
				t.Fatalf("no %s in %.300s", field, whole)
			}
			if err := os.WriteFile(path, []byte(now), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range commands {
			got := run(t, s.command(args...))
			if refused := args[0] == "exec" && commands[0][0] == "exec" || args[0] == "kill"; refused != (got.code != 0) {
				t.Errorf("%q: %s", args, answered(got))
			}
		}
		if bystander.ended() {
			t.Fatalf("%q killed the process with the number of PID 1", commands)
		}
		bystander.kill()
	}
	s.isBack("reused", before)
}

// Somebody removes the directory of a sandbox that is up, or the whole state
// root: what it left in the kernel is found by its name, and by prune.
func TestStateRemovedByHand(t *testing.T) {
	for name, dirs := range map[string][]string{
		"its directory": {"@sandboxes/c"}, "its container": {"c"}, "both": {"@sandboxes/c", "c"}, "all": {"@sandboxes", "c"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandboxes(t)
			before, err := readHost()
			if err != nil {
				t.Fatal(err)
			}
			for _, recovery := range [][]string{{"down", "c"}, {"prune"}, {"delete", "--force", "c"}, {"up", "c"}} {
				if got := run(t, s.command("up", "c")); got.code != 0 {
					t.Fatalf("up: %s", answered(got))
				}
				s.detached("c", "exec sleep 1000")
				for _, dir := range dirs {
					if err := os.RemoveAll(filepath.Join(s.root, dir)); err != nil {
						t.Fatal(err)
					}
				}
				got := run(t, s.command(recovery...))
				if got.code != 0 || recovery[0] != "up" && got.stderr != "" {
					t.Errorf("%q: %s", recovery, answered(got))
				}
				if recovery[0] == "up" || exists(filepath.Join(s.root, "@sandboxes", "c")) { // what is up is not pruned
					s.sh("c", "echo usable")
					run(t, s.command("down", "c"))
				}
				if recovery[0] == "delete" {
					run(t, s.command("prune")) // its ids, where it was taken for a container
				}
				if left := before.leftovers() + strings.Join(s.state(), "\n"); left != "" {
					t.Errorf("%q leaves behind:\n%s", recovery, left)
					run(t, s.command("prune"))
				}
			}
		})
	}
}

// A range of ids belongs to who claimed it, whatever a record says: what others
// have is not given back.
func TestDownSparesTheIDsOfOthers(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	links := s.ranges()
	if len(links) != 1 {
		t.Fatalf("ranges %q", links)
	}
	// As if box had given it back, its down killed then, and another claimed it.
	if err := os.Remove(links[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(`{"root":"/elsewhere","sandbox":"other"}`, links[0]); err != nil {
		t.Fatal(err)
	}
	if got := run(t, s.command("down", "box")); got != (result{}) {
		t.Errorf("down: %+v", got)
	}
	if err := os.Remove(links[0]); err != nil {
		t.Errorf("down gave back what is another's: %v", err)
	}
}

// Damaged claims of ids keep nobody from making and removing sandboxes.
func TestDamagedRangesOfIDs(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	dir := filepath.Dir(s.ranges()[0])
	for name, damage := range map[string]func(path string) error{
		"a file":          func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"an empty name":   func(path string) error { return os.Symlink(`{"root":"`+s.root+`","sandbox":""}`, path) },
		"a path":          func(path string) error { return os.Symlink(`{"root":"`+s.root+`","sandbox":"../../box"}`, path) },
		"garbage":         func(path string) error { return os.Symlink("\xff{", path) },
		"of nobody there": func(path string) error { return os.Symlink(`{"root":"`+s.root+`","sandbox":"nobody"}`, path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "4000")
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(path)
			for _, args := range [][]string{{"up", "c"}, {"exec", "c", "true"}, {"down", "c"}, {"do", "--", "true"}, {"prune"}, {"exec", "box", "true"}} {
				if got := run(t, s.command(args...)); got.code != 0 || got.stderr != "" {
					t.Errorf("%q: %s", args, answered(got))
				}
			}
		})
	}
}

// The cache of filters is no more than a cache.
func TestDamagedFilters(t *testing.T) {
	s := newSandboxes(t)
	if err := os.RemoveAll(filterDir); err != nil {
		t.Fatal(err)
	}
	s.do("--", "true") // so that there is one, and no other that only other sandboxes need
	files, err := filepath.Glob(filterDir + "/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("filters: %q, %v", files, err)
	}
	for name := range damages("any") {
		for _, file := range files {
			whole := content(t, file)
			if err := os.WriteFile(file, []byte(damages(whole)[name]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o := s.json("--", "sh", "-c", "grep -c ^Seccomp:.2 /proc/self/status; unshare -U true 2>&1 || echo refused")
		if o.ExitCode != 0 || !strings.HasPrefix(o.Stdout, "1\n") || !strings.HasSuffix(o.Stdout, "refused\n") {
			t.Errorf("with filters that are damaged, %s: %+v", name, o)
		}
	}
}

// On a full file system sandboxes are refused, with the reason, and nothing is
// left; one that is up goes on, and can be removed.
func TestFullDiskUnderSandboxes(t *testing.T) {
	s := newSandboxStorm(t)
	refused, calls := 0, 0
	for _, which := range []string{"--root", "--data"} {
		for _, options := range []string{"size=4k", "size=8k", "size=16k", "size=24k", "nr_inodes=2", "nr_inodes=4", "nr_inodes=5", "nr_inodes=7", "nr_inodes=9", "nr_inodes=12"} {
			t.Run(which+" "+options, func(t *testing.T) {
				s := s.of(t)
				dir := filepath.Join(filepath.Dir(s.bundle), "full")
				smallDisk(t, dir, options)
				before := s.host()
				sb := func(args ...string) result {
					calls++
					// Of two flags the last counts.
					got := run(t, exec.Command(binary(t), append([]string{"--root", s.root, which, dir}, args...)...))
					if got.code == 0 {
						return got
					}
					refused++
					if !strings.Contains(got.stderr, "no space left on device") || strings.Count(got.stderr, "\n") != 1 {
						t.Errorf("%q: %s", args, answered(got))
					}
					return got
				}
				if sb("do", "--", "true"); sb("up", "c").code == 0 {
					fill(t, dir)
					sb("exec", "c", "true")
					sb("exec", "--detach", "c", "true")
					if got := run(t, exec.Command(binary(t), "--root", s.root, which, dir, "down", "c")); got != (result{}) {
						t.Errorf("down: %s", answered(got))
					}
					os.Remove(filepath.Join(dir, "filling"))
				}
				removeLasting(t, dir)
				s.isBack(options, before)
			})
		}
	}
	if refused == 0 || refused == calls {
		t.Errorf("%d of %d calls found too little room", refused, calls)
	}
}

// removeLasting removes what a state root and a data directory keep.
func removeLasting(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, "@etc")); err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{"@sandboxes", "packages/*", "packages", "seccomp/*", "seccomp", "ids/*", "ids", "stores/*", "stores"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			os.Remove(path) // unless there is something in it, which it ought not to be
		}
	}
}

func smallDisk(t *testing.T, dir, options string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size=1m,"+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
		os.Remove(dir)
	})
}

// fill takes the room that is left.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filling"))
	if err != nil {
		return // not even an inode
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 1<<10))
	}
}
