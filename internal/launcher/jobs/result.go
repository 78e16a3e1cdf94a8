package jobs

import (
	"encoding/json"
	"errors"
	"io"
	"math"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// resultName is the file for the Result of a detached exec. Each attached client has the file open, also after its
// removal. After the end of the command each client locks the file. The first one makes the Result and writes it
// there. The others read it.
const resultName = "result"

// unlock lets the next client have the lock. An exec that is not detached has none.
func (d *detachedExec) unlock() {
	if d != nil {
		descriptor.Unlock(d.result)
	}
}

// readResult returns the Result that another client has written. It returns false if there is none, or only a part
// because that client was killed.
func (d *detachedExec) readResult() (spec.Result, bool, error) {
	data, err := io.ReadAll(io.NewSectionReader(d.result, 0, math.MaxInt64))
	if err != nil {
		return spec.Result{}, false, err
	}
	var r protocol.WireResult
	known := json.Unmarshal(data, &r) == nil
	return r.Plain(), known, nil
}

func (d *detachedExec) writeResult(r spec.Result) error {
	data, err := json.Marshal(protocol.NewWireResult(r))
	if err != nil {
		return err
	}
	if err := d.result.Truncate(0); err != nil {
		return err
	}
	_, err = d.result.WriteAt(data, 0)
	return err
}

// concludeOnce is conclude for a detached command, with the lock held. All clients get the same Result.
func (p *Process) concludeOnce(exit agent.Exit, waitErr error) (spec.Result, error) {
	r, known, err := p.Kept.readResult()
	if err != nil {
		return spec.Result{}, errors.Join(err, p.giveUp())
	}
	if known {
		p.Live.Leaves.retire(p.Leaf)
		return r, p.forget()
	}
	if r, err = p.conclude(exit, waitErr, false); err != nil {
		return r, err
	}
	p.drain(&r)
	if err := p.Kept.writeResult(r); err != nil {
		r.Notes = append(r.Notes, "other clients that wait for this command may get another result: "+err.Error())
	}
	return r, p.forget()
}
