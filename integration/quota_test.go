package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox/tenant"
)

// withProjectQuotas mounts an ext4 that has them, on an image.
func withProjectQuotas(t *testing.T) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	if got := run(t, exec.Command(hostTool(t, "mkfs.ext4"), "-q", "-F", "-b", "4096", "-O", "project,quota", "-E", "quotatype=prjquota", image)); got.code != 0 {
		t.Fatalf("mkfs.ext4: %s", answered(got))
	}
	device := strings.TrimSpace(run(t, exec.Command(hostTool(t, "losetup"), "--find", "--show", image)).stdout)
	if device == "" {
		t.Fatal("losetup found no device")
	}
	defer run(t, exec.Command(hostTool(t, "losetup"), "--detach", device)) // once nobody has it mounted
	err := unix.Mount(device, dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV, "prjquota")
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH) { // CONFIG_QUOTA or CONFIG_QFMT_V2, it tells the log
		t.Skip("this kernel has no quotas of ext4")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A session's directory with limits of its own is full on its own, and the Result
// says so; beside it nobody notices.
func TestSessionsLimitsHold(t *testing.T) {
	s := newSandboxes(t)
	tenants, err := tenant.Open(withProjectQuotas(t) + "/data")
	if err != nil {
		t.Fatal(err)
	}
	defer tenants.Close()
	var dirs []string
	for _, id := range []string{"limited", "free"} {
		session, err := tenants.Session("alice", id)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		if id == "limited" {
			err = session.Limit(4<<20, 50)
		}
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, session.Host())
	}
	limited := func(script string) outcome { return s.json("--workspace", dirs[0], "--", "sh", "-c", script) }
	for script, code := range map[string]int{
		"head -c 8m /dev/zero > big":         1,
		"head -c 8m /dev/zero > big || true": 0,
		"rm -f big; i=0; while true > many$i; do i=$((i+1)); done; [ $i -gt 40 ] || exit 9": 0,
	} {
		o := limited("rm -f big many*; " + script)
		if o.Limits.Disk != "enforced" || o.Status != "exited" || (o.ExitCode == 0) != (code == 0) || len(o.Violations) != 1 ||
			!strings.Contains(o.Violations[0].Detail, "quota of 4m and 50 files that /workspace has on the host reached") {
			t.Errorf("%s: %+v", script, o)
		}
	}
	if o := limited("rm -f big many*; echo x > file"); o.ExitCode != 0 || len(o.Violations) > 0 {
		t.Errorf("with room again: %+v", o)
	}
	o := s.json("--workspace", dirs[1], "--", "sh", "-c", "head -c 8m /dev/zero > big")
	if o.ExitCode != 0 || o.Limits.Disk != "unavailable" || len(o.Violations) > 0 {
		t.Errorf("the session beside it: %+v", o)
	}
	// A second place without a quota leaves the whole without.
	o = s.json("--workspace", dirs[0], "--bind", dirs[1]+":/more:rw", "--", "true")
	if o.Limits.Disk != "unavailable" {
		t.Errorf("with a bind beside it: %+v", o.Limits)
	}
	// What is removed may be removed: the trash shares no limits with it.
	if err := errors.Join(tenants.Remove("alice", "limited"), tenants.Sweep(t.Context())); err != nil {
		t.Error(err)
	}
}
