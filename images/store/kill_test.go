package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// operations are those that a process of the tests does. Each can be done again.
func operations() map[string]func(ctx context.Context, dir string) error {
	return map[string]func(ctx context.Context, dir string) error{
		"open": func(ctx context.Context, dir string) error {
			_, err := Open(ctx, dir)
			return err
		},
		"layer": func(ctx context.Context, dir string) error {
			return withPull(ctx, dir, func(p *Pull) error { return addLayer(ctx, p, first) })
		},
		"image": func(ctx context.Context, dir string) error {
			return withPull(ctx, dir, func(p *Pull) error {
				_, err := p.AddImage(ctx, NewImage{Reference: "new", Config: configOf("new", base)})
				return err
			})
		},
		"remove": func(ctx context.Context, dir string) error {
			return withUser(ctx, dir, func(u User) error {
				_, err := u.Remove(ctx, "two")
				if errors.Is(err, ErrNotFound) {
					return nil
				}
				return err
			})
		},
		"prune": func(ctx context.Context, dir string) error {
			return withUser(ctx, dir, func(u User) error { _, err := u.Prune(ctx); return err })
		},
		"use": func(ctx context.Context, dir string) error {
			return withUser(ctx, dir, func(u User) error {
				h, err := u.Use(ctx, "two", "box")
				if err == nil {
					h.Close()
				}
				return err
			})
		},
		"use until boot": func(ctx context.Context, dir string) error {
			return withUser(ctx, dir, func(u User) error {
				h, err := u.UseUntilBoot(ctx, "two", "box")
				if err == nil {
					h.Close()
				}
				return err
			})
		},
		"release": func(ctx context.Context, dir string) error {
			return withUser(ctx, dir, func(u User) error { return u.Release(ctx, "box") })
		},
		"verify": func(ctx context.Context, dir string) error {
			return withUser(ctx, dir, func(u User) error { return u.Verify(ctx, "two") })
		},
	}
}

func withUser(ctx context.Context, dir string, f func(User) error) error {
	s, err := Open(ctx, dir)
	if err != nil {
		return err
	}
	return f(s.For(alice))
}

func withPull(ctx context.Context, dir string, f func(*Pull) error) error {
	return withUser(ctx, dir, func(u User) error {
		p, err := u.Pull(ctx)
		if err != nil {
			return err
		}
		defer p.Close()
		return f(p)
	})
}

// preparations fill the store before an operation.
func preparations() map[string]func(box) {
	twoImages := func(b box) {
		b.pull(alice, "one", base)
		b.pull(alice, "two", base, other)
		b.pull(bob, "two", base)
	}
	return map[string]func(box){
		"open":   nil, // there is no store
		"layer":  func(b box) { b.pull(alice, "one", base); b.pull(bob, "one", other) },
		"image":  func(b box) { b.pull(alice, "one", base) },
		"remove": twoImages,
		"prune": func(b box) { // an image without a name, and a layer without an image
			twoImages(b)
			if err := withPull(b.Context(), b.dir, func(p *Pull) error {
				_, err := p.AddImage(b.Context(), NewImage{Reference: "two", Config: configOf("one", base)})
				return errors.Join(err, addLayer(b.Context(), p, first))
			}); err != nil {
				b.Fatal(err)
			}
		},
		"use": twoImages, "use until boot": twoImages,
		"release": func(b box) {
			twoImages(b)
			if err := operations()["use"](b.Context(), b.dir); err != nil {
				b.Fatal(err)
			}
		},
		"verify": twoImages,
	}
}

// An ordeal is an operation that is disturbed, each time on the same store made anew.
type ordeal struct {
	box
	operation string
	dir       string
	pristine  string
	after     []string // the contents after the undisturbed operation
}

func newOrdeal(t *testing.T, operation string) *ordeal {
	t.Helper()
	testhost.NeedRoot(t, "a worker changes its user")
	top := t.TempDir()
	o := &ordeal{operation: operation, dir: filepath.Join(top, "store"), pristine: filepath.Join(top, "pristine")}
	o.box = box{T: t, Store: &Store{dir: o.dir, limits: DefaultLimits()}}
	if prepare := preparations()[operation]; prepare != nil {
		s, err := Open(t.Context(), o.dir)
		if err != nil {
			t.Fatal(err)
		}
		prepare(box{t, s})
		if err := os.Rename(o.dir, o.pristine); err != nil {
			t.Fatal(err)
		}
	}
	o.reset()
	if err := o.repeat(); err != nil {
		t.Fatal(err)
	}
	o.after = contents(o.dir)
	return o
}

