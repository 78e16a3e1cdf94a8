package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/review"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A pullProgress shows the progress of a pull: on a terminal as Docker does, one line for each layer, and elsewhere one
// line for each change of a state.
type pullProgress struct {
	w        io.Writer
	terminal *os.File // nil: no terminal
	layers   []sandbox.ImageProgress
	// drawn is the number of lines on the terminal, and at the time when they were drawn.
	drawn int
	at    time.Time
	err   error
}

func newPullProgress(w io.Writer) *pullProgress {
	p := &pullProgress{w: w}
	if f, ok := w.(*os.File); ok && review.IsTerminal(w) && os.Getenv("TERM") != "dumb" {
		p.terminal = f
	}
	return p
}

// layerWords are Docker's words for the states of a layer.
var layerWords = map[sandbox.LayerState]string{
	sandbox.LayerExists:      "Already exists",
	sandbox.LayerWaiting:     "Pulling fs layer",
	sandbox.LayerDownloading: "Downloading",
	sandbox.LayerAdding:      "Extracting",
	sandbox.LayerAdded:       "Pull complete",
}

// drawEvery is the shortest time between two pictures on a terminal.
const drawEvery = 100 * time.Millisecond

// pull pulls an image and shows the progress, unless p is nil.
func (p *pullProgress) pull(ctx context.Context, m *sandbox.Manager, name string, o sandbox.PullOptions) (sandbox.Image, error) {
	if p != nil {
		o.Progress = p.tell
	}
	image, err := m.PullImage(ctx, name, o)
	return image, errors.Join(err, p.end())
}

// tell is called by one goroutine at a time.
func (p *pullProgress) tell(now sandbox.ImageProgress) {
	for len(p.layers) <= now.Index {
		p.layers = append(p.layers, sandbox.ImageProgress{})
	}
	changed := p.layers[now.Index].State != now.State
	p.layers[now.Index] = now
	switch {
	case p.terminal != nil && (changed || time.Since(p.at) >= drawEvery):
		p.draw()
	case p.terminal == nil && changed:
		p.print("%s: %s\n", shortID(now.Layer), layerWords[now.State])
	}
}

func (p *pullProgress) print(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, format, args...); p.err == nil {
		p.err = err
	}
}

// end draws the last picture. It returns the first error of a write.
func (p *pullProgress) end() error {
	if p == nil {
		return nil
	}
	if p.terminal != nil && len(p.layers) > 0 {
		p.draw()
	}
	return p.err
}

// status prints the last lines of docker pull.
func (p *pullProgress) status(image sandbox.Image, name string) error {
	if p == nil {
		return nil
	}
	for _, r := range image.References {
		if r.Name == name && r.Digest != "" {
			p.print("Digest: %s\n", r.Digest)
		}
	}
	if slices.ContainsFunc(p.layers, func(l sandbox.ImageProgress) bool { return l.State == sandbox.LayerAdded }) {
		p.print("Status: Downloaded newer image for %s\n", familiar(name))
	} else {
		p.print("Status: Image is up to date for %s\n", familiar(name))
	}
	return p.err
}

// draw replaces the lines on the terminal.
func (p *pullProgress) draw() {
	p.at = time.Now()
	width, height := 80, 24
	if size, err := unix.IoctlGetWinsize(int(p.terminal.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 1 {
		width, height = int(size.Col), int(size.Row)
	}
	lines := p.lines(width)
	if len(lines) >= height { // the cursor cannot go back to lines above the screen
		lines = []string{p.summary()}
	}
	var picture strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&picture, "\x1b[%dA\r\x1b[J", p.drawn)
	}
	for _, line := range lines {
		picture.WriteString(line[:min(len(line), width-1)] + "\n")
	}
	p.drawn = len(lines)
	p.print("%s", picture.String())
}

func (p *pullProgress) lines(width int) (lines []string) {
	for _, l := range p.layers {
		if l.State == "" { // nothing is known yet
			continue
		}
		line := shortID(l.Layer) + ": " + layerWords[l.State]
		if l.Total > 0 && (l.State == sandbox.LayerDownloading || l.State == sandbox.LayerAdding) {
			line += " " + part(l.Done, l.Total, width)
		}
		lines = append(lines, line)
	}
	return lines
}

// summary is one line for many layers.
func (p *pullProgress) summary() string {
	complete := 0
	for _, l := range p.layers {
		if l.State == sandbox.LayerAdded || l.State == sandbox.LayerExists {
			complete++
		}
	}
	return fmt.Sprintf("%d of %d layers complete", complete, len(p.layers))
}

// part is Docker's picture of a part of a whole: numbers, and a bar where the terminal is wide enough for both.
func part(done, total int64, columns int) string {
	numbers := fmt.Sprintf("%8s/%s", units.HumanSizeWithPrecision(float64(done), 4), units.HumanSizeWithPrecision(float64(total), 4))
	if columns < wideTerminal {
		return numbers
	}
	return bar(done, total) + " " + numbers
}

// wideTerminal has room for the id of a layer, its state, a bar and two sizes.
const wideTerminal = 100

func bar(done, total int64) string {
	const width = 50
	filled := int(min(done, total) * width / total)
	arrow := strings.Repeat("=", filled)
	if filled < width {
		arrow += ">" + strings.Repeat(" ", width-filled-1)
	}
	return "[" + arrow + "]"
}
