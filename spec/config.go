package spec

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config describes one sandbox and how its command is run. The zero value asks
// for the host's own /usr read-only, an empty workspace that vanishes, no
// network, uid 1000, no capabilities, the default seccomp profile and the
// default limits.
type Config struct {
	// Rootfs is the directory whose entries become the sandbox's root, read-only. Empty:
	// the host's own /usr and its companions.
	Rootfs string `json:"rootfs,omitempty"`

	// Image is an image of the launcher's store whose files become the sandbox's root, read-only without Writable: a name,
	// an id, or the beginning of an id. The image's user, environment and directory hold where the configuration has none.
	Image string `json:"image,omitempty"`

	// Writable has the whole root be writable, which takes an Image. The writes go to a layer of the sandbox, as those to
	// Overlays do, and the image stays as it is. Volumes of the image stay apart: they begin empty, and no snapshot has them.
	Writable bool `json:"writable,omitempty"`

	// Workspace is the host directory mounted read-write at /workspace.
	// Empty: an empty one that vanishes with the sandbox.
	Workspace string `json:"workspace,omitempty"`

	// Binds are further host paths to show inside.
	Binds []Bind `json:"binds,omitempty"`

	// Overlays are host directories that the sandbox sees at their own paths. The sandbox
	// can change the files there. Its writes go to a layer of the sandbox, and the host's
	// files stay as they are. "/" is the whole root; only root may ask for it. A directory whose path has
	// symbolic links is at the path without links, too, if nothing else is there.
	Overlays []string `json:"overlays,omitempty"`

	// Storage is the place of the sandbox's writes. Empty: the launcher decides. It takes
	// memory for a sandbox that ends with its creator.
	Storage Storage `json:"storage,omitempty"`

	// Network is the part of the network that the sandbox can reach. Empty: NetworkProxied if there
	// are rules, Observe or Ask, else NetworkNone.
	Network Network `json:"network,omitempty"`

	// Allow are rules for destinations. With NetworkProxied they are the names and addresses that the
	// sandbox reaches: docs/network.md has the forms. With NetworkFull they are addresses that
	// it does not reach by itself. Each is ADDRESS or ADDRESS/BITS, of IPv4 or IPv6, and may end in
	// :PORT or :FIRST-LAST.
	Allow []string `json:"allow,omitempty"`

	// Deny are rules for destinations that the sandbox does not reach, in the form of Allow. Deny wins
	// over Allow.
	Deny []string `json:"deny,omitempty"`

	// Observe lets NetworkProxied reach each name that no rule denies, on each port. The log says
	// which names were reached. Addresses stay under the rules.
	Observe bool `json:"observe,omitempty"`

	// Ask holds a connection of NetworkProxied to a name without a rule, until the embedder has decided: see
	// DecideNetwork of package sandbox. Without an embedder the connection is refused.
	Ask bool `json:"ask,omitempty"`

	// UpstreamProxy is a proxy of the host's network, through which NetworkProxied reaches the names of Allow and public
	// addresses: a URL as http://[USER:PASSWORD@]HOST:PORT, also with https, or UpstreamEnv. The upstream proxy looks the
	// names up. The configuration of a sandbox that is up has the URL without user and password.
	UpstreamProxy string `json:"upstream_proxy,omitempty"`

	// Publish are ports of the host that lead to ports of the sandbox, with any kind of network. Each is
	// [ADDRESS:]HOST:PORT, and may end in /udp. Without ADDRESS the host's is 127.0.0.1. The level of Sensitivity
	// must permit NetworkFull.
	Publish []string `json:"publish,omitempty"`

	// Sensitivity is the level of the data that the sandbox begins with. It bounds the network.
	// Empty: public.
	Sensitivity Sensitivity `json:"sensitivity,omitempty"`

	// Ceilings are the widest networks of the levels. A missing level has its default: full for
	// public and internal, proxied for confidential, none for secret.
	Ceilings map[Sensitivity]Network `json:"ceilings,omitempty"`

	// PID is the pid namespace of the sandbox. Empty: one of its own. PIDHost takes no
	// storage on disk.
	PID PID `json:"pid,omitempty"`

	// Limits bound the resources of the sandbox.
	Limits Limits `json:"limits,omitzero"`

	// Timeout is the time after which the command, and all processes that it has started,
	// are killed. 0 means none.
	Timeout Duration `json:"timeout,omitzero"`

	// Grace is the time between SIGTERM and SIGKILL when the runtime ends a command: at its
	// timeout, when its caller gives up, and when the sandbox is removed. 0: DefaultGrace.
	// NoGrace: SIGKILL at once.
	Grace Grace `json:"grace,omitzero"`

	// User is the identity of the command, by ids or by a name. Nil: 1000:1000.
	User *User `json:"user,omitempty"`

	// Env is added to the small fixed environment (PATH, HOME, LANG, TERM, USER, SHELL), and
	// replaces variables of the same name. The host's environment is never passed on.
	Env map[string]string `json:"env,omitempty"`

	// Cwd is where the command starts, an absolute path inside. Empty: the overlay if there
	// is exactly one, it is not "/", and there is no Workspace; else /workspace.
	Cwd string `json:"cwd,omitempty"`

	// Hostname is the host name inside. Empty: "sandbox".
	Hostname string `json:"hostname,omitempty"`

	// Seccomp is a profile's name (default, strict, debug) or the path of a
	// file in the OCI JSON form, which then contains a slash or ends in
	// ".json". Empty: default.
	Seccomp string `json:"seccomp,omitempty"`
}

