package launcher

import (
	"errors"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// A badConfig is a *launch.ConfigError that still is what the parts called it.
type badConfig struct{ err error }

// configError says that what was asked for is wrong.
func configError(err error) error {
	var already *launch.ConfigError
	if err == nil || errors.As(err, &already) {
		return err
	}
	return badConfig{err}
}

func (e badConfig) Error() string { return e.err.Error() }

func (e badConfig) Unwrap() []error {
	return []error{&launch.ConfigError{Reason: e.err.Error()}, e.err}
}

// unavailable is a [launch.ErrUnavailable] that says by itself what is missing.
type unavailable struct{ error }

func (e unavailable) Unwrap() []error { return []error{launch.ErrUnavailable, e.error} }
