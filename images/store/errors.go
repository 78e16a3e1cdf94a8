package store

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotFound says that the user has no such image.
var ErrNotFound = errors.New("no such image")

// An InUseError says that sandboxes or snapshots use an image.
type InUseError struct {
	Image Digest
	Users []string // the names that [User.Use] was called with
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("image %s is in use by %s; first remove these with down or snapshot --remove, or run prune if a killed command has left them", e.Image, strings.Join(e.Users, ", "))
}

// A DamagedError says that content in the store is not the content of its digest.
type DamagedError struct {
	Object string // such as "layer sha256:..."
	Reason string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s is damaged: %s; pull the image again", e.Object, e.Reason)
}

// An operationError is an error of one line.
type operationError struct {
	operation string
	err       error
}

func (e *operationError) Error() string { return e.operation + ": " + oneLine(e.err) }
func (e *operationError) Unwrap() error { return e.err }

// during names the operation of an error.
func during(operation string, err error) error {
	if err == nil {
		return nil
	}
	return &operationError{operation, err}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
