package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
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

// rules decide which host paths may be shown.
type rules struct {
	private []string // as given and as resolved
	roots   []string // resolved; nil: no rule
	homes   []string // of the host's users; nil: nothing is overlaid
	secrets []string // relative to each of homes

	sockets  bool // a source may be a socket
	overlaid bool // a private directory may lie in a source
	whole    bool // the whole host may be one
}

// overlaying are the rules for overlaid sources.
func (r *rules) overlaying() *rules {
	o := *r
	o.overlaid = true
	return &o
}

// isPrivate says that an overlay shows a path empty, or the directory above.
func (r *rules) isPrivate(p string) bool {
	in := func(dir string) bool { return hostpaths.Within(p, dir) }
	return slices.ContainsFunc(r.private, in) || r.secretAbove(p) != ""
}

// secretAbove is the secret of a user that a path is, or lies in.
func (r *rules) secretAbove(p string) string {
	for _, home := range r.homes {
		if !hostpaths.Within(p, home) {
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

func newRules(cfg *Config) (*rules, error) {
	r := &rules{}
	for _, p := range cfg.Private {
		resolved, err := resolveAbsolute("private directory", p)
		if err != nil {
			return nil, err
		}
		r.private = append(r.private, filepath.Clean(p), resolved)
	}
	for _, p := range cfg.WorkspaceRoots {
		resolved, err := resolveAbsolute("workspace root", p)
		if err != nil {
			return nil, err
		}
		r.roots = append(r.roots, resolved)
	}
	if len(cfg.Overlays) > 0 {
		homes, err := hostpaths.Homes(cfg.Home)
		if err != nil {
			return nil, err
		}
		r.homes, r.secrets = homes, hostpaths.Secrets()
	}
	return r, nil
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

// check decides on a source by its path as given and as resolved, both clean.
func (r *rules) check(given, resolved string, writable bool) error {
	refuse := func(rule string) error {
		return &ForbiddenError{Path: given, Resolved: resolved, Rule: rule}
	}
	for _, p := range []string{given, resolved} {
		if p == "/" && !r.whole {
			return refuse("is the whole host; name the directories that are needed")
		}
		for _, dir := range reserved {
			if hostpaths.Within(p, dir) {
				return refuse("lies under " + dir + ", which shows the host's kernel and processes")
			}
		}
		for _, own := range r.private {
			if hostpaths.Within(p, own) {
				return refuse("lies in the runtime's own directory " + own)
			}
			if hostpaths.Within(own, p) && !r.overlaid {
				return refuse("contains the runtime's own directory " + own)
			}
		}
		if r.overlaid {
			if secret := r.secretAbove(p); secret != "" {
				return refuse("lies in " + secret + ", which holds secrets; bind the needed files alone")
			}
		}
		if rule := hostpaths.NeverWritable(p); writable && rule != "" {
			return refuse(rule)
		}
	}
	inside := func(root string) bool { return hostpaths.Within(resolved, root) }
	if writable && r.roots != nil && !slices.ContainsFunc(r.roots, inside) {
		return refuse("lies outside the workspace roots " + strings.Join(r.roots, ", "))
	}
	return nil
}
