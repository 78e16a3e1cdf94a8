package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The leaf made ahead refuses the new limit: on v1 the limit of memory cannot be above that of memory and swap.
func TestUpdateThatALeafRefusesLeavesTheOldLimits(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{Limits: spec.Limits{Memory: 64 << 20}})
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Fatal(r)
	}
	var leaves []string
	group := filepath.Join("/sys/fs/cgroup/memory", sb.session.Group.Path())
	eventually(t, "a leaf is made", func() bool {
		leaves, _ = filepath.Glob(group + "/exec-*/memory.limit_in_bytes")
		return len(leaves) > 0 || !isV1WithSwap()
	})
	if !isV1WithSwap() {
		t.Skip("needs a limit of memory and swap on cgroup v1")
	}
	leaf := filepath.Dir(leaves[0])
	if err := os.WriteFile(leaf+"/memory.memsw.limit_in_bytes", []byte("67108864"), 0); err != nil {
		t.Fatal(err)
	}
	err := sb.Update(t.Context(), spec.Limits{Memory: 128 << 20})
	settings, readErr := sb.Settings()
	if !errors.Is(err, unix.EINVAL) || readErr != nil || settings.Memory != 64<<20 || settings.MemoryAndSwap != 64<<20 {
		t.Errorf("%v; the kernel has %+v, %v", err, settings, readErr)
	}
	if i, err := elsewhere(t, sb).Info(); err != nil || i.Config.Limits.Memory != 64<<20 {
		t.Errorf("the record has %+v, %v", i.Config.Limits, err)
	}
	for _, file := range leaves {
		if text, err := os.ReadFile(file); err == nil && string(text) != "67108864\n" {
			t.Errorf("%s: %s", file, text)
		}
	}
}

func isV1WithSwap() bool {
	_, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
	return err == nil
}

// Too few descriptors do not show that the processes of a sandbox have ended.
func TestChangesWithFewDescriptorsDoNotTakeASandboxForEnded(t *testing.T) {
	sb := createUp(t, newTestLauncher(t), "box", spec.Config{})
	c := containerOf(t, sb)
	for free := range 24 {
		var errs []error
		testhost.WithFreeDescriptors(t, free, func() {
			errs = append(errs, sb.Update(t.Context(), spec.Limits{Memory: spec.Size(free+100) << 20}),
				sb.Pause(t.Context()), sb.Resume(t.Context()),
				c.Signal(unix.SIGCONT), c.Pause(), c.Update(&specs.LinuxResources{}, container.IntelRdt{}))
		})
		if err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, err := range errs {
			if errors.Is(err, fault.ErrNotRunning) || errors.Is(err, container.ErrNotRunning) || errors.Is(err, fault.ErrNotFound) {
				t.Errorf("%d free descriptors: %v", free, err)
			}
		}
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Error(err)
	}
}
