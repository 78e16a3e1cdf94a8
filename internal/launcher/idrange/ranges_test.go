package idrange

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// bootDir is where the claims of this boot are.
func bootDir(t *testing.T, r Ranges) string {
	t.Helper()
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(r.Data, "ids", boot)
}

func claimed(t *testing.T, r Ranges, id string) uint32 {
	t.Helper()
	base, err := r.Claim(id)
	if err != nil {
		t.Fatal(err)
	}
	return base
}

func ownersOf(t *testing.T, r Ranges) []Owner {
	t.Helper()
	owners, err := r.Owners()
	if err != nil {
		t.Fatal(err)
	}
	return owners
}

// Launchers with two state roots claim at once, for sandboxes of the same names.
func TestNoTwoClaimsShareARange(t *testing.T) {
	const claims = 32
	data := t.TempDir()
	roots := []Ranges{{data, "/run/one"}, {data, "/run/two"}}
	bases := map[Ranges][]uint32{}
	var all sync.WaitGroup
	for _, r := range roots {
		given := make([]uint32, claims)
		bases[r] = given
		for i := range claims {
			all.Go(func() {
				base, err := r.Claim(fmt.Sprint("sb-", i))
				if err != nil {
					t.Error(err)
				}
				given[i] = base
			})
		}
	}
	all.Wait()
	seen := map[uint32]bool{}
	for _, base := range slices.Concat(bases[roots[0]], bases[roots[1]]) {
		if seen[base] {
			t.Errorf("range %#x was given out twice", base)
		}
		seen[base] = true
		if base < FirstID || (base-FirstID)%spec.IDs != 0 || base > FirstID+(rangeCount-1)*spec.IDs {
			t.Errorf("base %#x is not that of a range", base)
		}
	}
	for _, r := range roots {
		owners := ownersOf(t, r)
		if len(owners) != claims {
			t.Errorf("%s: %d owners of %d ranges", r.Root, len(owners), claims)
		}
		for _, o := range owners {
			var i int
			if _, err := fmt.Sscanf(o.Sandbox, "sb-%d", &i); err != nil || bases[r][i] != o.Base {
				t.Errorf("%s: owner %+v, want base %#x", r.Root, o, bases[r][i])
			}
		}
	}
}

func TestAllIDRangesTakenIsAnError(t *testing.T) {
	r := Ranges{t.TempDir(), "/run/test"}
	var bases []uint32
	var err error
	for err == nil {
		var base uint32
		if base, err = r.Claim(fmt.Sprint(len(bases))); err == nil {
			bases = append(bases, base)
		}
	}
	// All but those of sandboxes that live on this host at the moment.
	if !errors.Is(err, ErrNone) || len(bases) > rangeCount || len(bases) < rangeCount/2 {
		t.Fatalf("claim %d: %v", len(bases), err)
	}
	// Many: other sandboxes of this host take some of the released ones meanwhile.
	for i := range rangeCount / 4 {
		if err := r.Release(fmt.Sprint(i), bases[i]); err != nil {
			t.Fatal(err)
		}
	}
	base := claimed(t, r, "one more")
	for range 2 {
		if err := r.Release("one more", base); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}

func TestReleaseAllIsForOneSandboxOfOneRoot(t *testing.T) {
	data := t.TempDir()
	one, two := Ranges{data, "/run/one"}, Ranges{data, "/run/two"}
	claimed(t, one, "box")
	claimed(t, one, "box")
	kept, others := claimed(t, one, "other"), claimed(t, two, "box")
	if err := one.ReleaseAll("box"); err != nil {
		t.Fatal(err)
	}
	if have := ownersOf(t, one); !slices.Equal(have, []Owner{{"other", kept}}) {
		t.Errorf("left of the root: %v", have)
	}
	if have := ownersOf(t, two); !slices.Equal(have, []Owner{{"box", others}}) {
		t.Errorf("left of the other root: %v", have)
	}
}

// No process outlives a boot.
func TestClaimsOfAnotherBootAreVoid(t *testing.T) {
	r := Ranges{t.TempDir(), "/run/test"}
	base := claimed(t, r, "box")
	before := filepath.Join(r.Data, "ids", "another-boot")
	if err := os.Rename(bootDir(t, r), before); err != nil {
		t.Fatal(err)
	}
	if have := ownersOf(t, r); len(have) != 0 {
		t.Errorf("owners: %v", have)
	}
	if again := claimed(t, r, "box"); again != base {
		t.Errorf("got %#x, want %#x, which nobody has", again, base)
	}
	if _, err := os.Lstat(before); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("claims of the other boot: %v", err)
	}
}