// Network names the part of the network that a sandbox can reach.
type Network string

const (
	// NetworkNone is a network namespace with only a loopback device.
	NetworkNone Network = "none"
	// NetworkProxied is the names and addresses of Allow, through a proxy of the host. It has no
	// packets and no route: each connection has a name that the rules allow.
	NetworkProxied Network = "proxied"
	// NetworkFull is the outside: the internet, as far as the host reaches it, and the host's
	// name servers. The host's own addresses, other sandboxes and addresses that are not
	// public need a rule.
	NetworkFull Network = "full"
)

// NameServer is the IPv4 address that a sandbox's programs ask for names, with each kind of
// network. No host on the internet has an address of this range (RFC 2544).
const NameServer = "198.18.0.1"

// ProxyServer is the HTTP proxy of a sandbox with NetworkProxied, for programs that must be told of a
// proxy. Other programs need no setting.
const ProxyServer = "198.18.0.1:3128"

// PID names the pid namespace of a sandbox.
type PID string

const (
	// PIDPrivate is a pid namespace of the sandbox's own. No process of the host is visible
	// there.
	PIDPrivate PID = "private"
	// PIDHost is the pid namespace of the launcher. Processes of the sandbox have the
	// numbers that the host sees. /proc shows each user inside only the user's own processes.
	PIDHost PID = "host"
)

// PIDs are all kinds of pid namespaces.
func PIDs() []PID { return []PID{PIDPrivate, PIDHost} }

// Isolation is how far commands of a sandbox with this configuration are kept from the host.
func (c Config) Isolation() Isolation {
	if c.PID == PIDHost {
		return IsolationSharedPID
	}
	return IsolationFull
}

// Storage is the place of a sandbox's writes, except those to bound host directories: the
// layers of its overlays, its own workspace, its home, /tmp and /var/tmp.
type Storage string

const (
	// StorageMemory is a file system in memory. It counts against the sandbox's memory
	// limit, and vanishes when the sandbox ends.
	StorageMemory Storage = "memory"
	// StorageDisk is a file system in a sparse file of the data directory.
	StorageDisk Storage = "disk"
)

// Storages are all kinds of storage.
func Storages() []Storage { return []Storage{StorageMemory, StorageDisk} }

