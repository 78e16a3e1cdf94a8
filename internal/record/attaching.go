package record

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An Attaching is intent: a directory becomes the workspace of the sandbox.
type Attaching struct {
	Dir    string      `json:"dir"`
	Device uint64      `json:"device"`
	Inode  uint64      `json:"inode"`
	Disks  []spec.Disk `json:"disks,omitempty"`
	// Limit says whether the directory bounds the writes to it.
	Limit spec.Enforcement `json:"limit"`
}

// NewAttaching is the intent to attach a tree to the sandbox of the next record.
func NewAttaching(tree *os.File, next Record) (*Attaching, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", tree.Name(), err)
	}
	return &Attaching{Dir: next.Config.Workspace, Device: st.Dev, Inode: st.Ino, Disks: next.Disks, Limit: next.Limits.Disk}, nil
}

// TakesWorkspace refuses a workspace that would hide a bind.
func (r Record) TakesWorkspace() error {
	for _, b := range r.Config.Binds {
		if b.Target == spec.WorkspacePath || strings.HasPrefix(b.Target, spec.WorkspacePath+"/") {
			return &launch.ConfigError{Reason: fmt.Sprintf("workspace: it would hide the bind at %s", b.Target)}
		}
	}
	return nil
}
