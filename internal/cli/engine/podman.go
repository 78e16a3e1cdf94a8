package engine

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
)

// Podman reads containers.conf and after it, in order, the files of the folder beside it
// (containers.conf(5)). A file of our own there leaves the others alone.
type Podman struct {
	logs []string // runtime_supports_json of the other files, as Elsewhere has read it
}

// File is a drop-in file.
func (*Podman) File() string { return "/etc/containers/containers.conf.d/sandbox-runtime.conf" }

// podmanBody has dotted keys rather than tables: so blocks can follow each
// other.
func podmanBody(r Runtime) string {
	body := fmt.Sprintf("engine.runtimes.%s = [%s]\n", r.Name, quote(r.Path))
	if r.Default {
		body += fmt.Sprintf("engine.runtime = %s\n", quote(r.Name))
	}
	return body
}

// Piece is Engine's. The list of runtimes whose log podman reads is left out if the file has
// such a list: a file with two is no TOML.
func (p *Podman) Piece(config []byte, r Runtime) (string, error) {
	tree, err := parseTOML(config)
	piece := blockText(r.Name, podmanBody(r))
	if err != nil || lookup(tree, podmanLogsPath()...) != nil {
		return piece, err
	}
	return piece + "\n" + blockText(podmanLogs, podmanLogsBody(p.logging(tree, r.Name))), nil
}

func podmanPaths(name string) [][]string {
	return [][]string{{"engine", "runtimes", name}, {"engine", "runtime"}}
}

// findPodman finds the block of a runtime, see findRuntime.
func findPodman(config []byte, name string, foreign func(name, path string) error) (*block, error) {
	tree, err := parseTOML(config)
	if err != nil {
		return nil, err
	}
	return findRuntime(config, name, podmanPath(tree, name), foreign)
}

// Add is Engine's.
func (p *Podman) Add(config []byte, r Runtime) ([]byte, error) {
	added, err := addPodmanRuntime(config, r)
	if err != nil {
		return nil, err
	}
	return p.addLogging(added, r.Name)
}

func addPodmanRuntime(config []byte, r Runtime) ([]byte, error) {
	found, err := findPodman(config, r.Name, taken)
	if err != nil {
		return nil, err
	}
	if found == nil {
		added := appendBlock(config, r.Name, podmanBody(r))
		if err := onlyDiffer(added, config, podmanPaths(r.Name)...); err != nil {
			return nil, fmt.Errorf("%w; or leave --config out, or name a file that is not there yet: podman reads any *.conf in /etc/containers/containers.conf.d", err)
		}
		return added, nil
	}
	was, err := readPodmanBlock(config, found, r.Name)
	if err != nil {
		return nil, err
	}
	r.Default = r.Default || was.Default
	return replaceBlock(config, found, r.Name, podmanBody(r)), nil
}

// readPodmanBlock refuses a block that somebody has edited.
func readPodmanBlock(config []byte, b *block, name string) (Runtime, error) {
	tree, err := parseTOML([]byte(b.body))
	if err != nil {
		return Runtime{}, edited(config, b)
	}
	was := Runtime{Name: name, Path: podmanPath(tree, name), Default: lookup(tree, "engine", "runtime") != nil}
	if podmanBody(was) != b.body {
		return Runtime{}, edited(config, b)
	}
	return was, nil
}

func edited(config []byte, b *block) error {
	return atOffset(config, b.start, "the lines that follow are not as register wrote them: take them out by hand")
}

// podmanPath is where podman would look for the runtime: the first path that
// there is, in a file that lists several.
func podmanPath(tree map[string]any, name string) string {
	paths, ok := lookup(tree, "engine", "runtimes", name).([]any)
	if !ok {
		return ""
	}
	if len(paths) == 0 {
		return "[]"
	}
	return fmt.Sprint(paths[0])
}

// Remove is Engine's.
func (*Podman) Remove(config []byte, r Runtime) ([]byte, error) {
	found, err := findPodman(config, r.Name, notMarked)
	if err != nil || found == nil {
		return config, err
	}
	if _, err := readPodmanBlock(config, found, r.Name); err != nil {
		return nil, err
	}
	// The list was added last: in the reverse order each byte comes back.
	listed, err := removeLogging(config, r.Name)
	if err != nil {
		return nil, err
	}
	if found, err = findBlock(listed, r.Name); err != nil {
		return nil, err
	}
	rest := removeBlock(listed, found)
	return rest, onlyDiffer(listed, rest, podmanPaths(r.Name)...)
}

// notMarked is the error for an entry in no block of ours.
func notMarked(name, path string) error {
	return fmt.Errorf("runtime %q (%s) was not written by register: take it out by hand", name, path)
}

// Elsewhere is Engine's. It also keeps the lists of runtime_supports_json in the files
// that podman reads before file, for Add and Piece.
func (p *Podman) Elsewhere(file string, _ []byte, r Runtime) error {
	dir := filepath.Dir(file)
	others, err := filepath.Glob(filepath.Join(dir, "*.conf"))
	if err != nil {
		return err
	}
	if main, ok := strings.CutSuffix(dir, ".d"); ok {
		others = append([]string{main}, others...)
	}
	p.logs = nil
	for _, other := range others {
		if other == file {
			continue
		}
		config, err := Read(other)
		if err != nil {
			return err
		}
		tree, err := parseTOML(config)
		if err != nil {
			return In(other, err)
		}
		if path := podmanPath(tree, r.Name); path != "" && path != r.Path {
			return In(other, taken(r.Name, path))
		}
		if other < file { // as podman sorts them; main is shorter
			p.logs = loggingIn(tree, p.logs)
		}
	}
	return nil
}

// Added is Engine's.
func (*Podman) Added(_ string, r Runtime) string {
	use := "podman --runtime " + r.Name + " run --rm IMAGE"
	if r.Default {
		use = "podman run --rm IMAGE"
	}
	return `Nothing is to be restarted: podman's next command reads it.
    ` + use + `
An API service that is running reads it when it starts again:
    systemctl restart podman.service`
}

// Removed is Engine's.
func (*Podman) Removed(name string) string {
	return `Nothing is to be restarted: podman's next command reads it.
Containers that were made with it cannot be used any more; to find them:
    podman ps -a -q | xargs -r podman inspect -f '{{.Name}} {{.OCIRuntime}}' | grep ' ` + name + `$'`
}

// quote is a TOML basic string.
func quote(text string) string {
	var b bytes.Buffer
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
