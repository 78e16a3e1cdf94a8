package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// startImages are the images that starts are measured with, by name.
func (w *imageWork) startImages() (map[string]*imageLayout, error) {
	var thin []layerContent
	for i := range manyLayers - 1 {
		thin = append(thin, fileLayer(importedDir(i), 1, 100))
	}
	all := map[string]*imageLayout{}
	for name, layers := range map[string][]layerContent{
		"small": nil, "files": {fileLayer("files", manyFiles, 100)}, "layers": thin,
	} {
		l, err := w.layout("start-"+name, layers...)
		if err != nil {
			return nil, err
		}
		all[name] = l
	}
	return all, nil
}

// importForStarts gives a directory the images, once for both contests.
func (w *imageWork) importForStarts() (data string, err error) {
	data = w.in("starts")
	if _, err := os.Stat(data); err == nil {
		return data, nil
	}
	all, err := w.startImages()
	if err != nil {
		return "", err
	}
	for name, l := range all {
		if err := capture(w.command(data, "image", "import", "oci:"+l.dir, "--name", name)); err != nil {
			return "", err
		}
	}
	return data, nil
}

// starts measures do with images that no sandbox uses.
func (w *imageWork) starts(out io.Writer, o options) error {
	data, err := w.importForStarts()
	if err != nil {
		return err
	}
	c := w.startContest(w.args(data)[1:], 5)
	c.title = "`do --image`, image not in use"
	c.about = "`do -- true` with the host's root and with images. Each run opens the store and mounts the image."
	return c.run(out, o)
}

// startsInUse measures do by a launcher that listens, which keeps the mounts of images.
func (w *imageWork) startsInUse(out io.Writer, o options) error {
	data, err := w.importForStarts()
	if err != nil {
		return err
	}
	socket := w.in("socket")
	if err := w.listen(data, socket); err != nil {
		return err
	}
	c := w.startContest([]string{"--socket", socket}, 1)
	c.title = "`do --image`, image in use"
	c.about = "The same by a launcher that listens, and that has mounted the image for an earlier sandbox."
	return c.run(out, o)
}

func (w *imageWork) startContest(options []string, most float64) contest {
	const host = "do, the host's root"
	do := func(name string, words ...string) peer {
		args := append([]string{w.o.binary}, options...)
		return peer{name: name, args: append(append(args, "do"), words...), env: []string{"HOME=" + w.dir}}
	}
	c := contest{
		unit: "ms", base: hostPeer, rounds: w.o.rounds, measure: milliseconds,
		peers: []peer{
			{name: hostPeer, args: []string{filepath.Join(w.o.peers, "bin/busybox"), "true"}},
			do(host, "--", "true"),
		},
	}
	for _, image := range []struct{ name, title string }{
		{"small", "a small image"},
		{"files", fmt.Sprintf("%d files", manyFiles)},
		{"layers", fmt.Sprintf("%d layers", manyLayers)},
	} {
		name := "do --image, " + image.title
		c.peers = append(c.peers, do(name, "--image", image.name, "--", "true"))
		c.extras = append(c.extras, extra{name, host, hostPeer, most})
	}
	return c
}

// listen starts a launcher, which ends with the field.
func (w *imageWork) listen(data, socket string) error {
	args := w.args(data, "launcher", "--socket", socket)
	args[2] = w.in("listening") // a state root of its own
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		return err
	}
	w.ends = append(w.ends, func() error {
		err := cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // of a launcher that was told to end
		return err
	})
	var err error
	for range 500 {
		var m *sandbox.Manager
		if m, err = sandbox.NewManager(sandbox.ManagerConfig{Socket: socket}); err == nil {
			return m.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
