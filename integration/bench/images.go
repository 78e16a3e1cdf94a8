package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// imageWork has the measured work on images, with the things that this work needs.
type imageWork struct {
	o       options
	dir     string
	ends    []func() error
	numbers int // of the directories that were made
}

// Sizes of the images.
const (
	importedFiles  = 10_000
	importedSize   = 20_000 // of each file, in bytes
	importedLayers = 5
	pulledFiles    = 20_000
	manyFiles      = 100_000
	fewFiles       = 1_000
	manyLayers     = 100
)

// openImages returns the opening of a field with some of the work.
func openImages(work ...func(w *imageWork, out io.Writer, o options) error) func(o options, dir string) ([]trial, func() error, error) {
	return func(o options, dir string) ([]trial, func() error, error) {
		w := &imageWork{o: o, dir: dir}
		if err := w.configure(); err != nil {
			return nil, nil, err
		}
		var trials []trial
		for _, measure := range work {
			trials = append(trials, trialFunc(func(out io.Writer, o options) error { return measure(w, out, o) }))
		}
		return trials, func() error { return closeAll(w.ends) }, nil
	}
}

// configure writes the configuration of the peers.
func (w *imageWork) configure() error {
	policy := w.in(".config/containers/policy.json")
	engine := fmt.Appendf(nil, "[engine]\nconmon_path = [%q]\nruntime = \"crun\"\n[engine.runtimes]\ncrun = [%q]\n", w.peer("conmon"), w.peer("crun"))
	return errors.Join(os.MkdirAll(filepath.Dir(policy), 0o700),
		os.WriteFile(policy, []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), 0o600),
		os.WriteFile(w.in("containers.conf"), engine, 0o600),
		os.WriteFile(w.in("registries.conf"), nil, 0o600),
		os.WriteFile(w.in("auth.json"), []byte("{}"), 0o600))
}

func (w *imageWork) in(name string) string { return filepath.Join(w.dir, name) }

// fresh is a directory that no command has used.
func (w *imageWork) fresh() string {
	w.numbers++
	return w.in(fmt.Sprint(w.numbers))
}

// few has few rounds and none to warm up: a round takes seconds, and leaves much on the disk.
func (w *imageWork) few(c contest) contest {
	c.measure, c.rounds = clocked, max(w.o.rounds/40, 2)
	return c
}

// runCold runs a contest without rounds that warm up.
func runCold(c contest, out io.Writer, o options) error {
	o.warmup = 0
	return c.run(out, o)
}

func (w *imageWork) environment() []string {
	libs, _ := filepath.Glob(filepath.Join(w.o.peers, "usr/lib/*-linux-gnu"))
	return append(os.Environ(), "HOME="+w.dir, "XDG_RUNTIME_DIR="+w.dir, "TMPDIR="+w.dir, "LD_LIBRARY_PATH="+strings.Join(libs, ":"),
		"CONTAINERS_CONF="+w.in("containers.conf"), "CONTAINERS_REGISTRIES_CONF="+w.in("registries.conf"), "REGISTRY_AUTH_FILE="+w.in("auth.json"))
}

func (w *imageWork) peer(name string) string { return filepath.Join(w.o.peers, "usr/bin", name) }

// tool is a command of a peer.
func (w *imageWork) tool(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(w.peer(name), args...)
	cmd.Env = w.environment()
	return cmd
}

// args is a command line with images in a directory.
func (w *imageWork) args(data string, args ...string) []string {
	return append([]string{w.o.binary, "--root", w.o.root(w.dir, "sandboxes"), "--data", data}, args...)
}

// command has its downloads beside its images.
func (w *imageWork) command(data string, args ...string) *exec.Cmd {
	words := w.args(data, args...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+w.dir, "XDG_CACHE_HOME="+filepath.Join(data, "cache"))
	return cmd
}

// layout is an image of busybox and these layers.
func (w *imageWork) layout(name string, layers ...layerContent) (*imageLayout, error) {
	busybox := busyboxLayer(filepath.Join(w.o.peers, "bin/busybox"))
	return makeLayout(w.in(name), append([]layerContent{busybox}, layers...)...)
}

