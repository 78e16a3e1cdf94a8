package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// A Journal says how far a transaction has come. It is in its directory in the
// store, and ends with that.
type Journal struct {
	State txState `json:"state"`
	// Owner is the process that runs it.
	Owner process.ID `json:"owner"`
	// Since is when the layers were made, Joined when they began to join.
	Since  time.Time `json:"since"`
	Joined time.Time `json:"joined,omitzero"`
	// Places are what it covered, in the order of its layers.
	Places []record.Place `json:"places"`
	// Done is how many of the places have been dealt with, of what State is about.
	Done int `json:"done"`
	// Until is how many of them are to be undone, if not all.
	Until int `json:"until,omitempty"`
	// Ours are the times in which the runtime has changed files, by its joining and
	// by what was undone since.
	Ours []span `json:"ours,omitempty"`
	// Undoing is since when it is being undone, and what that changes.
	Undoing *span `json:"undoing,omitempty"`
}

// A span is some time in which the runtime has changed files: these, or without any
// all that have changed.
type span struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Paths []string  `json:"paths,omitempty"`
}

// has says whether a file that changed at some time is the runtime's doing.
func (s span) has(path string, ctime time.Time) bool {
	return !ctime.Before(s.From) && !ctime.After(s.To) && (s.Paths == nil || slices.Contains(s.Paths, path))
}

// txState is what is to become of a transaction whose owner has ended.
type txState string

const (
	txRuns    txState = "runs"    // it never happened
	TxJoins   txState = "joins"   // the rest is to join
	txJoined  txState = "joined"  // it can be undone
	txUndoing txState = "undoing" // the rest is to be undone
)

const journalName = "journal"

// Write puts the journal in the transaction's directory.
func (j *Journal) Write(dir *os.File) error {
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(int(dir.Fd()), journalName+".new", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("journal of a transaction: %w", err)
	}
	f := os.NewFile(uintptr(fd), journalName)
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("journal of a transaction: %w", err)
	}
	return unix.Renameat(int(dir.Fd()), journalName+".new", int(dir.Fd()), journalName)
}

// readJournal reads that of a transaction's directory.
func readJournal(dir *os.File) (j Journal, err error) {
	fd, err := unix.Openat(int(dir.Fd()), journalName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return j, fmt.Errorf("journal of a transaction: %w", err)
	}
	f := os.NewFile(uintptr(fd), journalName)
	defer f.Close()
	data, err := io.ReadAll(f)
	if err == nil {
		err = json.Unmarshal(data, &j)
	}
	if err != nil {
		return j, fmt.Errorf("journal of a transaction: %w", err)
	}
	return j, nil
}
