package engine

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// Containerd knows runtimes by name in its CRI plugin only, which kubelet and
// crictl talk to (containerd's docs/cri/config.md). ctr and nerdctl take a
// runtime's path on their command lines.
type Containerd struct {
	// Major returns the major version of the installed containerd, 0 if unknown. nil: unknown. It is
	// called for a configuration that says nothing.
	Major func() int
}

// File is containerd's default.
func (Containerd) File() string { return "/etc/containerd/config.toml" }

// containerd's own runtime, in a block of its own. Where a file names no
// runtime, containerd 1.x has "runc" by default; where it names one, only that
// one, and then it finds its default missing and loads no CRI plugin.
const containerdOwn = "(containerd's own runtime)"

// criPlugins are the plugins that hold the runtimes, by the configuration's version.
func criPlugin(version int64) string {
	if version >= 3 { // 4 has other tables for containerd's sockets only
		return "io.containerd.cri.v1.runtime"
	}
	return "io.containerd.grpc.v1.cri"
}

// containerdConfig is a configuration that was read.
type containerdConfig struct {
	tree    map[string]any
	version int64
}

// newVersion is the version of a new configuration. All releases of containerd from 1.3 on read version 2,
// and 2.x rewrites it in memory at each start. Version 3 is for 2.x only.
func (e Containerd) newVersion() int64 {
	if e.Major != nil && e.Major() >= 2 {
		return 3
	}
	return 2
}

func (e Containerd) read(config []byte) (*containerdConfig, error) {
	tree, err := parseTOML(config)
	if err != nil {
		return nil, err
	}
	if len(tree) == 0 {
		return &containerdConfig{tree, e.newVersion()}, nil
	}
	switch version := tree["version"].(type) {
	case int64:
		if version >= 2 && version <= 4 {
			return &containerdConfig{tree, version}, nil
		}
		return nil, fmt.Errorf("version is %d, and register writes 2, 3 and 4; containerd 2 rewrites older ones: containerd config migrate", version)
	case nil:
		return nil, errors.New("without a version, which makes it version 1, and register writes 2, 3 and 4." +
			" Write \"version = 2\" as its first line and full names of plugins (\"cri\" is \"io.containerd.grpc.v1.cri\")," +
			" or start from the output of: containerd config default")
	}
	return nil, errors.New("version is not a number")
}

func (c *containerdConfig) runtimes() []string { return append(c.containerd(), "runtimes") }
func (c *containerdConfig) containerd() []string {
	return []string{"plugins", criPlugin(c.version), "containerd"}
}

// path is where a runtime's program is; "" if there is no such runtime.
func (c *containerdConfig) path(name string) string {
	runtime := lookupAs[map[string]any](c.tree, append(c.runtimes(), name)...)
	if runtime == nil {
		return ""
	}
	if path := lookupAs[string](runtime, "options", "BinaryName"); path != "" {
		return path
	}
	return "another one"
}

// defaultName is the runtime of pods that name none.
func (c *containerdConfig) defaultName() string {
	if name := lookupAs[string](c.tree, append(c.containerd(), "default_runtime_name")...); name != "" {
		return name
	}
	return "runc"
}

// systemd tells whether pods get their cgroups from systemd. It is said for
// each runtime and must be the same for all: kubelet's cgroup driver.
func (c *containerdConfig) systemd() bool {
	return lookupAs[bool](c.tree, append(c.runtimes(), c.defaultName(), "options", "SystemdCgroup")...)
}

func (c *containerdConfig) body(r Runtime, systemd bool) string {
	table := fmt.Sprintf("plugins.%q.containerd.runtimes.%s", criPlugin(c.version), r.Name)
	body := fmt.Sprintf(`[%s]
  runtime_type = "io.containerd.runc.v2"
  [%s.options]
    BinaryName = %s
`, table, table, quote(r.Path))
	if systemd {
		body += "    SystemdCgroup = true\n"
	}
	return body
}

// ownBody keeps containerd's default among the runtimes.
func (c *containerdConfig) ownBody() string {
	version := ""
	if len(c.tree) == 0 { // it says nothing, not even its version
		version = fmt.Sprintf("version = %d\n", c.version)
	}
	return fmt.Sprintf(`%s# with any runtime named here, containerd 1.x forgets the one it has by default
[plugins.%q.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`, version, criPlugin(c.version))
}

// needsOwn tells whether a runtime here would be the first.
func (c *containerdConfig) needsOwn() bool {
	return len(lookupAs[map[string]any](c.tree, c.runtimes()...)) == 0 && c.defaultName() == "runc"
}

// Piece is Engine's.
func (e Containerd) Piece(config []byte, r Runtime) (string, error) {
	c, err := e.read(config)
	if err != nil {
		return "", err
	}
	piece := blockText(r.Name, c.body(r, c.systemd()))
	if c.needsOwn() {
		piece = blockText(containerdOwn, c.ownBody()) + "\n" + piece
	}
	return piece, nil
}

// Add is Engine's.
func (e Containerd) Add(config []byte, r Runtime) ([]byte, error) {
	if r.Default {
		return nil, errors.New("--default is not for containerd: a pod names its runtime by a RuntimeClass;" +
			" for a default, set default_runtime_name in the table of the plugin by hand")
	}
	c, err := e.read(config)
	if err != nil {
		return nil, err
	}
	if err := c.enabled(); err != nil {
		return nil, err
	}
	found, err := findRuntime(config, r.Name, c.path(r.Name), taken)
	if err != nil {
		return nil, err
	}
	if found != nil {
		if err := c.unedited(config, found, r); err != nil {
			return nil, err
		}
		return replaceBlock(config, found, r.Name, c.body(r, c.systemd())), nil
	}
	added, paths := config, [][]string{append(c.runtimes(), r.Name)}
	if c.needsOwn() {
		added = appendBlock(added, containerdOwn, c.ownBody())
		paths = append(paths, append(c.runtimes(), "runc"), []string{"version"})
	}
	added = appendBlock(added, r.Name, c.body(r, c.systemd()))
	return added, onlyDiffer(added, config, paths...)
}

