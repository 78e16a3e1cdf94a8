package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tailscale/hujson"
)

// Docker is dockerd. Its configuration is one JSON object (dockerd(8), "Daemon
// configuration file"), where nothing can be marked as ours: an entry is, if it
// holds a path of this program and nothing else.
type Docker struct{}

// File is Docker's default.
func (Docker) File() string { return "/etc/docker/daemon.json" }

// dockerEntry is the value below "runtimes".
type dockerEntry struct {
	Path string `json:"path"`
}

// dockerPiece is Add's change of an empty configuration.
type dockerPiece struct {
	Runtimes map[string]dockerEntry `json:"runtimes"`
	Default  string                 `json:"default-runtime,omitempty"`
}

// Piece is the object that would be the whole configuration.
func (Docker) Piece(_ []byte, r Runtime) (string, error) {
	piece := dockerPiece{Runtimes: map[string]dockerEntry{r.Name: {r.Path}}}
	if r.Default {
		piece.Default = r.Name
	}
	text, err := marshal(piece, "", "    ")
	return string(text) + "\n", err
}

// Add is Engine's.
func (d Docker) Add(config []byte, r Runtime) ([]byte, error) {
	if len(bytes.TrimSpace(config)) == 0 {
		piece, err := d.Piece(nil, r)
		return []byte(piece), err
	}
	root, top, err := parseObject(config)
	if err != nil {
		return nil, err
	}
	if err := addDockerRuntime(config, top, r); err != nil {
		return nil, err
	}
	if r.Default {
		if err := setDockerDefault(config, top, r.Name); err != nil {
			return nil, err
		}
	}
	return root.Pack(), nil
}

func addDockerRuntime(config []byte, top *hujson.Object, r Runtime) error {
	indent := indentation(top)
	runtimes, err := childObject(config, top, "runtimes")
	if err != nil {
		return err
	}
	if runtimes == nil {
		return appendMember(top, "runtimes", map[string]dockerEntry{r.Name: {r.Path}}, "", indent)
	}
	entry, err := readDockerEntry(config, runtimes, r.Name)
	switch {
	case err != nil:
		return err
	case entry == nil:
		return appendMember(runtimes, r.Name, dockerEntry{r.Path}, indent, indent)
	case entry.path == r.Path:
		return nil
	case entry.alone && isOurs(entry.path, r):
		entry.value.Value = hujson.String(r.Path)
		return nil
	}
	return atOffset(config, entry.offset, "%w", taken(r.Name, entry.path))
}

func setDockerDefault(config []byte, top *hujson.Object, name string) error {
	i, err := memberIndex(config, top, "default-runtime")
	if err != nil {
		return err
	}
	if i < 0 {
		return appendMember(top, "default-runtime", name, "", indentation(top))
	}
	switch now := text(top.Members[i].Value); now {
	case name:
	case dockerOwn:
		top.Members[i].Value.Value = hujson.String(name)
	default:
		return atOffset(config, top.Members[i].Name.StartOffset,
			"default-runtime is %q already: change it there, or leave --default out", now)
	}
	return nil
}

// dockerOwn is dockerd's default where the file has none.
const dockerOwn = "runc"