func (w *imageWork) importedLayout() (*imageLayout, error) {
	var layers []layerContent
	for i := range importedLayers {
		layers = append(layers, fileLayer(importedDir(i), importedFiles/importedLayers, importedSize))
	}
	return w.layout("imported", layers...)
}

func importedDir(layer int) string { return fmt.Sprintf("layer%d", layer) }

// settled writes the work of earlier runs to the disk, so that the work does not count, and runs the commands.
func (w *imageWork) settled(cmds ...*exec.Cmd) (took time.Duration, err error) {
	f, err := os.Open(w.dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return 0, os.NewSyscallError("syncfs", err)
	}
	begin := time.Now()
	for _, cmd := range cmds {
		if err := capture(cmd); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// removals compares the removal of images with as many bytes and more files.
func (w *imageWork) removals(out io.Writer, o options) error {
	const (
		bytes  = 102_400_000 // of the archive
		header = 512
	)
	c := w.few(contest{
		title: "Removal of an image",
		about: fmt.Sprintf("`image rm` of images with %d MB in %d and in %d files.", bytes/1_000_000, fewFiles, manyFiles),
		unit:  "ms",
	})
	data := w.fresh()
	for _, files := range []int{fewFiles, manyFiles} {
		layout, err := w.layout(fmt.Sprintf("removed%d", files), fileLayer("files", files, bytes/files-header))
		if err != nil {
			return err
		}
		c.peers = append(c.peers, peer{name: fmt.Sprintf("rm, %d files", files), version: "this tree's", clock: func() (time.Duration, error) {
			if err := capture(w.command(data, "image", "import", "oci:"+layout.dir, "--name", "removed")); err != nil {
				return 0, err
			}
			return w.settled(w.command(data, "image", "rm", "removed"))
		}})
	}
	c.base = c.peers[0].name
	c.bounds = []bound{{c.peers[1].name, c.base, 1.25}}
	return runCold(c, out, o)
}

// imports compares an import with the peers' ways to a root.
func (w *imageWork) imports(out io.Writer, o options) error {
	const ours, umoci, podman = "image import", "skopeo copy, umoci unpack", "podman load"
	layout, err := w.importedLayout()
	if err != nil {
		return err
	}
	archive := w.in("imported.tar")
	if err := layout.archive(archive); err != nil {
		return err
	}
	graph, run := w.fresh(), w.fresh()
	removed := func() error { // podman does not load an image twice
		return capture(w.podman(graph, run, "rmi", "--all", "--force"))
	}
	c := w.few(contest{
		title: "Import",
		about: fmt.Sprintf("From an archive of an OCI layout to a root that can run: %d MB in %d files and %d layers, compressed by gzip. The import has its layers on the disk at the end, and the peers have not.",
			importedFiles*importedSize/1_000_000, importedFiles, importedLayers),
		unit: "ms", base: umoci,
		peers: []peer{
			{name: ours, version: "this tree's", clock: func() (time.Duration, error) {
				return w.settled(w.command(w.fresh(), "image", "import", archive, "--name", "imported"))
			}},
			{name: umoci, version: "Debian's", clock: func() (time.Duration, error) {
				to := w.fresh()
				return w.settled(w.tool("skopeo", "copy", "oci-archive:"+archive+":"+imageTag, "oci:"+to+":"+imageTag),
					w.tool("umoci", "unpack", "--image", to+":"+imageTag, w.fresh()))
			}},
			{name: podman, version: "Debian's", clock: func() (time.Duration, error) {
				took, err := w.settled(w.podman(graph, run, "load", "--input", archive))
				return took, errors.Join(err, removed())
			}},
		},
		bounds: []bound{{ours, umoci, 0.5}, {ours, podman, 0.5}},
	})
	return runCold(c, out, o)
}

// podman mounts its directory on itself: the mount is in a namespace of the command.
func (w *imageWork) podman(graph, run string, args ...string) *exec.Cmd {
	cmd := w.tool("podman", append([]string{"--root", graph, "--runroot", run, "--tmpdir", run, "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd
}
