package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// damages are what a file's content may have become.
func damages(whole string) map[string]string {
	return map[string]string{
		"empty":          "",
		"one byte":       whole[:1],
		"half":           whole[:len(whole)/2],
		"one byte short": strings.TrimRight(whole, "\n")[:len(strings.TrimRight(whole, "\n"))-1],
		"zeros":          strings.Repeat("\x00", len(whole)),
		"noise":          "\xff\xfe{{\"",
		"null":           "null",
		"nothing in it":  "{}",
		"hollow":         `{"id":"c","config":{"cgroups":null}}`,
		"another type":   `["c"]`,
		"text":           `"state"`,
	}
}

// A container whose state can't be read: commands say so, a list shows the
// others, and delete --force ends and removes it.
func TestDamagedState(t *testing.T) {
	s := newStorm(t)
	before := s.host()
	file := filepath.Join(s.oci.root, "c", "state.json")
	for name := range damages("any") {
		t.Run(name, func(t *testing.T) {
			s := s.of(t)
			s.oci.run("run", "--detach", "--bundle", s.bundle, "c")
			damaged := damages(content(t, file))[name]
			if err := os.WriteFile(file, []byte(damaged), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"state", "c"}, {"start", "c"}, {"kill", "c", "KILL"}, {"exec", "c", "true"}, {"delete", "c"}} {
				got := run(t, s.oci.command(args...))
				if got.code == 0 || !strings.Contains(got.stderr, "container c: its state is damaged: delete --force removes it") {
					t.Errorf("%q: %s", args, answered(got))
				}
			}
			if got := s.oci.run("list", "-q"); !strings.Contains(got.stdout, "living\n") {
				t.Errorf("list: %+v", got)
			}
			s.recover(name, deleteForce, before)
		})
	}
}

// What a killed do left can be damaged, too: every file of it.
func TestDamagedSandbox(t *testing.T) {
	s := newStorm(t)
	before := s.host()
	spared := s.files()
	for name := range damages("any") {
		t.Run(name, func(t *testing.T) {
			s := s.of(t)
			s.crash()
			for _, file := range s.files() {
				whole := content(t, file)
				if whole == "" || slices.Contains(spared, file) {
					continue
				}
				if err := os.WriteFile(file, []byte(damages(whole)[name]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s.recover(name, []string{"prune"}, before)
		})
	}
}

// files lists the regular files in the state root.
func (s *storm) files() []string {
	s.t.Helper()
	var files []string
	for _, pattern := range []string{"*/*", "@*/*/*"} {
		found, err := filepath.Glob(filepath.Join(s.oci.root, pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, path := range found {
			if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
				files = append(files, path)
			}
		}
	}
	return files
}

// A state that names a process of another time: the number alone is no reason
// to signal what has it now.
func TestReusedPID(t *testing.T) {
	s := newStorm(t)
	s.oci.create(&bundle{dir: s.bundle}, "c")
	pid := s.oci.state("c").PID
	s.stop("c")
	file := filepath.Join(s.oci.root, "c", "state.json")
	state := content(t, file)
	bystander := startBystander(t, state)
	old, now := fmt.Sprintf(`"init_process_pid":%d,`, pid), fmt.Sprintf(`"init_process_pid":%d,`, bystander.cmd.Process.Pid)
	if !strings.Contains(state, old) {
		t.Fatalf("no %s in %.200s", old, state)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(state, old, now, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.status("c"); got != "stopped" {
		t.Errorf("c is %q", got)
	}
	if got := run(t, s.oci.command("kill", "c", "KILL")); !strings.Contains(got.stderr, "container not running") {
		t.Errorf("kill: %s", answered(got))
	}
	s.oci.run(deleteForce...)
	if bystander.ended() {
		t.Error("the process with the number of the container's init was killed")
	}
}

// startBystander starts a process that can have the number of a container's init,
// whose state.json is given: none of the same clock tick (10 ms), by which alone
// libcontainer tells them apart (Container.hasInit). No number comes again that
// soon, but a test may be that fast.
func startBystander(t *testing.T, state string) *testProcess {
	t.Helper()
	var init struct {
		Start json.Number `json:"init_process_start"`
	}
	decode(t, state, &init)
	for {
		p := start(t, exec.Command("sleep", "1000"))
		stat := processStat(p.cmd.Process.Pid)
		if fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]); fields[19] != init.Start.String() {
			return p
		}
		p.kill() // before it is taken for something left behind
	}
}

// On a full file system commands fail, say why, and leave nothing.
func TestFullStateRoot(t *testing.T) {
	s := newStorm(t)
	var room []string
	for n := 1; n <= 8; n++ { // from nothing at all to enough
		room = append(room, fmt.Sprintf("size=%dk", 4*n), fmt.Sprintf("nr_inodes=%d", n))
	}
	calls, refused := 0, 0
	for _, options := range room {
		t.Run(options, func(t *testing.T) {
			s := s.of(t)
			s.oci.root = filepath.Join(filepath.Dir(s.bundle), "full")
			if err := os.Mkdir(s.oci.root, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", s.oci.root, "tmpfs", 0, "mode=700,"+options); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(s.oci.root, 0); err != nil {
					t.Error(err)
				}
				os.Remove(s.oci.root)
			})
			for _, args := range [][]string{{"create", "--bundle", s.bundle, "c"}, {"run", "--bundle", s.bundle, "c"}, {"do", "--", "true"}} {
				calls++
				if s.fillsUp(args) {
					refused++
				}
			}
		})
	}
	if refused == 0 || refused == calls {
		t.Errorf("%d of %d calls found too little room", refused, calls)
	}
}

// fillsUp runs a command for which there is too little room, or just enough.
func (s *storm) fillsUp(args []string) (refused bool) {
	s.t.Helper()
	before := s.host()
	if args[0] == "run" {
		s.runs([]string{"true"})
		defer s.runs([]string{"sleep", "1000"})
	}
	got := run(s.t, s.oci.command(args...))
	switch {
	case got.code == 0 && args[0] == "create":
		s.oci.run(deleteForce...)
	case got.code != 0 && !strings.Contains(got.stderr, "no space left on device"):
		s.t.Errorf("%q: %s", args, answered(got))
	}
	os.Remove(filepath.Join(s.oci.root, "@sandboxes"))                      // which a state root keeps, empty
	if err := os.RemoveAll(filepath.Join(s.oci.root, "@etc")); err != nil { // copies of the host's files, which it keeps
		s.t.Error(err)
	}
	if left := s.remains(before); left != "" {
		s.t.Errorf("%q: %s; left behind:\n%s", args, answered(got), left)
	}
	return got.code != 0
}
