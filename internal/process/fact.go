package process

import "sync/atomic"

// A fact is a value that does not change during the life of this process.
type fact[T any] struct{ value atomic.Pointer[T] }

// get returns the value. It calls find until find returns no error, and keeps the value of that call.
func (f *fact[T]) get(find func() (T, error)) (T, error) {
	if known := f.value.Load(); known != nil {
		return *known, nil
	}
	value, err := find()
	if err == nil {
		f.value.Store(&value)
	}
	return value, err
}
