package record

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Place is a directory in which a sandbox's files can be changed, except /tmp, /var/tmp and /run. One of
// Tree, Area, Host and Same says where its files are.
type Place struct {
	// Path is inside, and for a tree on the host as well.
	Path string `json:"path"`
	// Tree is an overlay.
	Tree *Tree `json:"-"`
	// Area is the name of a directory of the sandbox's own, in the store.
	Area string `json:"-"`
	// Host is a directory of the host's that is written to itself.
	Host string `json:"host,omitempty"`
	// Same is the path of the tree that this is, too.
	Same string `json:"same,omitempty"`
}

// Places are a sandbox's, those nearer to the root first.
func (r Record) Places() []Place {
	var all []Place
	taken := map[string]bool{}
	add := func(p Place) {
		if !taken[p.Path] {
			taken[p.Path] = true
			all = append(all, p)
		}
	}
	for i := range r.Trees {
		add(Place{Path: r.Trees[i].Path, Tree: &r.Trees[i]})
	}
	for _, p := range r.aliases() {
		add(p)
	}
	for _, b := range r.Config.Binds {
		if info, err := os.Stat(b.Source); b.Writable && err == nil && info.IsDir() {
			add(Place{Path: b.Target, Host: b.Source})
		} else {
			taken[b.Target] = true
		}
	}
	switch dir := r.Config.Workspace; {
	case dir == "":
		add(Place{Path: spec.WorkspacePath, Area: "workspace"})
	case r.TreeAt(dir) != nil:
		add(Place{Path: spec.WorkspacePath, Same: dir})
	default:
		add(Place{Path: spec.WorkspacePath, Host: dir})
	}
	add(Place{Path: spec.HomePath, Area: "home"})
	slices.SortStableFunc(all, func(a, b Place) int {
		return cmp.Or(cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/")), cmp.Compare(a.Path, b.Path))
	})
	return all
}

// aliases are the second places of trees, and of the trees that are mounted below these.
func (r Record) aliases() (all []Place) {
	for _, tree := range r.Trees {
		if tree.Alias == "" {
			continue
		}
		for _, t := range r.Trees {
			if rel, below := strings.CutPrefix(t.Path+"/", tree.Path+"/"); below {
				all = append(all, Place{Path: path.Join(tree.Alias, rel), Same: t.Path})
			}
		}
	}
	return all
}

// An Attachment is intent: a directory becomes the workspace of the sandbox.
type Attachment struct {
	Dir    string      `json:"dir"`
	Device uint64      `json:"device"`
	Inode  uint64      `json:"inode"`
	Disks  []spec.Disk `json:"disks,omitempty"`
	// Limit says whether the directory bounds the writes to it.
	Limit spec.Enforcement `json:"limit"`
}

// NewAttachment is the intent to attach a tree to the sandbox of the next record.
func NewAttachment(tree *os.File, next Record) (*Attachment, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", tree.Name(), err)
	}
	return &Attachment{Dir: next.Config.Workspace, Device: st.Dev, Inode: st.Ino, Disks: next.Disks, Limit: next.Limits.Disk}, nil
}

// TakesWorkspace refuses a workspace that would hide a bind.
func (r Record) TakesWorkspace() error {
	for _, b := range r.Config.Binds {
		if b.Target == spec.WorkspacePath || strings.HasPrefix(b.Target, spec.WorkspacePath+"/") {
			return &fault.ConfigError{Reason: fmt.Sprintf("workspace: it would hide the bind at %s", b.Target)}
		}
	}
	return nil
}
