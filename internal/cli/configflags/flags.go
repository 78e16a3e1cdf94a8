package configflags

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// All are those that describe a sandbox, each with how its text gets
// into the configuration. A flag that is not given leaves the configuration as
// --config or the defaults have it.
func All() []Flag {
	all := []Flag{
		Text("rootfs", "`DIR` whose files are the root, read-only (default: the host's own /usr, /bin, /lib...)", "rootfs",
			func(c *spec.Config, v string) error { return setText(&c.Rootfs, v) }),
		Text("image", "`IMAGE` whose files are the root, read-only without --writable: a name, an id or the beginning of an id", "image",
			func(c *spec.Config, v string) error { return setText(&c.Image, v) }),
		{&cli.BoolFlag{Name: "writable", Usage: "have the whole root of --image be writable; writes go to a layer, and the image stays as it is"}, "writable",
			func(c *spec.Config, v string) (err error) { c.Writable, err = strconv.ParseBool(v); return err }},
		Text("workspace", "`DIR` to mount at /workspace, read-write (default: an empty one that vanishes)", "workspace",
			func(c *spec.Config, v string) error { return setText(&c.Workspace, v) }),
		list("overlay", "host `DIR` to show at its own path; writes go to a layer (repeatable)", "overlays", addOverlay),
		list("bind", "host path to show inside, as `SRC:DST[:ro|rw]` (default ro, repeatable)", "binds", addBind, "v"),
		Text("network", "`KIND` of network: none, a loopback device only, proxied, the names of --allow, or full, the outside (default: none, with rules or --observe proxied)", "network",
			func(c *spec.Config, v string) error { return setText(&c.Network, v) }),
		Text("pid", "`KIND` of pid namespace: private, one of its own, or host, that of the launcher (default: private)", "pid",
			func(c *spec.Config, v string) error { return setText(&c.PID, v) }),
	}
	all = append(all, OfNetwork()...)
	for _, l := range spec.LimitFields() {
		all = append(all, ofLimit(l, l.Usage+" (default: "+l.Default+")"))
	}
	return append(all,
		Text("storage", "`KIND` of place for its writes: "+storages()+" (default: memory, for up disk)", "storage",
			func(c *spec.Config, v string) error { return setText(&c.Storage, v) }),
		Text("timeout", "`DURATION` after which a command and all its processes are ended, as 500ms or 1m30s; a number alone is seconds (default: none)", "timeout",
			func(c *spec.Config, v string) error { return c.Timeout.UnmarshalText([]byte(v)) }),
		Text("grace", "`DURATION` between SIGTERM and SIGKILL when the runtime ends a command: at its timeout, an interrupt or the removal; 0 kills at once (default: 2s)", "grace",
			func(c *spec.Config, v string) error { return c.Grace.UnmarshalText([]byte(v)) }),
		Text("user", "`UID[:GID]` inside, or NAME[:GROUP] of its /etc/passwd (default: 1000:1000)", "user",
			func(c *spec.Config, v string) (err error) { c.User, err = spec.ParseUser(v); return err }),
		list("env-file", "`FILE` with a line NAME=VALUE for each variable; empty lines and lines with # do not count (repeatable)", "env", addEnvFile),
		list("env", "`NAME=VALUE` for its environment; wins over --env-file (repeatable)", "env", addEnv, "e"),
		Text("cwd", "`DIR` inside to start in (default without --workspace: the working directory if it is overlaid, or the only --overlay; else /workspace)", "cwd",
			func(c *spec.Config, v string) error { return setText(&c.Cwd, v) }, "w"),
		Text("hostname", "`NAME` of the sandbox (default: sandbox)", "hostname",
			func(c *spec.Config, v string) error { return setText(&c.Hostname, v) }),
		Text("seccomp", "`PROFILE` of system calls: default, strict, debug or a file in the OCI JSON form (default: default)", "seccomp",
			func(c *spec.Config, v string) error { return setText(&c.Seccomp, v) }),
	)
}

