package cgroups

import "context"

// Thaw thaws the group, and waits until it is thawed.
func (g *Group) Thaw(ctx context.Context) error {
	f, err := g.processes().freezer()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Thaw(); err != nil {
		return err
	}
	for p := (pause{}); ; {
		if done, err := f.hasLine(f.thawed); done || err != nil {
			return err
		}
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
}