// Remove is Engine's. A default-runtime of that name goes as well, in any case: dockerd
// does not start if its default is not among its runtimes. Beside another runtime it becomes
// dockerd's own. Without a default in the file, a reload would keep the default that is gone,
// and dockerd 20.10 crashes then (daemon/reload_unix.go:reloadPlatform, daemon/info_unix.go).
func (Docker) Remove(config []byte, r Runtime) ([]byte, error) {
	if len(bytes.TrimSpace(config)) == 0 {
		return config, nil
	}
	root, top, err := parseObject(config)
	if err != nil {
		return nil, err
	}
	runtimes, err := childObject(config, top, "runtimes")
	if err != nil || runtimes == nil {
		return config, err
	}
	entry, err := readDockerEntry(config, runtimes, r.Name)
	if err != nil || entry == nil {
		return config, err
	}
	if !entry.alone || !isOurs(entry.path, r) {
		return nil, atOffset(config, entry.offset, "runtime %q (%s) is not as register writes it: take it out by hand", r.Name, entry.path)
	}
	was := Runtime{Name: r.Name, Path: entry.path}
	i, err := memberIndex(config, top, "default-runtime")
	if err != nil {
		return nil, err
	}
	was.Default = i >= 0 && text(top.Members[i].Value) == r.Name
	if made, err := (Docker{}).Piece(nil, was); err != nil || string(config) == made {
		return nil, err // register made the file
	}
	removeMember(runtimes, entry.index)
	switch {
	case was.Default && len(runtimes.Members) > 0:
		top.Members[i].Value.Value = hujson.String(dockerOwn)
	case was.Default:
		removeMember(top, i)
	}
	if len(runtimes.Members) == 0 {
		i, _ := memberIndex(config, top, "runtimes")
		removeMember(top, i)
	}
	return root.Pack(), nil
}

// dockerMember is a runtime found in the configuration.
type dockerMember struct {
	index  int // below "runtimes"
	offset int
	path   string
	value  *hujson.Value // of the path
	alone  bool          // there is nothing but the path
}

// readDockerEntry is nil if there is none of the name.
func readDockerEntry(config []byte, runtimes *hujson.Object, name string) (*dockerMember, error) {
	i, err := memberIndex(config, runtimes, name)
	if err != nil || i < 0 {
		return nil, err
	}
	offset := runtimes.Members[i].Name.StartOffset
	entry, ok := runtimes.Members[i].Value.Value.(*hujson.Object)
	if !ok {
		return nil, atOffset(config, offset, "runtime %q is not an object", name)
	}
	m := &dockerMember{index: i, offset: offset, path: "something without a path", alone: len(entry.Members) == 1}
	p, err := memberIndex(config, entry, "path")
	if err != nil {
		return nil, err
	}
	if p >= 0 {
		m.value = &entry.Members[p].Value
		m.path = text(*m.value)
	}
	return m, nil
}

// Elsewhere is Engine's: dockerd reads one file.
func (Docker) Elsewhere(string, []byte, Runtime) error { return nil }

// Added is Engine's.
func (Docker) Added(_ string, r Runtime) string {
	use := "docker run --rm --runtime " + r.Name + " IMAGE"
	if r.Default {
		use = "docker run --rm IMAGE"
	}
	return `To have dockerd read it, containers running on:
    systemctl reload docker     (or: kill -HUP, to the process dockerd)
Then:
    ` + use
}

// Removed is Engine's.
func (Docker) Removed(name string) string {
	return `dockerd forgets it when it starts again; on a reload only if the file has another runtime:
    systemctl restart docker
Containers that were made with it do not start again; to find them:
    docker ps -a -q | xargs -r docker inspect -f '{{.Name}} {{.HostConfig.Runtime}}' | grep ' ` + name + `$'`
}

// parseObject reads a configuration that dockerd would take: JSON without
// comments.
func parseObject(config []byte) (hujson.Value, *hujson.Object, error) {
	var standard map[string]json.RawMessage
	if err := json.Unmarshal(config, &standard); err != nil {
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			err = atOffset(config, int(syntax.Offset)-1, "not JSON: %w", err)
		case errors.As(err, new(*json.UnmarshalTypeError)):
			err = atOffset(config, 0, "not a JSON object")
		}
		return hujson.Value{}, nil, err
	}
	root, err := hujson.Parse(config)
	if err != nil {
		return root, nil, fmt.Errorf("not JSON: %w", err)
	}
	top, ok := root.Value.(*hujson.Object)
	if !ok { // null is an object to encoding/json
		return root, nil, atOffset(config, 0, "not a JSON object")
	}
	return root, top, nil
}
