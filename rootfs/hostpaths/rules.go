package hostpaths

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ForbiddenError says that a host path must not be shown in a sandbox, or not
// as it was asked for.
type ForbiddenError struct {
	Path     string // as given
	Resolved string // the target of its links
	Rule     string // why, to follow "it"
}

func (e *ForbiddenError) Error() string {
	if e.Resolved == e.Path || e.Resolved == "" {
		return fmt.Sprintf("%s is forbidden: it %s", e.Path, e.Rule)
	}
	return fmt.Sprintf("%s is forbidden: it leads to %s, and it %s", e.Path, e.Resolved, e.Rule)
}

// Absent says whether an error means that a path is not there, or leads nowhere
// that could be shown.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.As(err, new(*ForbiddenError))
}

// Reserved are mounted by the runtime in each sandbox.
var Reserved = []string{"/proc", "/sys", "/dev"}

// Rules decide which host paths may be shown. The zero value has no private directory and shows no overlay.
type Rules struct {
	Sockets bool // a source may be a socket
	Whole   bool // the whole host may be a source

	private  []string // as given and as resolved
	roots    []string // resolved; nil: no rule
	homes    []string // of the host's users; nil: nothing is overlaid
	secrets  []string // relative to each of homes
	overlaid bool     // a private directory may lie in a source
}

// Overlaying are the rules for overlaid sources.
func (r *Rules) Overlaying() *Rules {
	o := *r
	o.overlaid = true
	return &o
}

// IsPrivate says that an overlay shows a path empty, or the directory above.
func (r *Rules) IsPrivate(p string) bool {
	in := func(dir string) bool { return Within(p, dir) }
	return slices.ContainsFunc(r.private, in) || r.secretAbove(p) != ""
}

// secretAbove is the secret of a user that a path is, or lies in.
func (r *Rules) secretAbove(p string) string {
	for _, home := range r.homes {
		if !Within(p, home) {
			continue
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, home), "/")
		for _, name := range r.secrets {
			if strings.HasPrefix(rel, name) && (len(rel) == len(name) || rel[len(name)] == '/') {
				return filepath.Join(home, name)
			}
		}
	}
	return ""
}

// NewRules returns the rules for a runtime with private directories, in which only the workspace roots may be
// writable. No roots: there is no such rule.
func NewRules(private, workspaceRoots []string) (*Rules, error) {
	r := &Rules{}
	for _, p := range private {
		resolved, err := resolveAbsolute("private directory", p)
		if err != nil {
			return nil, err
		}
		r.private = append(r.private, filepath.Clean(p), resolved)
	}
	for _, p := range workspaceRoots {
		resolved, err := resolveAbsolute("workspace root", p)
		if err != nil {
			return nil, err
		}
		r.roots = append(r.roots, resolved)
	}
	return r, nil
}

// HideSecrets has overlays show no secret in the home of any user of the host, or in the caller's home.
func (r *Rules) HideSecrets(home string) (err error) {
	r.homes, err = Homes(home)
	r.secrets = Secrets()
	return err
}

// Hidden are the paths of the host that an overlay of a directory, given and resolved, must not show, also some that
// lie elsewhere.
func (r *Rules) Hidden(given, resolved string) []string {
	hidden := slices.Clone(r.private)
	for _, home := range append(slices.Clone(r.homes), given) {
		if !Within(home, given) && !Within(given, home) && !Within(home, resolved) && !Within(resolved, home) {
			continue
		}
		for _, name := range r.secrets {
			hidden = append(hidden, strings.TrimSuffix(home, "/")+"/"+name)
		}
	}
	return hidden
}

// resolveAbsolute is resolveExisting for a path of the configuration. Errors name the field.
func resolveAbsolute(field, p string) (string, error) {
	if !filepath.IsAbs(p) {
		return "", fmt.Errorf("%s %q: must be absolute", field, p)
	}
	resolved, err := resolveExisting(filepath.Clean(p))
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", field, p, err)
	}
	return resolved, nil
}

// resolveExisting follows symbolic links as far as the path exists.
func resolveExisting(p string) (string, error) {
	resolved, err := filepath.EvalSymlinks(p)
	if errors.Is(err, fs.ErrNotExist) && p != "/" {
		dir, err := resolveExisting(filepath.Dir(p))
		return filepath.Join(dir, filepath.Base(p)), err
	}
	return resolved, err
}

// Check decides on a source by its path as given and as resolved, both clean.
func (r *Rules) Check(given, resolved string, writable bool) error {
	refuse := func(rule string) error {
		return &ForbiddenError{Path: given, Resolved: resolved, Rule: rule}
	}
	for _, p := range []string{given, resolved} {
		if p == "/" && !r.Whole {
			return refuse("is the whole host; name the directories that are needed")
		}
		for _, dir := range Reserved {
			if Within(p, dir) {
				return refuse("lies under " + dir + ", which shows the host's kernel and processes")
			}
		}
		for _, own := range r.private {
			if Within(p, own) {
				return refuse("lies in the runtime's own directory " + own)
			}
			if Within(own, p) && !r.overlaid {
				return refuse("contains the runtime's own directory " + own)
			}
		}
		if r.overlaid {
			if secret := r.secretAbove(p); secret != "" {
				return refuse("lies in " + secret + ", which holds secrets; bind the needed files alone")
			}
		}
		if rule := NeverWritable(p); writable && rule != "" {
			return refuse(rule)
		}
	}
	inside := func(root string) bool { return Within(resolved, root) }
	if writable && r.roots != nil && !slices.ContainsFunc(r.roots, inside) {
		return refuse("lies outside the workspace roots " + strings.Join(r.roots, ", "))
	}
	return nil
}