// Whatever the directory says, nobody is given the ids of a process that lives.
func TestInhabitedRangesAreNotGivenOut(t *testing.T) {
	testhost.NeedRoot(t, "a process with an id of a sandbox's")
	for name, inside := range map[string]uint32{"id 0": 0, "the usual user": 1000, "the agent": spec.IDs - 1} {
		t.Run(name, func(t *testing.T) {
			r := Ranges{t.TempDir(), "/run/test"}
			id := "sb-" + strings.ToLower(rand.Text())
			first := claimed(t, r, id)
			sleeper := exec.Command("sleep", "1000")
			sleeper.SysProcAttr = &syscall.SysProcAttr{
				Credential: &syscall.Credential{Uid: first + inside, Gid: first + inside},
				Pdeathsig:  syscall.SIGKILL,
			}
			runtime.LockOSThread() // the signal comes when this thread ends: not before the test
			defer runtime.UnlockOSThread()
			if err := sleeper.Start(); err != nil {
				t.Fatal(err)
			}
			defer sleeper.Wait()
			defer sleeper.Process.Kill()
			if err := os.RemoveAll(r.Data); err != nil {
				t.Fatal(err)
			}
			if second := claimed(t, r, id); second == first {
				t.Errorf("%#x was given out, and a process runs under it", second)
			}
			if found, err := r.Claimed(id); !found || err != nil {
				t.Errorf("the claim behind the passed range: found %v, %v", found, err)
			}
		})
	}
}

func TestDamagedClaimsAreNobodysAndNotFree(t *testing.T) {
	r := Ranges{t.TempDir(), "/run/test"}
	id := "sb-" + strings.ToLower(rand.Text())
	first := claimed(t, r, id)
	if err := r.Release(id, first); err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(bootDir(t, r), rangeName((first-FirstID)/spec.IDs))
	for name, damage := range map[string]func() error{
		"no JSON":     func() error { return os.Symlink("{", place) },
		"a path":      func() error { return os.Symlink(`{"root":"/run/test","sandbox":"../.."}`, place) },
		"a file":      func() error { return os.WriteFile(place, nil, 0o600) },
		"a directory": func() error { return os.Mkdir(place, 0o700) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if have := ownersOf(t, r); len(have) != 0 {
			t.Errorf("%s: owners %v", name, have)
		}
		if base := claimed(t, r, id); base == first {
			t.Errorf("%s: the range was given out", name)
		}
		if err := errors.Join(r.ReleaseAll(id), os.Remove(place)); err != nil {
			t.Fatal(err)
		}
	}
}

// Who can write to the directory could have two sandboxes share their ids.
func TestClaimsAreMadeWhereNobodyElseWrites(t *testing.T) {
	testhost.NeedRoot(t, "directories of other users")
	elsewhere := t.TempDir()
	for name, spoil := range map[string]func(data string) error{
		"writable data":      func(data string) error { return os.Chmod(data, 0o777) },
		"writable to others": func(data string) error { return os.Chmod(filepath.Join(data, "ids"), 0o702) },
		"writable to group":  func(data string) error { return os.Chmod(filepath.Join(data, "ids"), 0o720) },
		"another's data":     func(data string) error { return os.Chown(data, 1000, 0) },
		"another's ids":      func(data string) error { return os.Chown(filepath.Join(data, "ids"), 1000, 0) },
		"another's boot": func(data string) error {
			return os.Chown(bootDir(t, Ranges{Data: data}), 1000, 0)
		},
		"a link": func(data string) error {
			return errors.Join(os.RemoveAll(filepath.Join(data, "ids")), os.Symlink(elsewhere, filepath.Join(data, "ids")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := Ranges{filepath.Join(t.TempDir(), "data"), "/run/test"}
			claimed(t, r, "box")
			if err := spoil(r.Data); err != nil {
				t.Fatal(err)
			}
			base, err := r.Claim("other")
			if err == nil {
				t.Errorf("claimed %#x", base)
			}
			var untrusted *statedir.UntrustedError
			if name != "a link" && !errors.As(err, &untrusted) {
				t.Errorf("error %v", err)
			}
		})
	}
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) > 0 {
		t.Errorf("behind the link: %v, %v", left, err)
	}
}

// What could not be made for want of a data directory can be removed without one.
func TestNobodyOwnsARangeWithoutADataDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := Ranges{Data: file, Root: t.TempDir()}
	if _, err := r.Claim("box"); err == nil {
		t.Error("a range was claimed")
	}
	if got := ownersOf(t, r); len(got) != 0 {
		t.Errorf("owners %v", got)
	}
	if err := r.ReleaseAll("box"); err != nil {
		t.Error(err)
	}
}
