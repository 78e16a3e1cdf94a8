package commandline

import (
	"errors"
	"strconv"
)

// ExitError is how a command asks for an exit status other than 0 and 1. With
// a nil err nothing is printed: the status is the command's answer, not a
// failure of this program.
type ExitError struct {
	Code int
	Err  error
	// Plain: the message is for a person, also where those of the command are
	// else worded and logged for daemons.
	Plain bool
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return "exit status " + strconv.Itoa(e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// ExitWith is the error for a process's own exit status: nil for 0.
func ExitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &ExitError{Code: code}
}

// ExitCode is the status main ends with; message is nil if nothing is to be
// said.
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
