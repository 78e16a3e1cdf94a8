package sandbox

import (
	"context"
	"errors"
	"time"
)

// A departure is a removal that was put off. The Manager's mutex guards its fields.
type departure struct {
	sandbox *Sandbox
	at      time.Time
	timer   *time.Timer
	// held counts the calls that ask for the sandbox now. The timer stands still meanwhile.
	held int
	// begun says that the removal cannot be called off any more. gone is closed after the removal.
	begun bool
	gone  chan struct{}
}

// CloseAfter is Close at a later time, for a sandbox that may be wanted again soon: Up or
// Get of the same Manager, with its id, keep the sandbox. Until then its commands go on,
// and this Sandbox is closed. Of two times for one sandbox the later one counts.
// [Manager.Close] removes such sandboxes at once, and returns the errors of all such removals.
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
	if m.closing {
		return errorAbout(s.info.ID, errManagerClosed)
	}
	at := time.Now().Add(grace)
	if d := m.leaving[s.info.ID]; d != nil {
		if at.After(d.at) && !d.begun {
			d.at = at
			if d.held == 0 {
				d.timer.Reset(grace) // also if the timer has fired: leave looks at the time again
			}
		}
		return nil
	}
	d := &departure{sandbox: s, at: at, gone: make(chan struct{})}
	d.timer = time.AfterFunc(grace, func() { m.depart(d) })
	m.leaving[s.info.ID] = d
	return nil
}

// depart carries out a departure at its time.
func (m *Manager) depart(d *departure) {
	m.mu.Lock()
	isTime := m.leaving[d.sandbox.info.ID] == d && !d.begun && d.held == 0 && !time.Now().Before(d.at)
	d.begun = d.begun || isTime
	m.mu.Unlock()
	if isTime {
		m.remove(d)
	}
}

// remove carries out a departure that has begun.
func (m *Manager) remove(d *departure) {
	err := d.sandbox.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.late = append(m.late, err)
	}
	delete(m.leaving, d.sandbox.info.ID)
	close(d.gone)
}

// holdDeparture puts off the departure of a sandbox, or waits until the sandbox has left. The caller must then call tell with
// whether it has got the sandbox: true calls the departure off, false lets it happen at its time.
func (m *Manager) holdDeparture(ctx context.Context, id string) (tell func(isKept bool), err error) {
	m.mu.Lock()
	d := m.leaving[id]
	stays := d != nil && !d.begun
	if stays {
		d.held++
		d.timer.Stop()
	}
	m.mu.Unlock()
	if stays {
		return func(isKept bool) { m.release(d, isKept) }, nil
	}
	if d != nil {
		select {
		case <-d.gone:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func(bool) {}, nil
}

// release ends a call that has held a departure.
func (m *Manager) release(d *departure, isKept bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d.held--
	if d.begun || m.leaving[d.sandbox.info.ID] != d { // by Manager.Close, or another call has got the sandbox
		return
	}
	if isKept {
		delete(m.leaving, d.sandbox.info.ID)
	} else if d.held == 0 {
		d.timer.Reset(time.Until(d.at))
	}
}

// settle carries out all departures, and returns their errors. From then on there is no other.
func (m *Manager) settle() error {
	m.mu.Lock()
	m.closing = true
	var left []*departure
	for _, d := range m.leaving {
		if !d.begun {
			d.begun = true
			d.timer.Stop()
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
