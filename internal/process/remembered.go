package process

import "sync/atomic"

// remembered is a value that does not change. It is looked for until there is an answer without an error.
type remembered[T any] struct{ value atomic.Pointer[T] }

func (r *remembered[T]) get(find func() (T, error)) (T, error) {
	if known := r.value.Load(); known != nil {
		return *known, nil
	}
	value, err := find()
	if err == nil {
		r.value.Store(&value)
	}
	return value, err
}
