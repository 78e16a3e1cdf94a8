package descriptor_test

import (
	"errors"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

func TestAcceptAllGoesOnAfterErrors(t *testing.T) {
	fault := errors.New("fault")
	for _, test := range []struct {
		results []error
		failed  func(error) error
		served  []int
		want    error
	}{
		{[]error{nil, unix.EMFILE, unix.EMFILE, nil, net.ErrClosed, nil}, nil, []int{0, 3}, net.ErrClosed},
		{[]error{nil, unix.EMFILE, nil, unix.EINVAL, nil}, func(err error) error {
			if errors.Is(err, unix.EMFILE) {
				return nil
			}
			return fault
		}, []int{0, 2}, fault},
	} {
		n := -1
		accept := func() (int, error) {
			n++
			return n, test.results[n]
		}
		var served []int
		err := descriptor.AcceptAll(accept, func(c int) { served = append(served, c) }, test.failed)
		if !errors.Is(err, test.want) || !slices.Equal(served, test.served) {
			t.Errorf("served %v, %v; want %v, %v", served, err, test.served, test.want)
		}
	}
}
