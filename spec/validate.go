package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	maxBinds    = 256
	maxOverlays = 64
	maxEnv      = 1 << 16
)

// FieldError is a mistake in one field of a [Config].
type FieldError struct {
	// Field is the name in JSON, such as "limits.memory".
	Field string
	// Problem says why the value is wrong and which one would be right.
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// problems collects field errors, so that a user sees all of them at once.
type problems []error

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
}

func (c Config) validate() error {
	var p problems
	for _, l := range LimitFields() {
		if problem := l.problem(c.Limits); problem != "" {
			p.add("limits."+l.Name, "%s", problem)
		}
	}
	c.validateStorage(&p)
	c.validatePlaces(&p)
	c.validateProcess(&p)
	return errors.Join(p...)
}

func (c Config) validateStorage(p *problems) {
	if c.Storage != "" && !slices.Contains(Storages(), c.Storage) {
		p.add("storage", "unknown storage %q; use %q or %q", c.Storage, StorageMemory, StorageDisk)
	}
	if len(c.Overlays) > maxOverlays {
		p.add("overlays", "%d are more than %d", len(c.Overlays), maxOverlays)
	}
	for i, dir := range c.Overlays {
		field := fmt.Sprintf("overlays[%d]", i)
		switch {
		case dir == "":
			p.add(field, "is empty; name a directory of the host")
		case strings.ContainsRune(dir, 0):
			p.add(field, "contains a NUL byte")
		case len(dir) > maxPath:
			p.add(field, "%d bytes are more than the %d a path may have", len(dir), maxPath)
		case slices.Contains(c.Overlays[:i], dir):
			p.add(field, "%s is named twice", dir)
		}
	}
}

func (c Config) validatePlaces(p *problems) {
	c.validateNetwork(p)
	c.validateSensitivity(p)
	c.validatePublish(p)
	if !slices.Contains(PIDs(), c.PID) {
		p.add("pid", "unknown pid namespace %q; the known ones are %q", c.PID, PIDs())
	}
	if c.PID == PIDHost && c.Storage == StorageDisk {
		p.add("storage", "%q and the pid namespace %q: its processes could outlive the sandbox's first process and go on writing; use %q",
			c.Storage, c.PID, StorageMemory)
	}
	c.validateImage(p)
	if len(c.Binds) > maxBinds {
		p.add("binds", "%d are more than %d", len(c.Binds), maxBinds)
	}
	for i, b := range c.Binds {
		field := fmt.Sprintf("binds[%d]", i)
		if b.Source == "" {
			p.add(field+".source", "is empty; name a path of the host")
		}
		if !isClean(b.Target) || b.Target == "/" {
			p.add(field+".target", "%q is not a clean absolute path below /", b.Target)
		}
		if len(b.Target) > maxPath {
			p.add(field+".target", "%d bytes are more than the %d a path may have", len(b.Target), maxPath)
		}
		if slices.ContainsFunc(c.Binds[:i], func(other Bind) bool { return other.Target == b.Target }) {
			p.add(field+".target", "%s is the target of two binds", b.Target)
		}
		if b.Target == WorkspacePath && c.Workspace != "" {
			p.add(field+".target", "%s is the workspace's place; bind elsewhere or leave the workspace out", b.Target)
		}
	}
	for _, place := range []struct{ field, value string }{
		{"rootfs", c.Rootfs}, {"workspace", c.Workspace}, {"cwd", c.Cwd}, {"seccomp", c.Seccomp},
	} {
		if strings.ContainsRune(place.value, 0) {
			p.add(place.field, "contains a NUL byte")
		}
	}
}

// maxImage bounds the name of an image, in bytes.
const maxImage = 512

