package apply

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestWhatIsNotCarriedOver(t *testing.T) {
	b := newBox(t, "echo s > was; mkdir dir")
	b.run(`echo x > suid; chmod 4755 suid; echo x > sgid; chmod 2755 sgid; mknod null c 1 3; mknod disk b 8 0
		mkdir made; mknod made/zero c 1 5; echo x > cap; chmod 4711 made; echo x > was; chmod 6755 was
		perl -e 'use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("sock"))'
		mkdir .sandbox-runtime-apply-x; echo evil > .sandbox-runtime-apply-x/commit; chmod 700 .sandbox-runtime-apply-x
		mkdir dir/.sandbox-runtime-x; echo > .sandbox-runtime`)
	// cap_net_raw, effective: include/uapi/linux/capability.h, struct vfs_cap_data.
	b.xattr("cap", capability, "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	p := b.plan(Options{})
	var refused []string
	for _, r := range p.Refused() {
		refused = append(refused, r.Path)
	}
	want := []string{".sandbox-runtime-apply-x", ".sandbox-runtime-apply-x/commit", "cap", "disk", "made/zero", "null", "sgid", "sock", "suid", "was"}
	if slices.Sort(refused); !slices.Equal(refused, want) {
		t.Errorf("refused are %q", refused)
	}
	report := b.commit(p)
	if slices.Contains(report.Applied, "null") || !slices.Contains(report.Applied, "suid") {
		t.Errorf("applied %q", report.Applied)
	}
	for path, mode := range map[string]uint32{"suid": 0o100755, "sgid": 0o100755, "was": 0o100755, "cap": 0o100644} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(b.tree, path), &st); err != nil || st.Mode != mode {
			t.Errorf("%s has mode %o: %v", path, st.Mode, err)
		}
	}
	for _, path := range []string{"null", "disk", "made/zero", "sock", ".sandbox-runtime-apply-x"} {
		if _, err := os.Lstat(filepath.Join(b.tree, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if _, err := unix.Lgetxattr(filepath.Join(b.tree, "cap"), capability, nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("capabilities of cap: %v", err)
	}
}

func TestWhatIsAskedForIsCarriedOver(t *testing.T) {
	b := newBox(t, "echo s > was")
	b.run("echo x > suid; chmod 6755 suid; mknod null c 1 3; mkdir made; mknod -m 600 made/disk b 8 0; echo x > cap; echo x > was; chmod 4755 was")
	b.xattr("cap", capability, "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	want := describeTree(t, b.merged)
	p := b.plan(Options{Setuid: true, Devices: true})
	if len(p.Refused()) > 0 {
		t.Errorf("refused %v", p.Refused())
	}
	b.commit(p)
	b.wantSame(want, describeTree(t, b.tree))
}

func TestOwners(t *testing.T) {
	b := newBox(t, "echo a > mine; chown 77:78 mine; mkdir dir; chown 5:6 dir; echo > turns; chown 7:8 turns; chown 1000:1001 .")
	b.run("echo b > mine; chown 0:0 mine; mkdir new; echo n > new/n; ln -s x new/l; mkfifo new/p; chown 3:4 new/n; chmod 700 dir; chown 9 dir; rm turns; mkdir turns")
	b.apply(Options{})
	owners := func(want map[string]string) {
		t.Helper()
		for path, owner := range want {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(b.tree, path), &st); err != nil || fmt.Sprintf("%d:%d", st.Uid, st.Gid) != owner {
				t.Errorf("%s belongs to %d:%d, not %s: %v", path, st.Uid, st.Gid, owner, err)
			}
		}
	}
	owners(map[string]string{"mine": "77:78", "dir": "5:6", "new": "1000:1001", "new/n": "1000:1001", "new/l": "1000:1001", "new/p": "1000:1001", "turns": "1000:1001"})
	b.run("mkdir other; echo > other/f")
	b.apply(Options{Owner: &Owner{UID: 12, GID: 13}, Overwrite: true})
	owners(map[string]string{"other": "12:13", "other/f": "12:13", "mine": "77:78"})
}

// An access control list that names users of the sandbox means others on the
// host.
func TestListsOfTheSandboxsUsersStayThere(t *testing.T) {
	const base = "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff"
	const rest = "\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x06\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"
	named := func(uid string) string { return base + "\x02\x00\x06\x00" + uid + rest }
	b := newBox(t, "echo a > f; mkdir d")
	host := named("\x05\x00\x00\x00")
	b.unmount()
	for _, path := range []string{"f", "d"} {
		if err := unix.Setxattr(filepath.Join(b.tree, path), accessACL, []byte(host), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(b.merged, 0o755); err != nil {
		t.Fatal(err)
	}
	b.mount()
	b.run("echo b > f; echo c > new; touch d")
	for _, path := range []string{"f", "d", "new"} {
		b.xattr(path, accessACL, named("\x09\x00\x00\x00"))
	}
	p := b.plan(Options{})
	if len(p.Refused()) != 3 {
		t.Errorf("refused %v", p.Refused())
	}
	b.commit(p)
	for path, want := range map[string]string{"f": host, "d": host, "new": ""} {
		got := make([]byte, 100)
		n, err := unix.Getxattr(filepath.Join(b.tree, path), accessACL, got)
		if want == "" && !errors.Is(err, unix.ENODATA) || want != "" && string(got[:max(n, 0)]) != want {
			t.Errorf("list of %s is %x, %v", path, got[:max(n, 0)], err)
		}
	}
}

func TestSubmountsAreNamed(t *testing.T) {
	for name, work := range map[string]string{
		"below": "echo > mnt/f", "replaced": "rm -r dir; echo > dir", "deleted with": "rm -r dir; echo > other",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "mkdir mnt dir dir/sub; echo > dir/f")
			b.run(work)
			for _, at := range []string{"mnt", "dir/sub"} {
				at := filepath.Join(b.tree, at)
				if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := unix.Unmount(at, 0); err != nil {
						t.Error(err)
					}
				})
			}
			sh(t, b.tree, "echo safe > dir/sub/canary; echo safe > mnt/canary")
			err := b.refused(Options{Overwrite: true})
			if !strings.Contains(err.Error(), "mount") || !strings.Contains(err.Error(), "mnt") && !strings.Contains(err.Error(), `"dir/sub"`) {
				t.Errorf("refused with %v", err)
			}
		})
	}
}

