package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// stillTime bounds the wait until all processes of a sandbox stand still before a join. A process
// that waits for a disk can delay this.
const stillTime = 30 * time.Second

// errNoFreezer is the condition of a host that cannot keep the processes of a sandbox still.
var errNoFreezer = errors.New("the host has no freezer")

// whileStill calls f while all processes of the sandbox stand still, also if the sandbox was not paused
// before. The record says so first: if this process is killed, the processes stay still until
// [Files.FinishJoin]. f returns false if it has left work half done, which has the same effect. The
// caller must hold the sandbox.
//
// On a host without a freezer whileStill calls f beside the processes, and returns errNoFreezer in note.
// Other notes are about processes that do not go on.
func (v *Files) whileStill(f func() (ended bool, err error)) (note, err error) {
	r, err := record.Read(v.Path())
	if err != nil {
		return nil, record.NotFound(v.ID, err)
	}
	r.Join = &record.Join{Paused: v.Paused()}
	if err := v.Keep(r); err != nil {
		return nil, err
	}
	err = v.stop(r)
	if errors.Is(err, errors.ErrUnsupported) {
		note, err = errNoFreezer, nil
	}
	if err != nil {
		return nil, errors.Join(err, v.resume(r))
	}
	ended, err := f()
	if !ended {
		return note, err
	}
	if failed := v.resume(r); failed != nil {
		note = fmt.Errorf("the processes of the sandbox stand still until its next command: %w", failed)
	}
	return note, err
}

// stop freezes all processes, as the record's Join says.
func (v *Files) stop(r record.Record) error {
	if r.Join.Paused {
		return nil
	}
	return retry(stillTime, container.ErrNotFrozen, v.freeze)
}

func (v *Files) freeze() error {
	c, err := v.Container()
	if err != nil {
		return err
	}
	err = v.lift.Without(c.Pause)
	if errors.Is(err, fs.ErrPermission) { // the cgroup of an ordinary user need not have one
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}

// resume lets the processes go on that stop has frozen, and then notes the end of the join: only the
// record says that the sandbox is paused for no other reason.
func (v *Files) resume(r record.Record) error {
	if !r.Join.Paused {
		err := v.letGoOn()
		if err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, container.ErrNotRunning) {
			return err
		}
	}
	r.Join = nil
	return v.Keep(r)
}

// FinishJoin ends a join, or an undo, that was left by a process that was killed, and lets the
// processes of the sandbox go on. The caller must hold the sandbox.
func (v *Files) FinishJoin(ctx context.Context) error {
	r, err := record.Read(v.Path())
	if err != nil || r.Join == nil {
		return err
	}
	store, err := record.OpenStore(r.Init)
	if errors.Is(err, fs.ErrNotExist) { // the sandbox is ending
		return nil
	}
	if err != nil {
		return err
	}
	defer store.Close()
	// The process can have been killed before it froze the others. Then it has changed no file.
	if err := inTurn(ctx, store, func() error { return v.keeper.resumeIn(ctx, r, store) }); err != nil {
		return err
	}
	return v.resume(r)
}