// OfNetwork are the flags that describe a network further, also that of a sandbox that is up.
func OfNetwork() []Flag {
	return []Flag{
		list("allow", "`RULE` for a destination to reach: NAME, *.SUFFIX, @PRESET, ADDRESS or ADDRESS/BITS, with :PORT or :PORT-PORT (default 80 and 443); with --network full only addresses, beside the public ones (repeatable)", "allow",
			func(c *spec.Config, v string) error { c.Allow = append(c.Allow, v); return nil }),
		list("deny", "`RULE` for a destination not to reach, as --allow has them, by default on all ports; wins over --allow (repeatable)", "deny",
			func(c *spec.Config, v string) error { c.Deny = append(c.Deny, v); return nil }),
		list("network-rules", "`FILE` with a rule in each line, with \"deny \" before those that deny; for --network proxied (repeatable)", "allow", addNetworkRules),
		{&cli.BoolFlag{Name: "observe", Usage: "with --network proxied, reach each name that no rule denies; \"network --suggest\" then prints the rules that were needed"}, "observe",
			func(c *spec.Config, v string) (err error) { c.Observe, err = strconv.ParseBool(v); return err }},
		Text("upstream-proxy", "`URL` of a proxy of the host's network through which --network proxied reaches names, as http://[USER:PASSWORD@]HOST:PORT, or env for HTTP_PROXY, HTTPS_PROXY and NO_PROXY of the environment", "upstream_proxy",
			func(c *spec.Config, v string) error { return setText(&c.UpstreamProxy, v) }),
		list("publish", "`[ADDR:]HOST:PORT`, with /udp at the end for UDP: port HOST of the host leads to PORT inside, with any kind of network; ADDR is 127.0.0.1 by default (repeatable)", "publish",
			func(c *spec.Config, v string) error { c.Publish = append(c.Publish, v); return nil }),
		Text("sensitivity", "`LEVEL` of the data inside: public, internal, confidential or secret; it bounds the network and never falls (default: public)", "sensitivity",
			func(c *spec.Config, v string) error { return setText(&c.Sensitivity, v) }),
	}
}

// A Flag is a flag and the field of the configuration that it sets.
type Flag struct {
	Flag  cli.Flag
	Field string
	// Apply is called with each value that was given.
	Apply func(*spec.Config, string) error
}

// Name is the flag's name without dashes.
func (f Flag) Name() string { return f.Flag.Names()[0] }

// storages are the names of all storages, for a help text.
func storages() string {
	var names []string
	for _, s := range spec.Storages() {
		names = append(names, string(s))
	}
	return strings.Join(names, " or ")
}

// Text is a flag with one value.
func Text(name, usage, field string, apply func(*spec.Config, string) error, short ...string) Flag {
	return Flag{&cli.StringFlag{Name: name, Aliases: short, Usage: usage}, field, apply}
}

func list(name, usage, field string, apply func(*spec.Config, string) error, short ...string) Flag {
	return Flag{&cli.StringSliceFlag{Name: name, Aliases: short, Usage: usage}, field, apply}
}

// OfCommand are the flags of limits that a single command can have.
func OfCommand() []Flag {
	var all []Flag
	for _, l := range spec.LimitFields() {
		if l.OfCommand {
			all = append(all, ofLimit(l, "sandbox: "+l.Usage+", for this command alone"))
		}
	}
	return all
}

// OfLimits are the flags of the limits of a sandbox, for a change while it is up. Those of fixed
// limits refuse each value, and the help does not show them.
func OfLimits() []Flag {
	var all []Flag
	for _, l := range spec.LimitFields() {
		f := ofLimit(l, "sandbox: "+l.Usage)
		if l.Fixed {
			f.Flag.(*cli.StringFlag).Hidden = true
			f.Apply = func(*spec.Config, string) error {
				return errors.New("cannot be changed after the creation of a sandbox; make another sandbox")
			}
		}
		all = append(all, f)
	}
	return all
}

func ofLimit(l spec.Limit, usage string) Flag {
	return Text(strings.ReplaceAll(l.Name, "_", "-"), usage, "limits."+l.Name,
		func(c *spec.Config, v string) error { return l.Parse(&c.Limits, v) })
}

