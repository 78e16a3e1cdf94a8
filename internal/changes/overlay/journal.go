package overlay

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A Journal says how far a transaction has come. The directory of the transaction holds it.
type Journal struct {
	State txState `json:"state"`
	// Owner is the process that runs the transaction.
	Owner process.ID `json:"owner"`
	// Since is the time of making the layers, Joined the time when they began to join.
	Since  time.Time `json:"since"`
	Joined time.Time `json:"joined,omitzero"`
	// Places are the covered places, in the order of the layers.
	Places []record.Place `json:"places"`
	// Done is the number of places for which the step of State is complete.
	Done int `json:"done"`
	// Until is the number of places to undo. 0: all of them.
	Until int `json:"until,omitempty"`
	// Ours are the times in which the runtime itself has changed files and directories: when the
	// transaction joined, and when others were undone since. For files, stamps are more exact.
	Ours []span `json:"ours,omitempty"`
	// Undoing is the time since when the transaction is being undone, with the changed paths.
	Undoing *span `json:"undoing,omitempty"`
}

// A span is a time in which the runtime has changed files: Paths, or, without Paths, all files
// that have changed in that time.
type span struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Paths []string  `json:"paths,omitempty"`
}

// contains says whether the runtime has made a change of this path at this time.
func (s span) contains(path string, ctime time.Time) bool {
	return !ctime.Before(s.From) && !ctime.After(s.To) && (s.Paths == nil || slices.Contains(s.Paths, path))
}

// txState says how a transaction ends whose owner has ended.
type txState string

const (
	txRuns txState = "runs" // it never happened
	// TxJoins is the state in which the rest of the changes has still to join.
	TxJoins   txState = "joins"
	txJoined  txState = "joined"  // it can be undone
	txUndoing txState = "undoing" // the rest is to be undone
)

const journalName = "journal"

// Write puts the journal in the transaction's directory.
func (j *Journal) Write(dir *os.File) error {
	if err := statedir.ReplaceJSON(StorePath(dir, journalName), j); err != nil {
		return fmt.Errorf("journal of a transaction: %w", err)
	}
	return nil
}

// readJournal reads that of a transaction's directory.
func readJournal(dir *os.File) (j Journal, err error) {
	data, err := readIn(dir, journalName)
	if err == nil {
		err = json.Unmarshal(data, &j)
	}
	if err != nil {
		return j, fmt.Errorf("journal of a transaction: %w", err)
	}
	return j, nil
}
