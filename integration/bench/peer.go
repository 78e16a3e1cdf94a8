package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// A peer is one thing to start.
type peer struct {
	name    string
	args    []string // the whole command line
	env     []string // on top of this process's own
	version string   // one line
	missing string   // why it can't be started, or nothing
}

// The names of the peers that others are compared with.
const (
	hostPeer   = "fork and exec on the host"
	runcPeer   = "runc run"
	targetPeer = "sandbox-runtime do -- true"
)

func (p peer) command() *exec.Cmd {
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	return cmd
}

// allPeers lists what is measured, and makes the bundle that the OCI runtimes
// share below dir.
func allPeers(o options, dir string) ([]peer, error) {
	busybox := filepath.Join(o.peers, "bin/busybox")
	if !executable(busybox) {
		return nil, fmt.Errorf("no %s: run integration/setup", busybox)
	}
	root, bundleDir := filepath.Join(dir, "rootfs"), filepath.Join(dir, "bundle")
	if err := makeBundle(root, bundleDir, o.peers); err != nil {
		return nil, err
	}
	in := func(path string) string { return filepath.Join(o.peers, path) }
	oci := func(name, program string) peer {
		state := filepath.Join(dir, "state", strings.ReplaceAll(name, " ", "-"))
		return peer{name: name, args: []string{program, "--root", state, "run", "--bundle", bundleDir, "bench"}}
	}
	libs, _ := filepath.Glob(in("usr/lib/*-linux-gnu"))
	crun := oci("crun run", in("usr/bin/crun"))
	crun.env = []string{"LD_LIBRARY_PATH=" + strings.Join(libs, ":")}
	sandbox := []string{o.binary, "--root", filepath.Join(dir, "state", "do"), "do", "--", "true"}
	peers := []peer{
		{name: hostPeer, args: []string{busybox, "true"}},
		{name: "bubblewrap --unshare-all", args: []string{in("usr/bin/bwrap"), "--unshare-all", "--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev", "true"}},
		crun,
		oci("runc run (Debian)", in("usr/sbin/runc")),
		oci(runcPeer, in("bin/runc")),
		oci("sandbox-runtime run", o.binary),
		{name: targetPeer, args: sandbox},
		{name: "runc --version", args: []string{in("bin/runc"), "--version"}},
		{name: "sandbox-runtime --version", args: []string{o.binary, "--version"}},
	}
	for i := range peers {
		peers[i].look()
	}
	return peers, nil
}

// look finds the peer's version, or why it is missing: one start must work.
func (p *peer) look() {
	if !executable(p.args[0]) {
		p.missing = "no " + p.args[0]
		return
	}
	if strings.Contains(p.args[0], "busybox") {
		p.version = "busybox"
	} else {
		version := p.command()
		version.Args = []string{p.args[0], "--version"}
		out, _ := version.Output()
		p.version, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	}
	if out, err := p.command().CombinedOutput(); err != nil {
		p.missing = fmt.Sprintf("%v: %s", err, strings.TrimSpace(string(out)))
	}
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func present(peers []peer) []peer {
	var there []peer
	for _, p := range peers {
		if p.missing == "" {
			there = append(there, p)
		}
	}
	return there
}

// makeBundle writes a bundle that runs true as Docker would: its capabilities,
// masked paths and namespaces, and a seccomp profile of its kind and size.
func makeBundle(root, dir, peers string) error {
	for _, d := range []string{root, dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := bundle.MakeRoot(root, filepath.Join(peers, "bin/busybox")); err != nil {
		return err
	}
	spec := bundle.DockerSpec(root, []string{"true"})
	profile, err := bundle.Seccomp(filepath.Join(peers, "usr/share/containers/seccomp.json"), spec.Process.Capabilities.Bounding)
	if err != nil {
		return err
	}
	spec.Linux.Seccomp = profile
	config, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}
