package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// pullsAtOnce is how many pulls of one image go on at once.
const pullsAtOnce = 20

// An imageRegistry serves the image of a layout on loopback, and counts the bytes of its answers
// (distribution-spec v1.1).
type imageRegistry struct {
	layout *imageLayout
	server *httptest.Server
	served atomic.Int64
}

func serveImage(l *imageLayout) *imageRegistry {
	r := &imageRegistry{layout: l}
	r.server = httptest.NewServer(r)
	return r
}

// name is the name of the image.
func (r *imageRegistry) name() string {
	return strings.TrimPrefix(r.server.URL, "http://") + "/some/image:" + imageTag
}

// ServeHTTP implements [http.Handler].
func (r *imageRegistry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w = &countingWriter{w, &r.served}
	last := path.Base(request.URL.Path)
	switch {
	case strings.Contains(request.URL.Path, "/manifests/"):
		text, err := r.layout.read(r.layout.manifest)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", r.layout.manifest.Digest)
		http.ServeContent(w, request, "", time.Time{}, bytes.NewReader(text))
	case strings.Contains(request.URL.Path, "/blobs/"):
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeFile(w, request, filepath.Join(r.layout.blobs(), strings.TrimPrefix(last, "sha256:")))
	}
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

// pulls compares the traffic of many pulls with that of one.
func (w *imageWork) pulls(out io.Writer, o options) error {
	const one = "one pull"
	layout, err := w.layout("pulled-at-once", fileLayer("low", 500, importedSize), fileLayer("high", 500, importedSize))
	if err != nil {
		return err
	}
	registry := serveImage(layout)
	defer registry.server.Close()
	many := fmt.Sprintf("%d pulls at once", pullsAtOnce)
	counts := map[string]int{one: 1, many: pullsAtOnce}
	c := contest{
		title: "Traffic of pulls",
		about: "The bytes that a registry sends for pulls of one image. The user had no part of the image before.",
		unit:  "MiB", base: one, rounds: max(o.rounds/40, 2),
		peers:  []peer{{name: one, version: "this tree's"}, {name: many, version: "this tree's"}},
		bounds: []bound{{many, one, 1.01}},
		measure: func(p peer) (float64, error) {
			before := registry.served.Load()
			data := w.fresh()
			var group errgroup.Group
			for range counts[p.name] {
				group.Go(func() error { return capture(w.command(data, "image", "pull", "--quiet", registry.name())) })
			}
			err := group.Wait()
			return float64(registry.served.Load()-before) / (1 << 20), err
		},
	}
	return runCold(c, out, o)
}

// memory measures pulls of images with a moderate and with a large number of files.
func (w *imageWork) memory(out io.Writer, o options) error {
	const base, perFile = 64.0, 1.5 / 1024 // MiB
	c := contest{
		title: "Memory of a pull",
		about: "The most resident memory of the command and of its children together, by samples each 2 ms. The pages of the program, which all share, count once.",
		unit:  "MiB", rounds: max(o.rounds/40, 2),
	}
	names := map[string]string{}
	for _, files := range []int{pulledFiles, manyFiles} {
		layout, err := w.layout(fmt.Sprintf("pulled%d", files), fileLayer("files", files, 1000))
		if err != nil {
			return err
		}
		registry := serveImage(layout)
		defer registry.server.Close()
		p := peer{name: fmt.Sprintf("pull, %d files", files), version: "this tree's"}
		names[p.name] = registry.name()
		c.peers = append(c.peers, p)
		c.limits = append(c.limits, limit{p.name, "", base + perFile*float64(files-pulledFiles)})
	}
	c.base = c.peers[0].name
	c.measure = func(p peer) (float64, error) {
		peak, err := peakMemory(w.command(w.fresh(), "image", "pull", "--quiet", names[p.name]))
		return float64(peak) / (1 << 20), err
	}
	return runCold(c, out, o)
}

// peakMemory runs a command, and returns the most resident memory of its processes at one time, in bytes.
func peakMemory(cmd *exec.Cmd) (peak int64, err error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil {
				err = fmt.Errorf("%q: %w: %s", cmd.Args, err, stderr.Bytes())
			} else if peak == 0 {
				err = errors.New("no sample of the memory")
			}
			return peak, err
		case <-tick.C:
			var now treeMemory
			now.add(cmd.Process.Pid)
			peak = max(peak, now.private+now.file)
		}
	}
}

// treeMemory is the memory of a process and its descendants. A process that has ended has none.
type treeMemory struct {
	private int64 // of all
	file    int64 // the most of one process: all have the same program
}

func (m *treeMemory) add(pid int) {
	dir := fmt.Sprintf("/proc/%d", pid)
	status, _ := os.ReadFile(dir + "/status")
	for line := range strings.Lines(string(status)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kib); n == 1 {
			m.private += kib << 10
		}
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kib); n == 1 {
			m.file = max(m.file, kib<<10)
		}
	}
	lists, _ := filepath.Glob(dir + "/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for child := range strings.FieldsSeq(string(text)) {
			var id int
			if n, _ := fmt.Sscan(child, &id); n == 1 {
				m.add(id)
			}
		}
	}
}
