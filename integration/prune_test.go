package integration

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// 200 runs leave nothing; what 50 killed ones leave, prune removes.
func TestPruneRemovesWhatCrashedRunsLeft(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	var typical time.Duration
	for i := range 200 {
		begin := time.Now()
		if got := s.do("--", "true"); got.code != 0 {
			t.Fatalf("run %d: %+v", i, got)
		}
		typical = max(typical/2, time.Since(begin)) // of the last few, the longer
	}
	if left := s.state(); len(left) != 0 {
		t.Errorf("200 runs left %q", left)
	}

	leftBehind := 0
	for range 50 {
		p := start(t, s.command("do", "--workspace", t.TempDir(), "--", "sleep", "1000"))
		time.Sleep(rand.N(2 * typical))
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-p.done
		if len(s.state()) > 0 {
			leftBehind++
		}
	}
	if leftBehind == 0 {
		t.Error("no killed run left anything for prune: were they killed in time?")
	}
	if got := run(t, s.command("prune")); got.code != 0 {
		t.Errorf("prune: %+v", got)
	}
	if left := s.state(); len(left) != 0 {
		t.Errorf("after prune: %q", left)
	}
}

func TestPruneSparesTheLiving(t *testing.T) {
	s := newSandboxes(t)
	p := start(t, s.command("do", "--", "sh", "-c", "echo ready; sleep 1000"))
	p.prints("ready\n")
	if got := run(t, s.command("prune")); got.code != 0 {
		t.Errorf("prune: %+v", got)
	}
	if p.ended() || len(s.state()) == 0 {
		t.Error("prune ended a living sandbox")
	}
	interrupt(t, p)
}

// Where the state root was lost, the kernel's state is all there is.
func TestPruneNeedsNoStateRoot(t *testing.T) {
	s := newSandboxes(t)
	p := start(t, s.command("do", "--", "sh", "-c", "echo ready; sleep 1000"))
	p.prints("ready\n")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	if err := os.RemoveAll(s.root); err != nil { // no mounts: they were in the killed one's namespace
		t.Fatal(err)
	}
	for range 2 { // the second has nothing to do
		if got := run(t, s.command("prune")); got.code != 0 || got.stderr != "" {
			t.Errorf("prune: %+v", got)
		}
	}
}

func TestDoctorTellsAboutTheHost(t *testing.T) {
	s := newSandboxes(t)
	got := run(t, s.command("doctor"))
	for _, word := range []string{"Linux", "cgroup", "namespace", "seccomp", "Landlock", "overlay", "idmap", "nftables"} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("nothing about %s in %q", word, got.stdout)
		}
	}
	if got.code != 0 {
		t.Errorf("status %d: %s", got.code, got.stderr)
	}
	inJSON := run(t, s.command("doctor", "--json"))
	if inJSON.code != got.code || !json.Valid([]byte(inJSON.stdout)) {
		t.Errorf("--json: %+v", inJSON)
	}
}