func TestAFullDiskLeavesNothing(t *testing.T) {
	b := newBox(t, "")
	b.unmount()
	if err := unix.Mount("tmpfs", b.tree, "tmpfs", 0, "size=1m,nr_inodes=40"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.tree, 0); err != nil {
			t.Error(err)
		}
	})
	b.host("echo old > f; mkdir d; echo > d/g")
	if err := os.Mkdir(b.merged, 0o755); err != nil {
		t.Fatal(err)
	}
	b.mount()
	b.run("echo new > f; rm -r d; head -c 3M /dev/urandom > big")
	if err := b.refused(Options{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), `"big"`) {
		t.Errorf("bytes: %v", err)
	}
	b.run("rm big; mkdir many; touch many/{1..60}")
	if err := b.refused(Options{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), `"many/`) {
		t.Errorf("inodes: %v", err)
	}
	b.run("rm -r many")
	b.apply(Options{})
	b.asMerged()
}

func TestAReadOnlyTreeIsNamed(t *testing.T) {
	b := newBox(t, "echo a > f")
	b.run("echo b > f")
	if err := unix.Mount(b.tree, b.tree, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.tree, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", b.tree, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.refused(Options{}); !errors.Is(err, unix.EROFS) {
		t.Errorf("refused with %v", err)
	}
}

