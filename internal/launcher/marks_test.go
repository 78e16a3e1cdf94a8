package launcher

import (
	_ "embed"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

//go:embed testdata/marks.py
var marksScript string

const mark = "mark-of-a-session"

// python is a command of testdata/marks.py.
func python(command string) []string {
	return []string{"/usr/bin/python3", "-c", marksScript, command, mark}
}

// leaveMarks has a session leave marks as long as it is up, and returns the places.
func leaveMarks(t *testing.T, sb *Sandbox, user *spec.User) (places []string) {
	t.Helper()
	p := detachedStart(t, sb, spec.Command{Args: python("leave"), User: user})
	eventually(t, "marks", func() bool { return strings.Contains(readOutput(t, p).stdout, "\n") })
	if err := json.Unmarshal([]byte(readOutput(t, p).stdout), &places); err != nil {
		t.Fatal(err)
	}
	return places
}

// A scan is a look at all that a session can find.
type scan struct {
	Found []string       // the parts of State with a mark
	State map[string]any // see testdata/marks.py
}

func scanOf(t *testing.T, sb *Sandbox) (s scan) {
	t.Helper()
	p, read := startPiped(t, sb, spec.Command{Args: python("scan"), Cwd: "/"})
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := read()
	if err := json.Unmarshal([]byte(out.stdout), &s); err != nil {
		t.Fatalf("%v: %.2000s", err, out.stderr)
	}
	return s
}

// others are the parts of the state that differ.
func (s scan) others(than scan) (parts []string) {
	for part, value := range s.State {
		if !reflect.DeepEqual(value, than.State[part]) {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return parts
}

// leaveRanges takes all ranges of ids but the first n, so that the launcher uses the same ranges again.
func leaveRanges(t *testing.T, l *Launcher, n int) {
	t.Helper()
	base, err := l.ids.Claim("first")
	if err != nil {
		t.Fatal(err)
	}
	links, err := filepath.Glob(filepath.Join(l.Data, "ids", "*", strconv.Itoa(int(idrange.Number(base)))))
	if err != nil || len(links) != 1 {
		t.Fatalf("%q, %v", links, err)
	}
	if err := l.ids.Release("first", base); err != nil {
		t.Fatal(err)
	}
	for i := n; ; i++ {
		next := filepath.Join(filepath.Dir(links[0]), strconv.Itoa(i))
		if idrange.Number(idrange.FirstID)+uint32(i) >= 4094 {
			return
		}
		if err := os.Symlink("taken", next); err != nil {
			t.Fatal(err)
		}
	}
}

// startTestPool has a launcher keep n blanks for sandboxes of root in memory.
func startTestPool(t *testing.T, l *Launcher, n int) {
	t.Helper()
	l.claimAnswer = testhost.Patience // a busy machine breaks no blank
	hour := spec.Duration(time.Hour)
	if err := l.StartPool(spec.PoolConfig{Min: n, Max: n, WarmUp: n, IdleTimeout: hour, MaxAge: hour, CheckEvery: hour}, "", "", func(error) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.StopPool)
	awaitBlanks(t, l, n)
}

// withKeyrings is the path of a profile with the calls of keyrings.
func withKeyrings(t *testing.T) string {
	t.Helper()
	profile, err := seccomp.Profile("default")
	if err != nil {
		t.Fatal(err)
	}
	profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{Names: []string{"keyctl", "add_key"}, Action: specs.ActAllow})
	text, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keyrings.json")
	testhost.WriteFile(t, path, string(text))
	return path
}

// A session finds no mark of an earlier session in any place, also with a blank that was there before, and
// with the earlier session's user ids. All is as in a sandbox that was made for the session.
func TestNoMarkOfASessionIsInALaterOne(t *testing.T) {
	plain := scanOf(t, createUp(t, newTestLauncher(t), "box", inMemory("", spec.Config{}).Config))
	l := newTestLauncher(t)
	leaveRanges(t, l, 6)
	l.leastFree = 0
	startTestPool(t, l, 2)

	// The first session marks its keyrings, for which a blank has not the profile.
	keyrings := inMemory("box", spec.Config{Seccomp: withKeyrings(t)}).Config
	marked := createUp(t, l, "box", keyrings)
	if places := leaveMarks(t, marked, nil); !slices.Contains(places, "keyring user") {
		t.Errorf("no keyring was marked: %q", places)
	}
	if s := scanOf(t, marked); !slices.Contains(s.Found, "keys") {
		t.Errorf("marks only in %q", s.Found)
	}
	if err := marked.Close(); err != nil {
		t.Fatal(err)
	}

	sb := claimed1(t, l, inMemory("box", spec.Config{
		Env: map[string]string{"MARK": mark}, Network: spec.NetworkFull, Sensitivity: spec.SensitivityInternal,
		Limits: spec.Limits{Memory: 900 << 20, Disk: 768 << 20, Pids: 60, NoFile: 77, FileSize: 64 << 20, NetworkQuota: 1 << 20},
	}))
	base, again := sb.session.Current().IDBase, 0
	exec := markAll(t, sb, plain)
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}

	eventually(t, "the release of the ids", func() bool {
		owners, err := l.ids.Owners()
		return err == nil && !slices.ContainsFunc(owners, func(o idrange.Owner) bool { return o.Base == base })
	})
	for tries := 0; tries < 4 || again == 0 && tries < 100; tries++ { // the first blanks were there before
		sb := claimed1(t, l, inMemory("box", spec.Config{}))
		if sb.session.Current().IDBase == base {
			again++
		}
		checkUnmarked(t, sb, plain)
		if p, err := sb.Attach(t.Context(), exec); err == nil {
			t.Errorf("%+v", p)
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if s := scanOf(t, createUp(t, l, "box", keyrings)); len(s.Found) > 0 {
		t.Errorf("after the blanks: marks in %q", s.Found)
	}
	if again == 0 {
		t.Errorf("the user ids from %d on were not used again", base)
	}
}

// markAll leaves marks in all places of a sandbox, and checks that a scan finds them. It returns the id of
// a detached command.
func markAll(t *testing.T, sb *Sandbox, plain scan) (exec string) {
	t.Helper()
	for _, user := range []*spec.User{nil, {}, {UID: 4321, GID: 4321}} {
		t.Logf("places: %q", leaveMarks(t, sb, user))
	}
	sh(t, sb, "/usr/bin/python3 -c 'len(b\"x\" * (300 << 20))'; for i in $(seq 70); do sleep 9 & done; true")
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"/usr/bin/python3", "-c", "len(b'x' * (200 << 20))"}, Limits: spec.Limits{Memory: 64 << 20}})
	if r, err := p.Wait(t.Context()); err != nil || r.OK() {
		t.Errorf("%+v, %v", r, err)
	}
	transact(t, sb, "echo "+mark+" > ~/joined")
	got := scanOf(t, sb)
	for _, part := range []string{"commands", "environment", "sockets", "tree"} {
		if !slices.Contains(got.Found, part) {
			t.Errorf("no mark in %s; there are in %q", part, got.Found)
		}
	}
	others := got.others(plain)
	for _, part := range []string{"ipc", "limits", "locks", "network", "ports", "processes"} {
		if !slices.Contains(others, part) {
			t.Errorf("%s is as before; others are %q", part, others)
		}
	}
	execs, err := sb.Execs(t.Context())
	if err != nil || len(execs) < 3 {
		t.Fatalf("%+v, %v", execs, err)
	}
	if used, err := sb.Stats(t.Context()); err != nil || used.MemoryPeak < mostMemory || used.PidsPeak < mostPids || used.NetworkSent == 0 {
		t.Errorf("%+v, %v", used, err)
	}
	return execs[0].ID
}

