package sandbox

import (
	"context"
	"errors"
	"time"
)

// A departure is a removal that was put off.
type departure struct {
	sandbox *Sandbox
	timer   *time.Timer
	gone    chan struct{} // closed when it was carried out
}

// CloseAfter is Close at a later time, for a sandbox that may be wanted again soon: Up or
// Get of the same Manager, with its id, keep the sandbox. Until then its commands go on,
// and this Sandbox is closed. [Manager.Close] removes such sandboxes at once, and returns
// the errors of all such removals.
func (s *Sandbox) CloseAfter(grace time.Duration) error {
	if s.instance == nil {
		return nil
	}
	if s.closed.Swap(true) {
		return nil // it is closed, or going to be
	}
	m := s.manager
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return about(s.info.ID, errManagerClosed)
	}
	if m.leaving[s.info.ID] != nil {
		return nil
	}
	d := &departure{sandbox: s, gone: make(chan struct{})}
	d.timer = time.AfterFunc(grace, func() { m.remove(d) })
	m.leaving[s.info.ID] = d
	return nil
}

// remove carries out a departure.
func (m *Manager) remove(d *departure) {
	err := d.sandbox.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = append(m.late, err)
	delete(m.leaving, d.sandbox.info.ID)
	close(d.gone)
}

// keep calls off the departure of a sandbox, or waits until it has left.
func (m *Manager) keep(ctx context.Context, id string) error {
	m.mu.Lock()
	d := m.leaving[id]
	if d != nil && d.timer.Stop() {
		delete(m.leaving, id)
		d = nil
	}
	m.mu.Unlock()
	if d == nil {
		return nil
	}
	select {
	case <-d.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle carries out all departures, and returns their errors.
func (m *Manager) settle() error {
	m.mu.Lock()
	var left []*departure
	for _, d := range m.leaving {
		if d.timer.Stop() {
			go m.remove(d)
		}
		left = append(left, d)
	}
	m.mu.Unlock()
	for _, d := range left {
		<-d.gone
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.late...)
}
