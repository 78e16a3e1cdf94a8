package tenant

import (
	"fmt"
	"strings"
)

// MaxID is how long an id may be, in bytes.
const MaxID = 128

const idLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.@+=-"

// An IDError says why the id of a user or a session is refused.
type IDError struct{ ID string }

func (e *IDError) Error() string {
	return fmt.Sprintf("id %.64q: use 1 to %d letters, digits and any of _.@+=-, and begin with a letter, a digit or _", e.ID, MaxID)
}

// CheckID refuses with an [*IDError] an id that is no plain name, as "..", or that a shell
// or a listing would take for something else. Ids differ in capitals, as names of files
// do.
func CheckID(id string) error {
	if id == "" || len(id) > MaxID || strings.ContainsRune(".@+=-", rune(id[0])) || strings.Trim(id, idLetters) != "" {
		return &IDError{id}
	}
	return nil
}