// asUser applies in a process of an ordinary user.
func (b *box) asUser(role string, paths ...string) (string, error) {
	b.t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{b.tree, b.upper}, paths...)...)
	marks := map[string]layer.Mark{}
	err := layer.EachMark(b.t.Context(), openDir(b.t, b.upper), func(path string, m layer.Mark) error {
		marks[path] = m
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	told, err := json.Marshal(marks)
	if err != nil {
		b.t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), roleVariable+"="+role, marksVariable+"="+string(told))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestAnOrdinaryUserAppliesToTreesOfTheirOwn(t *testing.T) {
	b := newBox(t, "mkdir -p gone/in; echo > gone/in/f; chmod 555 gone/in; echo a > f; mkdir d; chown -R 1000:1000 .")
	b.run("mkdir -p closed/in; echo x > closed/in/f; chmod 555 closed/in closed; rm -r gone; echo b > f; echo > d/x; chmod 711 d; echo r > ro; mkdir rodir; " +
		`python3 -c 'import os; [os.setxattr(f, "user.a", b"1") for f in ("ro", "rodir")]'; chmod 444 ro; chmod 555 rodir; chown -R 1000:1000 .`)
	sh(t, b.upper, "chown 1000:1000 .")
	want := describeTree(t, b.merged)
	if out, err := b.asUser("apply"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.clean()
	b.wantSame(want, describeTree(t, b.tree))
}

func TestWithoutPermissionNothingIsDone(t *testing.T) {
	tests := map[string]struct{ host, work, says string }{
		"read-only directory":         {"mkdir d", "echo > d/f", `"d/f"`},
		"deletion from one":           {"mkdir d; echo > d/f", "rm d/f", `"d/f"`},
		"another's file":              {"echo a > f; chmod 666 f", "echo b > f", `"f": it would belong to user 0`},
		"another's directory":         {"mkdir d; chmod 777 d", "chmod 755 d", `"d"`},
		"deletion of another's":       {"mkdir -p d/e; echo > d/e/f; chmod 1777 d", "rm -r d/e", `"d/e"`},
		"a directory it may not read": {"mkdir -m 700 d; echo > d/f", "rm -r d", `"d"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "echo > first; chmod 777 .; "+test.host)
			b.run("rm first; echo > last; " + test.work)
			before := describeTree(t, b.tree)
			sh(t, b.upper, "chmod 755 .; find . -type d -exec chmod o+rx {} +; find . -type f -exec chmod o+r {} +")
			out, err := b.asUser("apply")
			if err == nil || !strings.Contains(out, test.says) {
				t.Errorf("%v: %s", err, out)
			}
			b.wantSame(before, describeTree(t, b.tree))
			b.clean()
		})
	}
}

func TestOneApplyAtATime(t *testing.T) {
	b := newBox(t, "echo a > f")
	b.run("echo b > f")
	j, err := beginJournal(openDir(t, b.tree), false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.plan(Options{}).Commit(t.Context())
	if !errors.Is(err, ErrBusy) {
		t.Errorf("during another: %v", err)
	}
	if err := j.discard(); err != nil {
		t.Fatal(err)
	}
	// One that is done, and only removes what it has replaced, is in nobody's way.
	if j, err = beginJournal(openDir(t, b.tree), false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.tree, j.name, doneFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := b.plan(Options{})
	if _, err = p.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(p.Close(), j.discard()); err != nil {
		t.Fatal(err)
	}
	b.clean()
	b.asMerged()
}

func TestJournalsOfOthersAreNotFollowed(t *testing.T) {
	for name, forge := range map[string]string{
		"another user's": "mkdir -m 700 J; chown 1000 J", "open to others": "mkdir -m 750 J",
		"a link": "mkdir -m 700 ../outside; echo > ../outside/commit; ln -s ../outside J", "a file": "echo > J",
		"a record of another version": `mkdir -m 700 J; echo nonsense > J/commit`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "echo a > f")
			b.run("echo b > f")
			b.host(strings.ReplaceAll(forge, "J", journalPrefix+"forged"))
			before := describeTree(t, b.tree)
			if _, err := b.plan(Options{}).Commit(t.Context()); err == nil || !strings.Contains(err.Error(), "forged") {
				t.Errorf("with one: %v", err)
			}
			b.wantSame(before, describeTree(t, b.tree))
		})
	}
}

// What a sandbox writes to a directory of root's, as its workspace, is root's.
func TestARecordThatNoApplyHasWrittenIsNotFollowed(t *testing.T) {
	for name, sealed := range map[string]bool{"written": false, "changed": true} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "mkdir -m 700 theirs; chown 1001 theirs; echo a > f")
			target := b.plan(Options{}).target
			j, err := beginJournal(target, false)
			if err == nil {
				err = j.write(&record{Version: recordVersion})
			}
			if err != nil {
				t.Fatal(err)
			}
			j.dir.Close()
			var forged bytes.Buffer
			err = gob.NewEncoder(&forged).Encode(record{Version: recordVersion, Ops: []op{
				{Kind: opAttributes, Path: "theirs", New: &attributes{Mode: 0o777}},
			}})
			commit := filepath.Join(b.tree, j.name, recordFile)
			if !sealed {
				err = errors.Join(err, os.Remove(commit))
			}
			if err := errors.Join(err, os.WriteFile(commit, forged.Bytes(), 0o600)); err != nil {
				t.Fatal(err)
			}
			before := describeTree(t, b.tree)
			if _, err := Recover(target, false, nil); !errors.Is(err, errForged) {
				t.Errorf("recovered: %v", err)
			}
			b.wantSame(before, describeTree(t, b.tree))
		})
	}
}

// A directory below the tree can be the tree of another sandbox. A recovery there would follow a
// record that this sandbox has written: an ordinary user has no seals.
func TestAStagingDirectoryOfASandboxIsNotApplied(t *testing.T) {
	b := newBox(t, "mkdir dir; chown -R 1000:1000 .")
	made := "dir/" + journalPrefix + "x"
	var forged bytes.Buffer
	err := gob.NewEncoder(&forged).Encode(record{Version: recordVersion, Ops: []op{{Kind: opCreate, Path: ".envrc", Item: 0}}})
	if err != nil {
		t.Fatal(err)
	}
	b.run("mkdir -m 700 " + made + "; cd " + made + "; echo evil > 0; : > " + markFile + "; : > " + recordFile)
	if err := os.WriteFile(filepath.Join(b.merged, made, recordFile), forged.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run("mkdir -p -m 700 new/" + journalPrefix + "y; echo x > new/" + journalPrefix + "y/" + recordFile + "; chown -R 1000:1000 .")
	sh(t, b.upper, "chown 1000:1000 .")
	if out, err := b.asUser("apply"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, path := range []string{made, "new/" + journalPrefix + "y"} {
		if _, err := os.Lstat(filepath.Join(b.tree, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was applied: %v", path, err)
		}
	}
	below := *b
	below.tree = filepath.Join(b.tree, "dir")
	if out, err := below.asUser("recover"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Lstat(filepath.Join(below.tree, ".envrc")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the forged record was followed: %v", err)
	}
}

// Where no record may be followed any more, the items that it speaks of may be gone.
func TestWhatIsAbandonedIsNotFollowed(t *testing.T) {
	b := newBox(t, "echo a > f")
	target := openDir(t, b.tree)
	j, err := beginJournal(target, false)
	if err == nil {
		err = j.write(&record{Version: recordVersion, Ops: []op{{Kind: opDelete, Path: "f", Item: 1, Any: true}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(b.tree, j.name, "0") // something keeps the directory from being removed
	if err := errors.Join(os.Mkdir(busy, 0o700), unix.Mount("tmpfs", busy, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	if err := j.abandon(errFailed); !errors.Is(err, errFailed) || !errors.Is(err, unix.EXDEV) {
		t.Errorf("abandoned with %v", err)
	}
	if err := unix.Unmount(busy, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Recover(target, false, nil); err != nil {
		t.Error(err)
	}
	b.clean()
	sh(t, b.tree, "[ $(cat f) = a ]")
}

// As long as a replaced entry stays, its removal can still change a file of the tree, and the next apply tells the stamps anew.
func TestTheDoneRecordStaysWithReplacedEntries(t *testing.T) {
	b := newBox(t, "echo a > f")
	target := openDir(t, b.tree)
	j, err := beginJournal(target, false)
	if err == nil {
		err = j.write(&record{Version: recordVersion, Source: "source"})
	}
	if err == nil {
		err = j.done()
	}
	if err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(b.tree, j.name, "1")
	if err := errors.Join(os.Mkdir(busy, 0o700), unix.Mount("tmpfs", busy, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	if err := j.discard(); !errors.Is(err, unix.EXDEV) {
		t.Errorf("discarded with %v", err)
	}
	if err := unix.Unmount(busy, 0); err != nil {
		t.Fatal(err)
	}
	told := ""
	_, err = Recover(target, false, func(source string, _ map[string]layer.Stamp) error {
		told = source
		return nil
	})
	if err != nil || told != "source" {
		t.Errorf("told %q, %v", told, err)
	}
	b.clean()
}

var errFailed = errors.New("failed")

// chain makes directories in each other.
func chain(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		next, err := -1, unix.Mkdirat(at, "d", 0o700)
		if err == nil {
			next, err = unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	unix.Close(at)
}

// Whoever writes to the tree, as a sandbox to its own, can make it deeper than there
// is memory for all the paths.
func TestWhatLiesTooDeepIsNamed(t *testing.T) {
	b := newBox(t, "mkdir -p other/d; echo a > f")
	chain(t, filepath.Join(b.tree, "other/d"), maxPath/2)
	b.run("echo b > f")
	sh(t, b.upper, "mkdir other; mknod other/d c 0 0")
	defer sh(t, b.tree, "rm -r other/d")
	_, err := b.tryPlan(Options{Overwrite: true})
	if !errors.Is(err, unix.ENAMETOOLONG) || !strings.Contains(err.Error(), `"other/d/d/`) || len(err.Error()) > 400 {
		t.Errorf("%.1000v", err)
	}
	b.apply(Options{Paths: []string{"f"}})
}

func TestWhatLiesTooDeepIsRemoved(t *testing.T) {
	b := &box{t: t, tree: newAttackedTree(t).tree}
	j, err := beginJournal(openDir(t, b.tree), false)
	if err != nil {
		t.Fatal(err)
	}
	const depth = 2 * maxPath
	chain(t, filepath.Join(b.tree, j.name), depth)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := j.discard(); err != nil {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > depth*maxPath*3/2 {
		t.Errorf("%d MiB for %d directories", took>>20, depth)
	}
	b.clean()
}

// To look at a pipe is to wake who waits at its other end.
func TestPipesOfTheHostAreNotOpened(t *testing.T) {
	testhost.Concurrent(t)
	const acl = "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x06\x00\x09\x00\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x06\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"
	b := newBox(t, "mkfifo p")
	b.xattr("p", accessACL, acl)
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(filepath.Join(b.tree, "p"), os.O_WRONLY, 0)
		if err == nil {
			err = f.Close()
		}
		opened <- err
	}()
	p := b.plan(Options{})
	for range 100 {
		p = b.plan(Options{})
	}
	select {
	case err := <-opened:
		t.Errorf("who waited for a reader has found one: %v", err)
	default:
		sh(t, b.tree, "cat p")
		<-opened
	}
	b.commit(p)
}

func TestACancelledApplyHasNotHappened(t *testing.T) {
	b := newBox(t, host)
	b.work()
	before := describeTree(t, b.tree)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.plan(Options{}).Commit(ctx); !errors.Is(err, ctx.Err()) {
		t.Errorf("cancelled: %v", err)
	}
	b.clean()
	b.wantSame(before, describeTree(t, b.tree))
}

func TestSparseFilesStaySparse(t *testing.T) {
	b := newBox(t, "")
	b.run("truncate -s 1T sparse; echo end >> sparse; printf x | dd of=sparse bs=1 seek=1G conv=notrunc status=none; truncate -s 5M hole")
	b.apply(Options{})
	sh(t, b.tree, `[ $(du -k sparse | cut -f1) -lt 100 ]; [ $(stat -c %s sparse) = $((1024*1024*1024*1024+4)) ]
		[ "$(tail -c 4 sparse)" = end ]; [ $(du -k hole | cut -f1) = 0 ]; [ "$(dd if=sparse bs=1 skip=1G count=1 status=none)" = x ]`)
}

func TestWhatIsBeingWrittenIsNotAppliedTorn(t *testing.T) {
	testhost.Concurrent(t)
	b := newBox(t, "echo a > first")
	b.run("echo b > first; head -c 64M /dev/urandom > f")
	f, err := os.OpenFile(filepath.Join(b.merged, "f"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		defer close(stopped)
		for {
			if _, err := f.WriteAt([]byte("x"), 0); err != nil {
				stopped <- err
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	o := Options{}
	err = b.applyWhole(o)
	for end := time.Now().Add(testhost.Patience); err == nil && time.Now().Before(end); err = b.applyWhole(o) {
		o.Overwrite = true // who writes stood still while it was copied
	}
	if err == nil || !strings.Contains(err.Error(), "being written") || !strings.Contains(err.Error(), `"f"`) {
		t.Errorf("refused with %v", err)
	}
	close(stop)
	if err := errors.Join(<-stopped, f.Close()); err != nil {
		t.Fatal(err)
	}
	b.apply(o)
	b.asMerged()
}

// What cannot be read does not keep the rest from being applied.
func TestChosenPathsOfALayerThatIsPartlyClosed(t *testing.T) {
	b := newBox(t, "mkdir d; echo a > d/f; chown -R 1000:1000 .")
	b.run("mkdir none; echo x > none/x; echo b > d/f; chown -R 1000:1000 .; chmod 0 none")
	sh(t, b.upper, "chown 1000:1000 .")
	if out, err := b.asUser("apply"); err == nil || !strings.Contains(out, "none") {
		t.Errorf("all: %v: %s", err, out)
	}
	if out, err := b.asUser("apply", "d"); err != nil {
		t.Errorf("the rest: %v: %s", err, out)
	}
	sh(t, b.tree, "[ $(cat d/f) = b ]")
}

// Another user who may write to a tree can rename what lies in the tree, also a directory
// of root's in which the user may remove nothing.
func TestADirectoryThatNoApplyHasMadeIsNotRemoved(t *testing.T) {
	b := newBox(t, "echo a > f")
	b.host("mkdir -m 700 private; echo precious > private/1; echo precious > private/done; mv private " + journalPrefix + "aa")
	before := describeTree(t, b.tree)
	if _, err := Recover(openDir(t, b.tree), false, nil); !errors.Is(err, ErrForeign) {
		t.Errorf("recovered: %v", err)
	}
	b.wantSame(before, describeTree(t, b.tree))
}

// A user who may write to a tree can put a directory in the place of a new staging directory. The user could then
// replace what is staged.
func TestNothingIsStagedInADirectoryOfAnotherUser(t *testing.T) {
	b := newBox(t, "echo a > f")
	const name = journalPrefix + "aa"
	b.host("mkdir -m 700 " + name + "; chown 1000 " + name)
	target := openDir(t, b.tree)
	j, err := lockJournal(target, name, false)
	if err != nil {
		t.Fatal(err)
	}
	defer j.dir.Close()
	if err := j.mark(); !errors.Is(err, ErrForeign) {
		t.Errorf("marked: %v", err)
	}
}

func TestAForeignJournalHidesNoOther(t *testing.T) {
	b := newBox(t, "echo a > f")
	target := openDir(t, b.tree)
	j, err := beginJournal(target, false)
	if err == nil {
		err = j.write(&record{Version: recordVersion, Ops: []op{{Kind: opDelete, Path: "f", Item: 1, Any: true}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	j.dir.Close()
	b.host("mkdir -m 700 " + journalPrefix + "!; chown 1000 " + journalPrefix + "!")
	done, err := Recover(target, false, nil)
	if !errors.Is(err, ErrForeign) || !done.Finished {
		t.Errorf("recovered: %+v, %v", done, err)
	}
	b.host("test ! -e f; rmdir " + journalPrefix + "!")
	b.clean()
}

// For another user than root a record has no seal.
func TestARecordThatIsAPipeIsNotAwaited(t *testing.T) {
	b := newBox(t, "echo a > f")
	j, err := beginJournal(openDir(t, b.tree), false)
	if err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(b.tree, j.name, recordFile)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := j.read(recordFile); !errors.Is(err, errNotRegular) {
		t.Errorf("read: %v", err)
	}
	if err := j.discard(); err != nil {
		t.Error(err)
	}
}
