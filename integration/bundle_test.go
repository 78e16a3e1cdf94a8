package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// busyboxRoot is a root file system of busybox with all its applets, made once
// for all tests. Whoever writes into it makes a copy (newBusyboxRoot).
var busyboxRoot = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "rootfs")
	if err != nil {
		return "", err
	}
	return dir, makeBusyboxRoot(dir)
})

func newBusyboxRoot(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rootfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := makeBusyboxRoot(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func makeBusyboxRoot(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, d := range []string{"bin", "etc", "proc", "dev", "sys", "tmp", "run", "root"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := copyProgram(peer("bin/busybox"), filepath.Join(dir, "bin/busybox")); err != nil {
		return err
	}
	applets, err := exec.Command(peer("bin/busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			return err
		}
	}
	users := "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(users), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "etc/group"), []byte("root:x:0:\nuser:x:1000:\n"), 0o644)
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// A bundle is an OCI bundle: a directory with a config.json.
type bundle struct {
	dir  string
	spec *specs.Spec
}

// newBundle writes a bundle that runs args in busybox, with the spec Docker
// 20.10 writes on a cgroup v1 host, but for seccomp and hooks. Each change is
// applied before.
func newBundle(t testing.TB, args []string, changes ...func(*specs.Spec)) *bundle {
	t.Helper()
	need(t, peers())
	root, err := busyboxRoot()
	if err != nil {
		t.Fatal(err)
	}
	b := &bundle{dir: t.TempDir(), spec: dockerSpec(root, args)}
	for _, change := range changes {
		change(b.spec)
	}
	config, err := json.Marshal(b.spec)
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, string(config))
	return b
}

// write replaces the bundle's config.json.
func (b *bundle) write(t testing.TB, config string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
}

func dockerSpec(root string, args []string) *specs.Spec {
	caps := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
	hidden := []string{"nosuid", "noexec", "nodev"}
	return &specs.Spec{
		Version:  "1.0.2-dev",
		Root:     &specs.Root{Path: root, Readonly: true},
		Hostname: "integration",
		Process: &specs.Process{
			Args: args,
			Cwd:  "/",
			Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: caps, Effective: caps, Permitted: caps,
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: hidden},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: append([]string{"ro"}, hidden...)},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: append([]string{"ro"}, hidden...)},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: hidden},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: append([]string{"mode=1777", "size=67108864"}, hidden...)},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
				{Allow: false, Access: "rwm"},
				{Allow: true, Type: "c", Major: new(int64(1)), Minor: new(int64(3)), Access: "rwm"},
				{Allow: true, Type: "c", Major: new(int64(1)), Minor: new(int64(5)), Access: "rwm"},
			}},
			MaskedPaths:   []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}
