package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// checkTime bounds how long the end of a command waits for others that check the
// same sandbox.
const checkTime = 10 * time.Second

// TellDamage adds to a command's result that writes to the sandbox's files were lost,
// by this command or before. It syncs only where the host is short of room.
func (p *Process) TellDamage(r *spec.Result) {
	box := p.Live.Current()
	l := p.Live.all
	if !box.Backend(l.Roots).Durable() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	switch err := integrity.Verify(ctx, l.Roots, box, integrity.ShortOfRoom(l.Data)); {
	case errors.Is(err, launch.ErrDamaged):
		r.Damaged = true
		r.Violations = append(r.Violations, limitHit("the sandbox %v", err))
		r.Reason += "; the sandbox " + err.Error()
	case err != nil && !errors.Is(err, store.ErrAbandoned) && !errors.Is(err, fs.ErrNotExist): // else it is being removed
		r.Notes = append(r.Notes, fmt.Sprintf("it is not known whether all that was written is on disk: %v", err))
	}
}
