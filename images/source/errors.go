package source

import (
	"strings"
	"unicode"
)

// maxMessage bounds a message: a part of it may come from a server.
const maxMessage = 600

// readableError is an error whose message is one line without control characters.
type readableError struct {
	message string
	error
}

func (e readableError) Error() string { return e.message }
func (e readableError) Unwrap() error { return e.error }

// readable keeps text of servers from the terminal of the user.
func readable(err error) error {
	return readableError{line(err.Error(), maxMessage), err}
}

// line is the text as one line of at most limit bytes.
func line(text string, limit int) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + " ..."
	}
	return text
}
