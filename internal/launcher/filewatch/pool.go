package filewatch

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/watch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// MaxGroups is how many groups a launcher watches files with, of the 128 that a
// user has for all programs, before sandboxes share them.
const MaxGroups = 16

// A Pool has the groups that files are watched with.
type Pool struct {
	mu  sync.Mutex
	all []*Group
}

// A Group is used by several sandboxes, unless it watches for one sandbox alone.
type Group struct {
	*watch.Group
	users int
	alone bool
}

// Take returns a group, of which one sandbox has all if it has to be alone: two
// that write to one file system of the host's could not be told apart.
func (p *Pool) Take(alone bool) (*Group, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var least *Group
	for _, g := range p.all {
		if !g.alone && (least == nil || g.users < least.users) {
			least = g
		}
	}
	if !alone && least != nil && len(p.all) >= MaxGroups {
		least.users++
		return least, nil
	}
	if len(p.all) >= 2*MaxGroups {
		return nil, fmt.Errorf("files of %d sandboxes are watched: it is %w for more", len(p.all), fault.ErrUnavailable)
	}
	group, err := watch.Open()
	if err != nil && !alone && least != nil {
		least.users++
		return least, nil
	}
	if err != nil {
		return nil, err
	}
	g := &Group{Group: group, users: 1, alone: alone}
	p.all = append(p.all, g)
	return g, nil
}

// Leave gives up a group, and closes it after its last user.
func (p *Pool) Leave(g *Group) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.users--; g.users > 0 {
		return nil
	}
	i := slices.Index(p.all, g)
	if i < 0 {
		return errors.New("a group that was closed before")
	}
	p.all = slices.Delete(p.all, i, i+1)
	return g.Close()
}
