package apply

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

// marksVariable has the marks of the layer's directories.
const marksVariable = "SANDBOX_RUNTIME_APPLY_TEST_MARKS"

// applyRole applies a layer, the second argument, to a tree. What is there counts
// as seen: the tests make trees anew.
func applyRole(args []string) error {
	tree, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer tree.Close() // not before: a plan keeps its number only
	upper, err := os.Open(args[1])
	if err != nil {
		return err
	}
	defer upper.Close()
	s := &layer.Stack{Layers: []layer.Layer{{Dir: upper}}, Base: tree}
	if told := os.Getenv(marksVariable); told != "" { // of a user that may not read them
		if err := json.Unmarshal([]byte(told), &s.Layers[0].Marks); err != nil {
			return err
		}
	}
	p, err := New(s, tree, Options{Paths: args[2:], Since: time.Now().Add(time.Hour), Setuid: true})
	if err != nil {
		return err
	}
	_, err = p.Commit(context.Background())
	return errors.Join(err, p.Close())
}

func recoverRole(args []string) error {
	tree, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer tree.Close()
	_, err = Recover(tree, false, nil)
	return err
}
