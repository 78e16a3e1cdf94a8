package commandline

import (
	"errors"
	"strconv"
)

// ExitError is the error of a command that ends with a status other than 0 and 1. If Err is
// nil, nothing is printed: the status is the command's answer, and no failure of this program.
type ExitError struct {
	Code int
	Err  error
	// Plain marks a message for a person, of a command whose other messages are for daemons.
	Plain bool
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return "exit status " + strconv.Itoa(e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// ExitWith returns the error that carries the exit status of a process; nil for status 0.
func ExitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &ExitError{Code: code}
}

// ExitCode returns the status of this program, and the message to print. The message is nil if
// there is nothing to print.
func ExitCode(err error) (code int, message error) {
	var e *ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &e):
		return 1, err
	case e.Err == nil:
		return e.Code, nil
	}
	return e.Code, err
}