func (c Config) validateImage(p *problems) {
	switch {
	case c.Image == "" && c.Writable:
		p.add("writable", "needs an image; for the host's own files overlay the directories that the sandbox writes to")
	case c.Image == "":
	case len(c.Image) > maxImage:
		p.add("image", "%d bytes are more than the %d a name may have", len(c.Image), maxImage)
	case c.Rootfs != "":
		p.add("image", "a sandbox has one root; leave out the image or the root directory %s", c.Rootfs)
	case slices.Contains(c.Overlays, "/"):
		p.add("image", "a sandbox has one root; leave out the image or the overlay /")
	}
}

// The bounds of Allow and of Deny.
const (
	maxAddressRules = 256
	maxNameRules    = 10_000
	maxNameRule     = 4096 // bytes
)

func (c Config) validateNetwork(p *problems) {
	if c.Network.width() < 0 {
		p.add("network", "unknown network %q; use one of %q", c.Network, Networks())
	}
	for field, isSet := range map[string]bool{"observe": c.Observe, "ask": c.Ask} {
		if isSet && c.Network != NetworkProxied {
			p.add(field, "needs the network %q", NetworkProxied)
		}
	}
	c.validateUpstream(p)
	for _, list := range []struct {
		field string
		rules []string
	}{{"allow", c.Allow}, {"deny", c.Deny}} {
		switch {
		case len(list.rules) == 0:
		case c.Network == NetworkFull:
			validateAddresses(p, list.field, list.rules)
		case c.Network == NetworkProxied:
			validateNames(p, list.field, list.rules)
		default:
			p.add(list.field, "needs the network %q or %q", NetworkProxied, NetworkFull)
		}
	}
}

// validateAddresses checks the rules of NetworkFull.
func validateAddresses(p *problems, field string, rules []string) {
	if len(rules) > maxAddressRules {
		p.add(field, "%d are more than %d", len(rules), maxAddressRules)
	}
	for i, text := range rules {
		if rule, err := ParseAddressRule(text); err != nil {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%v", err)
		} else if reason := rule.useless(); reason != "" {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%q: %s", text, reason)
		}
	}
}

// validateNames checks the size of the rules of NetworkProxied. The launcher reads them.
func validateNames(p *problems, field string, rules []string) {
	if len(rules) > maxNameRules {
		p.add(field, "%d are more than %d", len(rules), maxNameRules)
	}
	for i, text := range rules {
		if text == "" || len(text) > maxNameRule {
			p.add(fmt.Sprintf("%s[%d]", field, i), "has %d bytes; write 1 to %d", len(text), maxNameRule)
		}
	}
}

func (c Config) validateProcess(p *problems) {
	if field, problem := c.User.problem(); problem != "" {
		p.add("user."+field, "%s", problem)
	}
	if c.Timeout < 0 {
		p.add("timeout", "%s is negative; 0 means none", time.Duration(c.Timeout))
	}
	if problem := c.Grace.problem(); problem != "" {
		p.add("grace", "%s", problem)
	}
	if !path.IsAbs(c.Cwd) {
		p.add("cwd", "%q is not an absolute path inside the sandbox", c.Cwd)
	}
	if !isHostname(c.Hostname) {
		p.add("hostname", "%q is not a host name of at most 64 letters, digits, dots and dashes", c.Hostname)
	}
	if len(c.Env) > maxEnv {
		p.add("env", "%d variables are more than %d", len(c.Env), maxEnv)
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			p.add("env", "%q is not a variable: names have no = and are not empty, and neither side has a NUL byte", name)
		}
	}
}

// maxPath is the length of a path that system calls take (PATH_MAX, limits.h,
// which counts the NUL byte).
const maxPath = 4095

func isClean(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

// isHostname accepts names of RFC 1123, section 2.1, that fit sethostname(2).
func isHostname(name string) bool {
	const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return name != "" && len(name) <= 64 &&
		strings.Trim(name, alphanumeric+".-") == "" &&
		strings.Contains(alphanumeric, name[:1]) && strings.Contains(alphanumeric, name[len(name)-1:])
}