// reset makes the store anew.
func (o *ordeal) reset() {
	o.Helper()
	must(os.RemoveAll(o.dir))
	if _, err := os.Stat(o.pristine); err == nil {
		if text, err := exec.Command("cp", "-a", o.pristine, o.dir).CombinedOutput(); err != nil {
			o.Fatalf("%v: %s", err, text)
		}
	}
}

func (o *ordeal) repeat() error { return operations()[o.operation](o.Context(), o.dir) }

func (o *ordeal) command() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", o.dir)
	// Less of the runtime's own threads makes more of the points the product's.
	cmd.Env = append(os.Environ(), roleVariable+"="+o.operation, "GOMAXPROCS=1", "GOGC=off")
	cmd.Stderr = os.Stderr
	return cmd
}

// check checks the rules of the store's directory after a repair, and that the operation succeeds then.
func (o *ordeal) check(when string) {
	o.Helper()
	if _, err := Open(o.Context(), o.dir); err != nil {
		o.Fatalf("%s: %v", when, err)
	}
	o.checkRules(when)
	if err := o.repeat(); err != nil {
		o.Fatalf("%s, and again: %v", when, err)
	}
	if now := contents(o.dir); !slices.Equal(now, o.after) {
		o.Fatalf("%s, and again:\n%q\nnot\n%q", when, now, o.after)
	}
}

func (o *ordeal) checkRules(when string) {
	o.Helper()
	for _, path := range contents(o.dir) {
		parts := strings.Split(path, "/")
		switch {
		case parts[0] == "drafts", len(parts) > 2 && (parts[2] == "removing" || parts[2] == "adding"):
			o.Fatalf("%s: %s is left", when, path)
		case parts[0] == "layers", parts[0] == "images":
			if rights, err := filepath.Glob(filepath.Join(o.dir, "users/*", parts[0], parts[1])); err != nil || len(rights) == 0 {
				o.Fatalf("%s: no user has %s", when, path)
			}
		}
	}
	for _, uid := range []uint32{alice, bob} {
		images, err := o.For(uid).Images(o.Context())
		if err != nil {
			o.Fatalf("%s: %v", when, err)
		}
		for _, i := range images {
			lacks, err := o.For(uid).lacksLocked(i.Layers)
			if i.Damaged != "" || err != nil || len(lacks) > 0 {
				o.Fatalf("%s: image %+v lacks %v: %v", when, i, lacks, err)
			}
		}
	}
}

// children are the processes that a killed process has left.
func children(pid int) (found []string) {
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(err)
	for _, e := range entries {
		if text, err := os.ReadFile(e); err == nil && strings.Contains(string(text), fmt.Sprintf(`"Parent":%d,`, pid)) {
			found = append(found, e)
		}
	}
	return found
}

// killInterval is the distance of the failpoints at which a run kills. Each run has others. The variable being "all"
// makes a run kill at all of them.
func killInterval() int {
	if os.Getenv("IMAGE_STORE_TEST_FAILPOINTS") == "all" {
		return 1
	}
	return 5
}

func TestKilledAnywhereTheStoreIsWhole(t *testing.T) {
	for operation := range operations() {
		t.Run(operation, func(t *testing.T) {
			o := newOrdeal(t, operation)
			o.reset()
			undisturbed, err := failpoint.Run(o.command(), 0, time.Minute)
			if err != nil || undisturbed.Status != 0 {
				t.Fatalf("undisturbed: %v, status %v", err, undisturbed.Status)
			}
			o.check("undisturbed")
			for n := rand.N(killInterval()); n < len(undisturbed.Points); n += killInterval() {
				o.reset()
				cmd := o.command()
				trace, err := failpoint.Run(cmd, n+1, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				when := "killed nowhere"
				if trace.Killed {
					when = "killed " + trace.Points[len(trace.Points)-1].String()
				}
				testhost.Eventually(t, "the children end", func() bool { return len(children(cmd.Process.Pid)) == 0 })
				o.check(when)
			}
			t.Logf("%d failpoints", len(undisturbed.Points))
		})
	}
}