// Flags are the flags that set a configuration, with --config.
func Flags() []cli.Flag {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "`FILE` with the whole configuration as JSON; flags win over it"},
	}
	return append(flags, ForLibrary(All())...)
}

// ForLibrary returns the flags as the library for command lines takes them.
func ForLibrary(flags []Flag) (all []cli.Flag) {
	for _, f := range flags {
		all = append(all, f.Flag)
	}
	return all
}

// Config is the configuration of --config with the flags on top. It can
// be completed.
func Config(cmd *cli.Command) (spec.Config, error) {
	config, err := configFile(cmd.String("config"))
	if err != nil {
		return config, err
	}
	if wrong := apply(cmd, All(), &config); wrong != nil {
		// Fields with a mistake have their defaults. The others can have mistakes, too.
		if _, err := config.Complete(); err != nil {
			wrong = append(wrong, InFlags(cmd, err))
		}
		return config, together(wrong)
	}
	if err := absolutePaths(&config); err != nil {
		return config, err
	}
	startInOverlay(&config)
	_, err = config.Complete()
	return config, InFlags(cmd, err)
}

// absolutePaths takes host paths from the working directory on, also those of
// a configuration file.
func absolutePaths(c *spec.Config) error {
	paths := []*string{&c.Rootfs, &c.Workspace}
	for i := range c.Overlays {
		paths = append(paths, &c.Overlays[i])
	}
	for i := range c.Binds {
		paths = append(paths, &c.Binds[i].Source)
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		absolute, err := hostpaths.Absolute(*p)
		if err != nil {
			return err
		}
		*p = absolute
	}
	return nil
}

// startInOverlay has commands start where the user is, if that is overlaid and
// nothing says otherwise.
func startInOverlay(c *spec.Config) {
	if c.Cwd != "" || c.Workspace != "" || len(c.Overlays) == 0 {
		return
	}
	here, err := os.Getwd()
	if err != nil {
		return // a removed directory is in no overlay
	}
	for _, dir := range c.Overlays {
		if here == dir || dir != "/" && strings.HasPrefix(here, dir+"/") {
			c.Cwd = here
			return
		}
	}
	resolved, err := filepath.EvalSymlinks(here)
	if err != nil {
		return
	}
	for _, dir := range c.Overlays { // one of both paths can have symbolic links
		tree, err := filepath.EvalSymlinks(dir)
		if rel, below := strings.CutPrefix(resolved+"/", tree+"/"); err == nil && below && tree != "/" {
			c.Cwd = filepath.Join(dir, rel)
		}
	}
}

// Apply puts the values of the flags on the command line into a configuration. Its error names each mistake.
func Apply(cmd *cli.Command, flags []Flag, c *spec.Config) error {
	return together(apply(cmd, flags, c))
}

func apply(cmd *cli.Command, flags []Flag, c *spec.Config) (wrong []error) {
	given := cmd.LocalFlagNames() // IsSet would take some 5 µs for each flag
	for _, f := range flags {
		if !slices.Contains(given, f.Name()) {
			continue
		}
		for _, value := range values(cmd, f) {
			if err := f.Apply(c, value); err != nil {
				wrong = append(wrong, fmt.Errorf("--%s: %w", f.Name(), err))
			}
		}
	}
	return wrong
}