// No new sandbox has used more than this after a scan.
const (
	mostMemory = 200 << 20
	mostPids   = 20
)

// checkUnmarked checks that a sandbox is like a new one.
func checkUnmarked(t *testing.T, sb *Sandbox, plain scan) {
	t.Helper()
	got := scanOf(t, sb)
	if len(got.Found) > 0 {
		t.Errorf("marks in %q", got.Found)
	}
	for _, part := range got.others(plain) {
		t.Errorf("%s: got %.1500v\nwant %.1500v", part, got.State[part], plain.State[part])
	}
	if used, err := sb.Stats(t.Context()); err != nil || used.MemoryPeak >= mostMemory || used.PidsPeak >= mostPids ||
		used.OOMKills+used.ForksRefused+used.NetworkReceived+used.NetworkSent+used.NetworkCharged != 0 {
		t.Errorf("%+v, %v", used, err)
	}
	if execs, err := sb.Execs(t.Context()); err != nil || len(execs) > 0 {
		t.Errorf("%+v, %v", execs, err)
	}
	if err := sb.Undo(t.Context(), 1); err == nil {
		t.Error("a transaction of an earlier session was undone")
	}
	if info, err := sb.Info(); err != nil || info.Config.Sensitivity != spec.SensitivityPublic || len(info.Config.Env) > 0 {
		t.Errorf("%+v, %v", info, err)
	}
}
