package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// hostPeer is the second base of all comparisons.
const hostPeer = "fork and exec on the host"

// openStarts compares whole lives of a container that runs true.
func openStarts(o options, dir string) ([]trial, func() error, error) {
	b, err := makeBundle(o, dir, []string{"true"})
	if err != nil {
		return nil, nil, err
	}
	in := func(path string) string { return filepath.Join(o.peers, path) }
	peers := []peer{
		{name: hostPeer, args: []string{in("bin/busybox"), "true"}},
		{name: "bubblewrap --unshare-all", args: []string{in("usr/bin/bwrap"), "--unshare-all", "--ro-bind", b.root, "/", "--proc", "/proc", "--dev", "/dev", "true"}},
	}
	for _, r := range runtimes(o, dir) {
		peers = append(peers, r.peer("run", "run", "--bundle", b.dir, "bench"))
	}
	do := ourName + " do -- true"
	peers = append(peers,
		peer{name: do, args: []string{o.binary, "--root", o.root(dir, "do"), "do", "--", "true"}},
		peer{name: runcName + " --version", args: []string{in("bin/runc"), "--version"}},
		peer{name: ourName + " --version", args: []string{o.binary, "--version"}})
	return []trial{contest{
		title: "Starts of `true`",
		about: "`run` of busybox's `true`: the OCI runtimes share one bundle as Docker writes it, with Docker's seccomp profile. `do` runs the host's `true` in a sandbox.",
		unit:  "ms", base: runcName + " run", peers: peers, rounds: o.rounds, burst: burst, measure: milliseconds,
		bounds: []bound{{ourName + " run", runcName + " run", 0.91}, {ourName + " --version", runcName + " --version", 1}, {do, runcName + " run", 0.9}, {do, crunName + " run", 0.9}},
	}}, nothing, nil
}

// A benchBundle is an OCI bundle in dir with its root file system.
type benchBundle struct {
	dir, root string
	spec      *specs.Spec
}

// makeBundle writes a bundle below dir that runs args as Docker would: its
// capabilities, masked paths and namespaces, and its seccomp profile.
func makeBundle(o options, dir string, args []string) (benchBundle, error) {
	b := benchBundle{dir: filepath.Join(dir, "bundle"), root: filepath.Join(dir, "rootfs")}
	for _, d := range []string{b.root, b.dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return b, err
		}
	}
	if err := bundle.MakeRoot(b.root, filepath.Join(o.peers, "bin/busybox")); err != nil {
		return b, err
	}
	b.spec = bundle.DockerSpec(b.root, args)
	profile, err := seccomp.GetDefaultProfile(b.spec)
	if err != nil {
		return b, err
	}
	b.spec.Linux.Seccomp = profile
	return b, b.write()
}

func (b benchBundle) write() error {
	config, err := json.Marshal(b.spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, "config.json"), config, 0o644)
}

// ofHost returns a second bundle, with the programs of the host and the environment that a sandbox has by default.
func (b benchBundle) ofHost(dir string) (benchBundle, error) {
	of := benchBundle{filepath.Join(dir, "host-bundle"), filepath.Join(dir, "host-rootfs"), new(specs.Spec)}
	*of.spec = *b.spec
	process := *b.spec.Process
	process.Env = spec.Config{}.Environ()
	of.spec.Process, of.spec.Root = &process, &specs.Root{Path: of.root, Readonly: true}
	of.spec.Mounts = slices.Clone(b.spec.Mounts)
	for _, d := range []string{of.dir, of.root + "/etc", of.root + "/proc", of.root + "/dev", of.root + "/sys"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return of, err
		}
	}
	for _, top := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if target, err := os.Readlink(top); err == nil { // as with a merged /usr
			if err := os.Symlink(target, of.root+top); err != nil {
				return of, err
			}
		} else if _, err := os.Stat(top); err == nil { // else the host does not have it
			if err := os.Mkdir(of.root+top, 0o755); err != nil {
				return of, err
			}
			of.spec.Mounts = append(of.spec.Mounts, specs.Mount{Destination: top, Type: "bind", Source: top, Options: []string{"rbind", "ro", "nosuid", "nodev"}})
		}
	}
	cache, err := os.ReadFile("/etc/ld.so.cache")
	if err == nil {
		err = os.WriteFile(of.root+"/etc/ld.so.cache", cache, 0o644)
	}
	if errors.Is(err, os.ErrNotExist) { // as on a host with musl
		err = nil
	}
	return of, errors.Join(err, of.write())
}