// Bind shows a host path inside the sandbox.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	Writable bool   `json:"writable,omitempty"`
}

const (
	// WorkspacePath is where the workspace is mounted.
	WorkspacePath = "/workspace"
	// HomePath is the home directory of the sandbox's user, a directory of the sandbox.
	HomePath = "/home/sandbox"
	// UserName is the name of the sandbox's user in /etc/passwd.
	UserName = "sandbox"
	// IDs is the number of user and group ids of a sandbox: 0 to IDs-1.
	IDs = 1 << 16
	// AgentID is the user and group id of PID 1. No command may run under it: that keeps
	// PID 1 out of reach, see the design note in cmd/sandbox-agent.
	AgentID = IDs - 1

	basePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Complete returns the configuration with every default filled in. Its error joins all
// mistakes; each names the field and the way out. Complete does not change the receiver,
// which shares no memory with the result.
func (c Config) Complete() (Config, error) {
	c.Binds = slices.Clone(c.Binds)
	c.Overlays = slices.Clone(c.Overlays)
	c.Allow = slices.Clone(c.Allow)
	c.Deny = slices.Clone(c.Deny)
	c.Publish = slices.Clone(c.Publish)
	c.Env = maps.Clone(c.Env)
	c.Ceilings = maps.Clone(c.Ceilings)
	c.Network = c.Grant().Kind()
	c.Sensitivity = cmp.Or(c.Sensitivity, SensitivityPublic)
	c.PID = cmp.Or(c.PID, PIDPrivate)
	for _, l := range LimitFields() {
		l.Complete(&c)
	}
	c.Cwd = cmp.Or(c.Cwd, c.start())
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.Hostname = cmp.Or(c.Hostname, "sandbox")
	c.Seccomp = cmp.Or(c.Seccomp, "default")
	user := User{UID: 1000, GID: 1000}
	if c.User != nil {
		user = *c.User
	}
	c.User = &user
	return c, c.validate()
}

// start is the directory in which commands start by default: the only overlay if the
// workspace is one that vanishes.
func (c Config) start() string {
	if c.Workspace == "" && len(c.Overlays) == 1 && path.IsAbs(c.Overlays[0]) && path.Clean(c.Overlays[0]) != "/" {
		return path.Clean(c.Overlays[0])
	}
	return WorkspacePath
}

// Environ returns the environment of the command, sorted by name: the fixed variables,
// with Env on top. The prefixes are directories that come before those of the fixed PATH.
func (c Config) Environ(prefixes ...string) []string {
	path := strings.Join(append(slices.Clip(prefixes), basePath), ":")
	env := map[string]string{"PATH": path, "HOME": HomePath, "LANG": "C.UTF-8", "TERM": "xterm", "SHELL": "/bin/sh", "USER": UserName}
	if c.User != nil && c.User.UID == 0 {
		env["USER"] = "root"
	}
	if c.Network == NetworkProxied {
		for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"} {
			env[name] = "http://" + ProxyServer
		}
		direct := notProxied + "," + c.Hostname
		env["no_proxy"], env["NO_PROXY"] = direct, direct
	}
	maps.Copy(env, c.Env)
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// notProxied are the sandbox's own names and addresses, which programs ask without the proxy. Each program reads the
// list by rules of its own: docs/proxied.md. Some take no range, so the usual addresses of the range stand beside it. Some
// compare ::1, and others [::1].
const notProxied = "localhost,.localhost,127.0.0.0/8,127.0.0.1,127.0.0.2,127.0.1.1,::1,[::1],0.0.0.0,198.18.0.2,fd53::2,[fd53::2]"

// ReadConfig reads one configuration in JSON. Fields that do not exist, and
// anything after the configuration, are errors.
func ReadConfig(r io.Reader) (Config, error) {
	var c Config
	data, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return c, err
	}
	if len(data) > maxConfig {
		return c, fmt.Errorf("configuration is larger than %d bytes", maxConfig)
	}
	return c, DecodeJSON(data, &c, "configuration")
}

