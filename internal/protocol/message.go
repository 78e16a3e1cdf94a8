package protocol

import (
	"cmp"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Create asks for a sandbox.
type Create struct {
	// Name becomes its id; empty: one that is unique on the host is made up.
	Name string `json:"name,omitempty"`
	// Reuse takes the sandbox of that name if it is up and healthy, and
	// replaces it if it is not. Without it, a name that is taken is an error.
	Reuse  bool        `json:"reuse,omitempty"`
	Config spec.Config `json:"config"`
	// From is the snapshot whose files it begins with.
	From string `json:"from,omitempty"`
	// Tied ends the sandbox with the connection that asked for it, for the one command of
	// "do". Without it the sandbox stays until it is removed, also if client and launcher
	// die.
	Tied bool `json:"tied,omitempty"`
	// Path and Home are of the caller's environment: the language interpreters
	// that Path leads to are shown in a sandbox with the host's own root.
	Path string `json:"path,omitempty"`
	Home string `json:"home,omitempty"`
	// Upstream has the proxies of Config.UpstreamProxy, with their passwords. Nil: the field is empty.
	Upstream *spec.Upstream `json:"upstream,omitempty"`
	// Named is as in a [NetworkRequest].
	Named []string `json:"-"`
}

// A CreateRequest is a [Create], with the paths that the descriptors beside the request were opened by, in the same order.
type CreateRequest struct {
	Create *Create  `json:"create"`
	Paths  []string `json:"paths,omitempty"`
}

// A WorkspaceRequest has the directory that becomes the workspace of a sandbox, and paths as in a [CreateRequest].
type WorkspaceRequest struct {
	Workspace string   `json:"workspace"`
	Paths     []string `json:"paths,omitempty"`
}

// Beginning is the part of a snapshot's configuration that a fork takes over.
type Beginning struct {
	Overlays []string `json:"overlays,omitempty"`
	Cwd      string   `json:"cwd,omitempty"`
	// Image is the id of the image whose root is below a layer of the snapshot.
	Image string `json:"image,omitempty"`
}

// Resolve has a request take over the beginning: the image if it names none, and the overlays if it names none.
func (b Beginning) Resolve(c *spec.Config) {
	if b.Image != "" && c.Image == "" && c.Rootfs == "" {
		c.Image, c.Writable = b.Image, true
	}
	if len(c.Overlays) > 0 {
		return
	}
	c.Overlays = b.Overlays
	c.Cwd = cmp.Or(c.Cwd, b.Cwd)
}
