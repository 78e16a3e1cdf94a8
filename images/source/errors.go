package source

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"unicode"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
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

// An answerError is an unexpected answer of a server.
type answerError struct {
	status  int
	message string
}

func (e *answerError) Error() string { return e.message }

// moreBytes is the way out of a refusal by Options.MaxBytes or its default. It is empty for other errors.
func moreBytes(err error) string {
	if errors.As(err, new(*inflate.NoRoomError)) {
		return "; make room, or allow more with --max-bytes"
	}
	if errors.As(err, new(*inflate.TooLargeError)) {
		return "; allow more with --max-bytes"
	}
	return ""
}

// isMissing says that a place lacks an object.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || statusOf(err) == http.StatusNotFound
}

// statusOf is the status of the answer that an error is about, or 0.
func statusOf(err error) int {
	if answer, ok := errors.AsType[*answerError](err); ok {
		return answer.status
	}
	if token, ok := errors.AsType[*transport.Error](err); ok { // an answer of a token server
		return token.StatusCode
	}
	return 0
}

// wayOut says how the user can get the image of a registry in spite of the error. It is empty for other errors.
func wayOut(err error, host string) string {
	status := statusOf(err)
	switch {
	case status == http.StatusNotFound:
		return "; check the name, and the tag or digest"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "; check the name, or log in with: docker login " + host + ", or podman login " + host
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "; name your own certificate authority with SSL_CERT_FILE in the environment"
	}
	return ""
}