// DecodeJSON reads one value in JSON into v, a pointer to a struct. Fields that do not exist, and anything
// after the value, are errors. Errors name the line and the field, and the form that is allowed; document is
// the word for the whole text.
func DecodeJSON(data []byte, v any, document string) error {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // the byte order mark of editors on Windows
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return describe(data, reflect.TypeOf(v).Elem(), document, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows the %s's closing brace", document)
	}
	return nil
}

const maxConfig = 1 << 20

// describe adds the line to a JSON error that has an offset.
func describe(data []byte, t reflect.Type, document string, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var offset int64
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset, err = kind.Offset, wrongType(kind, document)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s is empty", document)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s ends before its closing brace: %w", document, err)
	default:
		if unknown, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			name := strings.Trim(unknown, `"`)
			offset = int64(max(0, bytes.Index(data, []byte(`"`+name+`"`))))
			err = fmt.Errorf("unknown field %s", unknown)
			break
		}
		if field := faultyField(data, t, ""); field != "" {
			return fmt.Errorf("%s: %w", field, err)
		}
		return err
	}
	line := 1 + bytes.Count(data[:min(offset, int64(len(data)))], []byte("\n"))
	return fmt.Errorf("line %d: %w", line, err)
}

// wrongType is the error of a value of another JSON type than the field's. The error of
// package json names types of Go instead.
func wrongType(e *json.UnmarshalTypeError, document string) error {
	field := "the " + document
	if e.Field != "" {
		field = strconv.Quote(e.Field)
	}
	if number, ok := strings.CutPrefix(e.Value, "number "); ok && jsonForm(e.Type) == "a number" {
		return fmt.Errorf("%s: %s is too large, or not a whole number", field, number)
	}
	return fmt.Errorf("%s is a JSON %s; write %s", field, e.Value, jsonForm(e.Type))
}

// faultyField is the name of the first field of a type t that its own text form refuses in data.
// The error of package json has no field then. The result is empty if there is none.
func faultyField(data []byte, t reflect.Type, within string) string {
	switch t.Kind() {
	case reflect.Slice:
		var values []json.RawMessage
		if json.Unmarshal(data, &values) != nil {
			return ""
		}
		for i, value := range values {
			if name := fmt.Sprintf("%s[%d]", within, i); json.Unmarshal(value, reflect.New(t.Elem()).Interface()) != nil {
				return cmp.Or(faultyField(value, t.Elem(), name), name)
			}
		}
	case reflect.Struct:
		var values map[string]json.RawMessage
		if json.Unmarshal(data, &values) != nil {
			return ""
		}
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			value, given := values[name]
			if !given || json.Unmarshal(value, reflect.New(f.Type).Interface()) == nil {
				continue
			}
			name = strings.TrimPrefix(within+"."+name, ".")
			return cmp.Or(faultyField(value, f.Type, name), name)
		}
	}
	return ""
}

// jsonForm is the JSON type of values of t.
func jsonForm(t reflect.Type) string {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	default:
		return "a number"
	}
}

// Duration is a [time.Duration] with Go's form in JSON: "1m30s".
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) {
	return []byte(time.Duration(d).String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	number := string(text)
	if _, err := strconv.ParseFloat(number, 64); err == nil {
		number += "s"
	}
	v, err := time.ParseDuration(number)
	if err != nil && isDuration(number) {
		return fmt.Errorf("duration %q is too long; give %dh or less", text, int64(math.MaxInt64/time.Hour))
	}
	if err != nil {
		return fmt.Errorf("duration %q: write it like 500ms, 30s, 1m30s, or as a number of seconds", text)
	}
	*d = Duration(v)
	return nil
}

// isDuration says that only the numbers of a text can keep it from being a duration.
func isDuration(text string) bool {
	_, err := time.ParseDuration(strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return '0'
		}
		return r
	}, text))
	return err == nil
}
