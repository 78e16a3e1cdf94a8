package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// transact runs a shell line as a transaction.
func transact(t *testing.T, sb *Sandbox, line string) (spec.Result, output) {
	t.Helper()
	p, read := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", line}, Transaction: true})
	r, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r, read()
}

// show lists all that the sandbox has at places, with content.
func show(t *testing.T, sb *Sandbox, dirs ...string) string {
	t.Helper()
	_, out := sh(t, sb, "cd / && find "+strings.Join(dirs, " ")+` -printf '%p %y %m %U:%G %l\n' -type f -exec cat {} \; | LC_ALL=C sort`)
	return out.stdout + out.stderr
}

// everywhere is a sandbox with each sort of place that can be written to.
func everywhere(t *testing.T, l *Launcher, storage spec.Storage) (sb *Sandbox, overlaid, bound string) {
	t.Helper()
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	overlaid, bound = ownedDir(t, 4321, "host\n"), ownedDir(t, 5432, "bound\n")
	if err := os.MkdirAll(filepath.Join(overlaid, ".ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(overlaid, ".ssh", "key"), []byte("secret\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sb = createUp(t, l, newID(), spec.Config{Storage: storage,
		Cwd: spec.WorkspacePath, Overlays: []string{overlaid}, Binds: []spec.Bind{{Source: bound, Target: "/bound", Writable: true}},
	})
	sh(t, sb, "echo old > /workspace/w; echo old > /home/sandbox/h; mkdir /workspace/d; echo x > /workspace/d/x; echo mine > "+overlaid+"/mine")
	return sb, overlaid, bound
}

const changeAll = `set -e
for dir in /workspace /home/sandbox /bound %; do
	cd $dir; echo new > new; mkdir -p sub/dir; echo deep > sub/dir/deep; ln -s new link
	for f in w h given mine; do [ ! -e $f ] || echo changed > $f; done
done
rm -r /workspace/d; rm %/given; `

func TestATransactionJoinsWhenItSucceeds(t *testing.T) {
	for _, storage := range []spec.Storage{spec.StorageMemory, spec.StorageDisk} {
		t.Run(string(storage), func(t *testing.T) { testJoin(t, storage) })
	}
}

func testJoin(t *testing.T, storage spec.Storage) {
	l := newTestLauncher(t)
	sb, overlaid, bound := everywhere(t, l, storage)
	line := strings.ReplaceAll(changeAll, "%", overlaid)
	places := []string{"/workspace", "/home/sandbox", "/bound", overlaid}
	before := show(t, sb, places...)

	r, out := transact(t, sb, line+"false")
	if r.ExitCode != 1 || r.Status != spec.StatusExited {
		t.Fatalf("the one that fails: %+v %+v", r, out)
	}
	if !strings.Contains(r.Reason, "exit code 1") || !strings.Contains(r.Reason, "the transaction has dropped all that it wrote") {
		t.Errorf("the reason of the one that fails: %s", r.Reason)
	}
	if after := show(t, sb, places...); after != before {
		t.Errorf("a transaction that failed has left\n%s\nwhere there was\n%s", after, before)
	}
	r, out = transact(t, sb, line+"cat new; ls /workspace; cat .ssh/key || true; test ! -e /workspace/d")
	if !r.OK() {
		t.Fatalf("the one that succeeds: %+v %+v", r, out)
	}
	if strings.Contains(out.stdout, "secret") {
		t.Error("a transaction sees what the sandbox must not")
	}
	after := show(t, sb, places...)
	for _, want := range []string{"/workspace/new f 644 1000:1000", "/home/sandbox/sub/dir/deep f 644 1000:1000", "/bound/link l 777 1000:1000 new", overlaid + "/mine f"} {
		if !strings.Contains(after, want) {
			t.Errorf("%q is missing in\n%s", want, after)
		}
	}
	for _, gone := range []string{"/workspace/d", overlaid + "/given", "old\n"} {
		if strings.Contains(after, gone) {
			t.Errorf("%q is still there in\n%s", gone, after)
		}
	}
	if text, err := os.ReadFile(filepath.Join(bound, "given")); err != nil || string(text) != "changed\n" {
		t.Errorf("on the host the bound directory has %q, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(overlaid, "given")); err != nil || string(text) != "host\n" {
		t.Errorf("on the host the overlaid directory has %q, %v", text, err)
	}

	if err := sb.Undo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if after := show(t, sb, places...); after != before {
		t.Errorf("undo has left\n%s\nwhere there was\n%s", after, before)
	}
}

// startWaiting is a command of a transaction that writes and then waits for the test.
func startWaiting(t *testing.T, sb *Sandbox, line string) (finish func() (spec.Result, output)) {
	t.Helper()
	p, read := startPiped(t, sb, spec.Command{
		Args: []string{"sh", "-c", line + "; touch /tmp/written" + "; while [ ! -e /tmp/go ]; do sleep 0.01; done"}, Transaction: true,
	})
	eventually(t, "it has written", func() bool {
		_, out := sh(t, sb, "cat /tmp/written && echo there")
		return out.stdout == "there\n"
	})
	return func() (spec.Result, output) {
		sh(t, sb, "touch /tmp/go")
		r, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return r, read()
	}
}

func TestNobodySeesATransactionBeforeItJoins(t *testing.T) {
	l := newTestLauncher(t)
	sb, overlaid, _ := everywhere(t, l, spec.StorageMemory)
	before := show(t, sb, "/workspace", overlaid)
	finish := startWaiting(t, sb, "echo changed > /workspace/w; echo new > "+overlaid+"/new")
	if now := show(t, sb, "/workspace", overlaid); now != before {
		t.Errorf("while it runs there is\n%s\nwhere there was\n%s", now, before)
	}
	if r, out := finish(); !r.OK() {
		t.Fatal(r, out)
	}
	if _, out := sh(t, sb, "cat /workspace/w "+overlaid+"/new"); out.stdout != "changed\nnew\n" {
		t.Errorf("then there is %q", out)
	}
}

func TestATransactionThatConflictsDoesNotJoin(t *testing.T) {
	l := newTestLauncher(t)
	sb, overlaid, _ := everywhere(t, l, spec.StorageMemory)
	finish := startWaiting(t, sb, "echo changed > /workspace/w; echo changed > "+overlaid+"/mine; echo new > /home/sandbox/new")
	sh(t, sb, "echo of another > "+overlaid+"/mine")
	before := show(t, sb, "/workspace", "/home/sandbox", overlaid)
	r, _ := finish()
	if r.Status != spec.StatusError || r.ExitCode != 0 || !strings.Contains(r.Reason, overlaid+"/mine") || strings.Contains(r.Reason, "/workspace/w") {
		t.Errorf("the result is %+v", r)
	}
	if now := show(t, sb, "/workspace", "/home/sandbox", overlaid); now != before {
		t.Errorf("after it there is\n%s\nwhere there was\n%s", now, before)
	}
	if err := sb.Undo(t.Context(), 1); !isA[*fault.ConfigError](err) {
		t.Errorf("undo of what did not join: %v", err)
	}
}

// The sandbox sees the staging directory of an apply to the host's tree.
func TestATransactionJoinsDuringAnApplyToTheHost(t *testing.T) {
	l := newTestLauncher(t)
	sb, overlaid, _ := everywhere(t, l, spec.StorageMemory)
	staging := filepath.Join(overlaid, ".sandbox-runtime-apply-test")
	if err := os.Mkdir(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	if r, out := transact(t, sb, "echo new > "+overlaid+"/new; rm "+overlaid+"/given"); !r.OK() {
		t.Fatalf("the transaction did not join: %+v %+v", r, out)
	}
	if _, out := sh(t, sb, "cat "+overlaid+"/new; ls "+overlaid+"/given"); out.stdout != "new\n" {
		t.Errorf("after the transaction the sandbox has %q", out.stdout)
	}
	if err := sb.Undo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, out := sh(t, sb, "cat "+overlaid+"/given; ls "+overlaid+"/new"); out.stdout != "host\n" {
		t.Errorf("after undo the sandbox has %q", out.stdout)
	}
	if _, err := os.Stat(staging); err != nil {
		t.Errorf("the staging directory on the host: %v", err)
	}
}

func TestTransactionsAtOnceJoinOneAfterTheOther(t *testing.T) {
	l := newTestLauncher(t)
	sb, overlaid, _ := everywhere(t, l, spec.StorageMemory)
	const many = 6
	var all []*jobs.Process
	for i := range many {
		p, _ := startPiped(t, sb, spec.Command{Transaction: true, Args: []string{"sh", "-c", strings.ReplaceAll(
			"echo # > /workspace/of-#; echo # > "+overlaid+"/of-#; echo # > /workspace/of-all; sleep 0.1", "#", string(rune('a'+i)))}})
		all = append(all, p)
	}
	joined := 0
	for _, p := range all {
		r, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.OK() {
			joined++
		} else if !strings.Contains(r.Reason, "/workspace/of-all") {
			t.Errorf("result %+v", r)
		}
	}
	// All change one file: the first that joins is the only one.
	if joined != 1 {
		t.Errorf("%d joined", joined)
	}
	if _, out := sh(t, sb, "ls /workspace "+overlaid+" | grep -c of-"); out.stdout != "3\n" {
		t.Errorf("there are %s files of theirs, want those of one", out.stdout)
	}
}

func TestUndoGoesBackOneByOne(t *testing.T) {
	l := newTestLauncher(t)
	sb, overlaid, _ := everywhere(t, l, spec.StorageMemory)
	var states []string
	for _, line := range []string{"echo 1 > n", "rm -r d; echo 2 > n; mkdir -p e/f", "echo 3 > n; rm -r e; mkdir e; chmod 700 e; touch e/g"} {
		states = append(states, show(t, sb, "/workspace", overlaid))
		if r, out := transact(t, sb, line+"; cp -r . "+overlaid+"/copy"); !r.OK() {
			t.Fatal(r, out)
		}
	}
	if err := sb.Undo(t.Context(), 4); !isA[*fault.ConfigError](err) || !strings.Contains(err.Error(), "3") {
		t.Errorf("undo of more than there are: %v", err)
	}
	if err := sb.Undo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if now := show(t, sb, "/workspace", overlaid); now != states[2] {
		t.Errorf("after one there is\n%s\nwhere there was\n%s", now, states[2])
	}
	if err := elsewhere(t, sb).Undo(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if now := show(t, sb, "/workspace", overlaid); now != states[0] {
		t.Errorf("after all there is\n%s\nwhere there was\n%s", now, states[0])
	}
	if r, out := transact(t, sb, "echo 4 > n"); !r.OK() {
		t.Fatal(r, out)
	}
	sh(t, sb, "echo other > /workspace/n")
	if r, out := transact(t, sb, "echo 5 > m"); !r.OK() {
		t.Fatal(r, out)
	}
	err := sb.Undo(t.Context(), 2)
	if err == nil {
		t.Fatal("undo has overwritten the change of another command")
	}
	for _, want := range []string{"/workspace/n", "1 newer was taken back", "correct the files with a command", "discard"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("undo of what others have changed since: %q is not in %v", want, err)
		}
	}
}

// Another command changes the files of a transaction while the transaction joins. Undo does not drop these changes.
func TestUndoKeepsWhatIsWrittenDuringTheJoin(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	for _, storage := range []spec.Storage{spec.StorageMemory, spec.StorageDisk} {
		t.Run(string(storage), func(t *testing.T) {
			l := newTestLauncher(t)
			sb := createUp(t, l, newID(), spec.Config{Storage: storage, Cwd: spec.WorkspacePath})
			sh(t, sb, "echo old > f; mkdir d")
			// It writes as soon as the join shows, for each of the files.
			other, read := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", `echo waits; x=; y=
				until [ "$x" = joined ]; do read x < f; done; echo other > f
				until [ -e d/new ]; do :; done; echo other > d/theirs; echo ends`}})
			eventually(t, "it waits", func() bool {
				_, out := sh(t, sb, "ps ax -o args")
				return strings.Contains(out.stdout, "until")
			})
			if r, out := transact(t, sb, "echo joined > f; echo new > d/new; rm -rf e; head -c 20m /dev/zero > z; mkdir e; for i in $(seq 200); do echo $i > e/$i; done"); !r.OK() {
				t.Fatal(r, out)
			}
			if r, err := other.Wait(t.Context()); err != nil || !r.OK() {
				t.Fatal(r, err, read())
			}
			if err := sb.Undo(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "/workspace/f") {
				t.Errorf("undo: %v", err)
			}
			if _, out := sh(t, sb, "cat f d/theirs"); out.stdout != "other\nother\n" {
				t.Errorf("then there is %q", out)
			}
			// Without the change of another command all is taken back.
			if r, out := transact(t, sb, "echo again > e/1; rm e/2; mv e/3 e/4; ln e/5 e/link; chmod 600 e/6; mkdir -p e/7.d/in; echo deep > e/7.d/in/deep"); !r.OK() {
				t.Fatal(r, out)
			}
			if r, out := transact(t, sb, "echo once more > e/1; echo back > e/2; rm -r e/7.d; echo file > e/7.d"); !r.OK() {
				t.Fatal(r, out)
			}
			if err := sb.Undo(t.Context(), 2); err != nil {
				t.Error(err)
			}
			if _, out := sh(t, sb, "cat e/1 e/2 e/3 e/4; ls e | wc -l; stat -c %a e/6"); out.stdout != "1\n2\n3\n4\n200\n644\n" {
				t.Errorf("after undo there is %q", out)
			}
		})
	}
}

// A bound directory has another path on the host by now, which a transaction refuses. Its command must not run without it.
func TestACommandDoesNotRunWithoutItsTransaction(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	dir := ownedDir(t, 5432, "bound\n")
	sb := createUp(t, newTestLauncher(t), newID(), spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/bound", Writable: true}}})
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), spec.Command{Args: []string{"sh", "-c", "echo bypass > /bound/f; false"}, Transaction: true}, [3]*os.File{})
	if err == nil {
		_, err = p.Wait(t.Context())
		p.Close()
	}
	if !isA[*fault.ConfigError](err) || !strings.Contains(err.Error(), "/bound") {
		t.Errorf("transaction: %v", err)
	}
	if _, err := os.Lstat(dir + "-moved/f"); err == nil {
		t.Error("the command of a refused transaction has written")
	}
}

func TestATransactionThatIsGivenUpVanishes(t *testing.T) {
	l := newTestLauncher(t)
	sb, overlaid, _ := everywhere(t, l, spec.StorageMemory)
	before := show(t, sb, "/workspace", overlaid)
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "echo x > w; sleep 1000"}, Transaction: true})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tryPiped(t, sb, spec.Command{Args: []string{"/no/such"}, Transaction: true}); err == nil {
		t.Error("a program that is not there was executed")
	}
	if now := show(t, sb, "/workspace", overlaid); now != before {
		t.Errorf("it has left\n%s\nwhere there was\n%s", now, before)
	}
	store, err := record.OpenStore(sb.session.Init())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if left, err := os.ReadDir(overlay.StorePath(store, "tx")); err != nil || len(left) > 0 {
		t.Errorf("in the store there are %v, %v", left, err)
	}
}

// Its launcher's end takes the layers away from a command that has yet to end.
func TestWithoutItsLayersATransactionWritesNowhere(t *testing.T) {
	l := newTestLauncher(t)
	sb, overlaid, bound := everywhere(t, l, spec.StorageDisk)
	before := show(t, sb, "/workspace", "/home/sandbox", "/bound", overlaid)
	line := `cd /; touch /tmp/written; i=0; while touch /workspace/in-the-layer 2>/dev/null && [ $i -lt 3000 ]; do i=$((i+1)); sleep 0.01; done
		for dir in /workspace /home/sandbox /bound ` + overlaid + `; do echo x > $dir/new; done; exit 3`
	p, read := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", line}, Transaction: true})
	eventually(t, "it writes", func() bool {
		_, out := sh(t, sb, "cat /tmp/written && echo there")
		return out.stdout == "there\n"
	})
	p.Transaction.Thread.Stop()
	p.Transaction.Thread = nil
	r, err := p.Wait(t.Context())
	if out := read(); err != nil || r.ExitCode != 3 || strings.Count(out.stderr, "Read-only file system") != 4 {
		t.Errorf("%+v %+v, %v", r, out, err)
	}
	if now := show(t, sb, "/workspace", "/home/sandbox", "/bound", overlaid); now != before {
		t.Errorf("there is\n%s\nwhere there was\n%s", now, before)
	}
	if left, err := os.ReadDir(bound); err != nil || len(left) != 1 {
		t.Errorf("in what was bound there are %v, %v", left, err)
	}
}

// layersOfAnywhere says that this kernel makes no overlay of mounts that are attached
// nowhere.
func layersOfAnywhere(t testing.TB) string { t.Helper(); return testhost.LinuxBefore(t, 6, 15) }

// The workspace shows an overlaid tree at a second place, which is nearer to the root.
func TestATransactionWritesToAnOverlaidWorkspace(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	dir := ownedDir(t, 4321, "host\n")
	sb := createUp(t, newTestLauncher(t), newID(), spec.Config{Workspace: dir, Overlays: []string{dir}})
	if r, out := transact(t, sb, "echo new > /workspace/new; cat "+dir+"/new"); !r.OK() || out.stdout != "new\n" {
		t.Fatalf("%+v %+v", r, out)
	}
	for _, at := range []string{"/workspace", dir} {
		if _, out := sh(t, sb, "cat "+at+"/new"); out.stdout != "new\n" {
			t.Errorf("%s: %+v", at, out)
		}
	}
}
