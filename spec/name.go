package spec

import (
	"fmt"
	"strings"
)

// MaxName bounds the name of a sandbox, so that a file's name can hold it with a prefix.
const MaxName = 128

// CheckName refuses a text that cannot name a sandbox. A name has letters, digits and "_+-.", as libcontainer's ids
// have them. The first character is no "+", "-" or ".", so that a name is neither a flag nor a hidden file.
func CheckName(s string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-."
	if s == "" || strings.ContainsRune("+-.", rune(s[0])) || len(s) > MaxName || strings.Trim(s, allowed) != "" {
		return fmt.Errorf("invalid name %.64q: use 1 to %d letters, digits, and any of _+-. and begin with a letter, a digit or _", s, MaxName)
	}
	return nil
}
