package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// hostileAnnotations are what some runtime or engine takes for an order, as an
// image's labels come to be in a bundle. hook is a program of the host.
func hostileAnnotations(hook, dir string) map[string]string {
	all := map[string]string{
		"bundle":                                   dir,
		"rootfs":                                   "/",
		"run.oci.handler":                          "krun",
		"run.oci.hooks.stdout":                     filepath.Join(dir, "stdout"),
		"run.oci.hooks.stderr":                     filepath.Join(dir, "stderr"),
		"run.oci.seccomp.plugins":                  hook,
		"run.oci.seccomp_fail_unknown_syscall":     "0",
		"run.oci.seccomp_bpf_data":                 "BgAAAAAA/38=",
		"run.oci.systemd.subgroup":                 "..",
		"run.oci.delegate-cgroup":                  "../..",
		"run.oci.keep_original_groups":             "1",
		"run.oci.mount_context_type":               "rootcontext",
		"run.oci.pidfd_receiver":                   filepath.Join(dir, "socket"),
		"module.wasm.image/variant":                "compat",
		"org.opencontainers.image.source":          "/",
		"org.criu.config":                          filepath.Join(dir, "criu.conf"),
		"org.systemd.property.ExecStartPre":        "'" + hook + "'",
		"io.kubernetes.cri-o.Devices":              "/dev/vda:/dev/vda:rwm",
		"io.kubernetes.cri-o.userns-mode":          "host",
		"io.kubernetes.cri-o.ShmSize":              "1t",
		"io.kubernetes.cri.container-type":         "sandbox",
		"io.katacontainers.config.hypervisor.path": hook,
		"io.container.manager":                     "libpod",
		"cdi.k8s.io/canary":                        "vendor.example/device=all",
		"nvidia.cdi.k8s.io/gpu":                    "all",
		"devices.nri.io/container.c":               "- path: /dev/vda\n  type: b\n  major: 254\n  minor: 0",
		"mounts.nri.io/container.c":                "- source: /\n  destination: /host\n  type: bind\n  options: [rbind]",
		"io.containers.capabilities":               "CAP_SYS_ADMIN",
		"com.docker.hooks":                         hook,
		"hooks":                                    `{"prestart": [{"path": "` + hook + `"}]}`,
	}
	for _, name := range []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"} {
		all["run.oci.hooks."+name] = hook
		all["io.sandbox-runtime.hooks."+name] = hook
	}
	return all
}

// looksAround prints what hooks, devices, mounts and rights there are inside.
const looksAround = `id; ls -lR /dev | grep -v '[0-9]:[0-9]'; sed 's/^[0-9]* [0-9]* //' /proc/self/mountinfo
grep -E 'Cap|Seccomp:|NoNew|Groups' /proc/self/status; ls /proc/self/fd; env; ulimit -a; cat /proc/self/oom_score_adj`

// CVE-2026-53488, 53489, 53492: annotations and labels, which an image's author
// writes, change nothing in a container.
func TestAttackByAnnotations(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	dir := t.TempDir()
	hook := filepath.Join(dir, "hook")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho canary > "+filepath.Join(dir, "executed")+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	command := []string{"sh", "-c", looksAround}
	plain := r.runBundle(newAttack(t, command))
	hostile := r.runBundle(newAttack(t, command, func(s *specs.Spec) { s.Annotations = hostileAnnotations(hook, dir) }))
	number := regexp.MustCompile(`0:[0-9]+ |cgroup/[a-z0-9]+`) // of a file system in memory
	if a, b := number.ReplaceAllString(plain.stdout, ""), number.ReplaceAllString(hostile.stdout, ""); plain.code != 0 || a != b {
		t.Errorf("without annotations:\n%s\nwith:\n%s%s", a, b, hostile.stderr)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("in the annotations' directory there is now:\n%s", after)
	}
	// The same in the spec's own fields is an order.
	asHook := func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: hook}}} }
	if r.runBundle(newAttack(t, command, asHook)); tree(t, dir) == before {
		t.Error("a real hook should have been executed")
	}
}

// exec reads the bundle again, and not the one an annotation names.
func TestAttackByAnAnnotationNamedBundle(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	evil := newAttack(t, []string{"sleep", "1000"}, withCapabilities("CAP_SYS_ADMIN", "CAP_SYS_PTRACE"))
	b := newAttack(t, []string{"sleep", "1000"}, asUser(1000), func(s *specs.Spec) {
		s.Annotations = map[string]string{"bundle": evil.dir, "bundle=" + evil.dir: "x", "a\nbundle": evil.dir}
	})
	r.create(b, "c")
	r.run("start", "c")
	if got := r.state("c"); got.Bundle != b.dir {
		t.Errorf("the bundle is %s, want %s", got.Bundle, b.dir)
	}
	got := r.run("exec", "c", "sh", "-c", "id -u; grep CapBnd /proc/self/status")
	if want := "1000\nCapBnd:\t00000000a80425fb\n"; got.stdout != want {
		t.Errorf("exec: %q, want %q", got.stdout, want)
	}
}

// What a configuration of do cannot say, it cannot be made to say.
func TestAttackByAConfigurationOfDo(t *testing.T) {
	s := newSandboxes(t)
	for _, config := range []string{
		`{"hooks": {"prestart": [{"path": "/bin/true"}]}}`, `{"annotations": {"a": "b"}}`, `{"labels": {"a": "b"}}`,
		`{"devices": ["/dev/vda"]}`, `{"capabilities": ["CAP_SYS_ADMIN"]}`, `{"privileged": true}`, `{"mounts": []}`,
		`{"linux": {"devices": []}}`, `{"process": {"args": ["true"]}}`, `{"root": {"path": "/"}}`, `{"Rootfs": 1}`,
		`{"seccomp": "unconfined"}`, `{"seccomp": "none"}`, `{"network": "host"}`, `{"binds": [{"source": "/", "target": "/host"}]}`,
		`{"binds": [{"source": "/dev/null", "target": "/x"}]}`, `{"binds": [{"source": "/proc", "target": "/x"}]}`,
		`{"binds": [{"source": "/etc", "target": "/x", "writable": true}]}`, `{"binds": [{"source": "` + s.root + `", "target": "/x"}]}`,
		`{"workspace": "/"}`, `{"rootfs": "/"}`, `{"workspace": "/etc"}`, `{"env": {"A=B": "x"}}`,
	} {
		file := filepath.Join(t.TempDir(), "config.json")
		writeFile(t, file, config)
		got := s.do("--config", file, "--", "echo", "ran")
		if got.code != 125 || got.stdout != "" || !strings.Contains(got.stderr, "sandbox-runtime") {
			t.Errorf("%s: %+v", config, got)
		}
	}
	// An image's own configuration in a root directory is a file like any other.
	root := newAttackRoot(t)
	marker := filepath.Join(t.TempDir(), "executed")
	annotated, err := json.Marshal(map[string]any{"annotations": hostileAnnotations("/bin/true", marker), "hooks": map[string]any{
		"createRuntime": []map[string]any{{"path": "/usr/bin/touch", "args": []string{"touch", marker}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "etc/config.json", ".sandbox-runtime.json"} {
		writeFile(t, filepath.Join(root, name), string(annotated))
	}
	if got := s.do("--rootfs", root, "--", "sh", "-c", "ls /dev/vda /host; id -u"); got.stdout != "1000\n" || exists(marker) {
		t.Errorf("got %+v", got)
	}
}
