package fault

import "errors"

// A refusal is a *[ConfigError] that still is the error of the part that refused.
type refusal struct{ err error }

// Refusal turns the error of a part into a *[ConfigError]: the caller asked for something
// wrong. errors.Is and errors.As still find the part's error.
func Refusal(err error) error {
	if err == nil || errors.As(err, new(*ConfigError)) {
		return err
	}
	return refusal{err}
}

func (e refusal) Error() string { return e.err.Error() }

func (e refusal) Unwrap() []error { return []error{&ConfigError{Reason: e.err.Error()}, e.err} }

// An unavailable is an [ErrUnavailable] whose own text names the missing part.
type unavailable struct{ error }

// Unavailable turns an error into an [ErrUnavailable] with the same text.
func Unavailable(err error) error { return unavailable{err} }

func (e unavailable) Unwrap() []error { return []error{ErrUnavailable, e.error} }