// enabled refuses a configuration that turns off the plugin which would read the addition.
func (c *containerdConfig) enabled() error {
	disabled, _ := c.tree["disabled_plugins"].([]any)
	for _, name := range disabled {
		if name == criPlugin(c.version) || name == "io.containerd.grpc.v1.cri" {
			return fmt.Errorf("disabled_plugins has %q, and only that plugin knows runtimes by name: take it out of the list first;"+
				" ctr and nerdctl need no registration (ctr run --runc-binary PATH)", name)
		}
	}
	return nil
}

// unedited refuses a block that somebody has changed.
func (c *containerdConfig) unedited(config []byte, b *block, r Runtime) error {
	tree, err := parseTOML([]byte(b.body))
	if err != nil {
		return edited(config, b)
	}
	in := &containerdConfig{tree: tree, version: c.version}
	r.Path = in.path(r.Name)
	systemd := lookup(tree, append(c.runtimes(), r.Name, "options", "SystemdCgroup")...) != nil
	if in.body(r, systemd) != b.body {
		return edited(config, b)
	}
	return nil
}

// Remove is Engine's.
func (e Containerd) Remove(config []byte, r Runtime) ([]byte, error) {
	if len(bytes.TrimSpace(config)) == 0 {
		return config, nil
	}
	c, err := e.read(config)
	if err != nil {
		return nil, err
	}
	found, err := findRuntime(config, r.Name, c.path(r.Name), notMarked)
	if err != nil || found == nil {
		return config, err
	}
	if err := c.unedited(config, found, r); err != nil {
		return nil, err
	}
	if c.defaultName() == r.Name {
		return nil, fmt.Errorf("default_runtime_name is %q, and containerd loads no CRI plugin if that is missing: change it first", r.Name)
	}
	rest := removeBlock(config, found)
	if err := onlyDiffer(config, rest, append(c.runtimes(), r.Name)); err != nil {
		return nil, err
	}
	return c.removeOwn(rest)
}

// removeOwn takes containerd's own runtime out again if that is the last one.
// The version in that block stays where something else relies on it.
func (c *containerdConfig) removeOwn(config []byte) ([]byte, error) {
	found, err := findBlock(config, containerdOwn)
	if err != nil || found == nil {
		return config, err
	}
	rest := removeBlock(config, found)
	tree, err := parseTOML(rest)
	if err != nil {
		return nil, err
	}
	if len(lookupAs[map[string]any](tree, c.runtimes()...)) > 0 || len(tree) > 0 && tree["version"] == nil {
		return config, nil
	}
	return rest, onlyDiffer(config, rest, append(c.runtimes(), "runc"), []string{"version"})
}

// Elsewhere reads the files that the configuration imports.
func (Containerd) Elsewhere(file string, config []byte, r Runtime) error {
	tree, err := parseTOML(config)
	if err != nil {
		return In(file, err)
	}
	imports, _ := tree["imports"].([]any)
	version, _ := tree["version"].(int64)
	main := &containerdConfig{tree, version}
	for _, pattern := range imports {
		for _, other := range imported(file, fmt.Sprint(pattern)) {
			if err := checkImport(other, r, main); err != nil {
				return err
			}
		}
	}
	return nil
}

// imported are the files of a pattern, relative to the file that has it.
func imported(file, pattern string) []string {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(file), pattern)
	}
	found, _ := filepath.Glob(pattern) // containerd fails for a bad one by itself
	return slices.DeleteFunc(found, func(f string) bool { return f == file })
}

// checkImport refuses what an imported file says beside the main one. containerd 2.x joins the settings of a
// plugin from several files. Only 2.x reads versions 3 and 4.
func checkImport(file string, r Runtime, main *containerdConfig) error {
	config, err := Read(file)
	if err != nil {
		return err
	}
	tree, err := parseTOML(config)
	if err != nil {
		return In(file, err)
	}
	for _, version := range []int64{2, 3} {
		c := &containerdConfig{tree: tree, version: version}
		if path := c.path(r.Name); path != "" && path != r.Path {
			return In(file, taken(r.Name, path))
		}
		for name := range lookupAs[map[string]any](tree, c.runtimes()...) {
			if lookupAs[bool](tree, append(c.runtimes(), name, "options", "SystemdCgroup")...) && !main.systemd() {
				return In(file, fmt.Errorf("says SystemdCgroup = true for the runtime %s. The new runtime needs the same: name this file with --config", name))
			}
		}
	}
	if merges := main.version >= 3; !merges && lookup(tree, "plugins", criPlugin(2)) != nil {
		return In(file, errors.New("is imported and has settings of the CRI plugin, which containerd 1.x takes in place of"+
			" all that the importing file says of it: name this file with --config"))
	}
	return nil
}

// Added is Engine's.
func (Containerd) Added(file string, r Runtime) string {
	return `To have containerd read it, containers running on:
    systemctl restart containerd
To see that it did:
    containerd --config ` + file + ` config dump
    crictl info
In Kubernetes, a RuntimeClass with "handler: ` + r.Name + `" makes it known to pods, as
runtimeClassName; docs/containerd.md has both.`
}

// Removed is Engine's.
func (Containerd) Removed(name string) string {
	return `To have containerd read it, containers running on:
    systemctl restart containerd
Pods whose RuntimeClass has the handler "` + name + `" do not start on this node any more.`
}
