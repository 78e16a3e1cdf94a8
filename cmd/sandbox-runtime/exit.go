package main

import (
	"errors"
	"strconv"
)

// exitError is how a command asks for an exit status other than 0 and 1. With
// a nil err nothing is printed: the status is the command's answer, not a
// failure of this program.
type exitError struct {
	code int
	err  error
	// plain: the message is for a person, also where those of the command are
	// else worded and logged for daemons.
	plain bool
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "exit status " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitWith is the error for a process's own exit status: nil for 0.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// exitCode is the status main ends with; message is nil if nothing is to be
// said.
func exitCode(err error) (code int, message error) {
	var e *exitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &e):
		return 1, err
	case e.err == nil:
		return e.code, nil
	}
	return e.code, err
}
