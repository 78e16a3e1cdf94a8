package commandline

import (
	"encoding/json"
	"fmt"
	"io"
)

// PrintEach prints one line for each value.
func PrintEach[T any](w io.Writer, all []T, line func(T) string) error {
	for _, one := range all {
		if _, err := fmt.Fprintln(w, line(one)); err != nil {
			return err
		}
	}
	return nil
}

// PrintEachJSON prints one JSON object on each line.
func PrintEachJSON[T any](w io.Writer, all []T) error {
	out := json.NewEncoder(w)
	for _, one := range all {
		if err := out.Encode(one); err != nil {
			return err
		}
	}
	return nil
}