// together is one error with the texts of all, in one line.
func together(all []error) error {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	texts := make([]string, len(all))
	for i, err := range all {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// values are the values of a flag that is on the command line.
func values(cmd *cli.Command, f Flag) []string {
	switch f.Flag.(type) {
	case *cli.StringSliceFlag:
		return cmd.StringSlice(f.Name())
	case *cli.BoolFlag:
		return []string{strconv.FormatBool(cmd.Bool(f.Name()))}
	}
	return []string{cmd.String(f.Name())}
}

func configFile(path string) (spec.Config, error) {
	if path == "" {
		return spec.Config{}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return spec.Config{}, fmt.Errorf("--config: %w", err)
	}
	defer f.Close()
	c, err := spec.ReadConfig(f)
	if err != nil {
		return c, fmt.Errorf("--config %s: %w", path, err)
	}
	return c, nil
}

// InFlags words field errors by the flag the user typed, where there was one.
func InFlags(cmd *cli.Command, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var lines []string
	for _, e := range joined.Unwrap() {
		if line := flagWording(cmd, e); !slices.Contains(lines, line) { // --user is two fields
			lines = append(lines, line)
		}
	}
	return errors.New(strings.Join(lines, "; "))
}

func flagWording(cmd *cli.Command, err error) string {
	if field, ok := errors.AsType[*spec.FieldError](err); ok {
		for _, f := range All() {
			rest, within := strings.CutPrefix(field.Field, f.Field)
			if cmd.IsSet(f.Name()) && within && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				return "--" + f.Name() + ": " + field.Problem
			}
		}
	}
	if file := cmd.String("config"); file != "" {
		return "--config " + file + ": " + err.Error()
	}
	return err.Error()
}

// AsTyped words a launcher's error about a field with the flag that the user typed.
func AsTyped(cmd *cli.Command, err error) error {
	var config *sandbox.ConfigError
	if !errors.As(err, &config) {
		return err
	}
	fields, problem, ok := strings.Cut(config.Reason, ": ")
	if !ok {
		return err
	}
	var typed []string
	for _, field := range strings.Split(fields, ", ") {
		name := typedAs(cmd, field)
		if name == "" && field == "cwd" && !cmd.IsSet("config") {
			continue // startInOverlay has set this field, not the user
		}
		typed = append(typed, cmp.Or(name, field))
	}
	if words := strings.Join(typed, ", "); len(typed) > 0 && words != fields {
		return errors.New(words + ": " + problem)
	}
	return err
}

// typedAs is the flag that the user typed for a field, or "".
func typedAs(cmd *cli.Command, field string) string {
	name, _, _ := strings.Cut(field, "[")
	for _, f := range All() {
		if name == f.Field && cmd.IsSet(f.Name()) {
			return "--" + f.Name()
		}
	}
	return ""
}

// setText refuses an empty text, which a configuration takes for "the default".
func setText[T ~string](field *T, value string) error {
	if value == "" {
		return errors.New("is empty; leave the flag out for the default")
	}
	*field = T(value)
	return nil
}

func addBind(c *spec.Config, value string) error {
	b, err := spec.ParseBind(value)
	if err != nil {
		return err
	}
	c.Binds = append(c.Binds, b)
	return nil
}

func addOverlay(c *spec.Config, value string) error {
	if value == "" {
		return errors.New("is empty; name a directory of the host")
	}
	c.Overlays = append(c.Overlays, value)
	return nil
}

func addEnv(c *spec.Config, value string) error {
	name, v, err := spec.ParseEnv(value)
	if err != nil {
		return err
	}
	if c.Env == nil {
		c.Env = map[string]string{}
	}
	c.Env[name] = v
	return nil
}

// maxEnvFile is far above the room that the kernel has for an environment.
const maxEnvFile = 1 << 20

// addNetworkRules adds the rules of a file.
func addNetworkRules(c *spec.Config, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	allow, deny, err := rules.ParseFile(path, f)
	c.Allow, c.Deny = append(c.Allow, allow...), append(c.Deny, deny...)
	return err
}

// byteOrderMark begins the text files of editors on Windows.
const byteOrderMark = "\ufeff"

// addEnvFile adds the variables of a file, with one on each line, as Docker's --env-file has them.
func addEnvFile(c *spec.Config, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxEnvFile {
		return fmt.Errorf("%s is larger than %s", path, spec.Size(maxEnvFile))
	}
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(string(text), byteOrderMark)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if start := strings.TrimSpace(line); start == "" || start[0] == '#' {
			continue
		}
		line = strings.TrimLeft(line, " \t")
		err := addEnv(c, line)
		if name, _, _ := strings.Cut(line, "="); strings.ContainsAny(name, " \t") {
			err = fmt.Errorf("%q: no space may be before the equals sign", line)
		}
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", path, number, err)
		}
	}
	return nil
}
