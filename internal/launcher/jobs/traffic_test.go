package jobs

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestCountsThatBeginAnewAreUnknown(t *testing.T) {
	some, more := &spec.Traffic{Received: 5, Sent: 5}, &spec.Traffic{Received: 5, Sent: 6}
	for _, c := range []struct {
		before, now *spec.Traffic
		want        bool
	}{
		{some, more, true},
		{some, some, true},
		{more, some, false},
		{some, &spec.Traffic{}, false},
		{&spec.Traffic{Requests: 5}, &spec.Traffic{Requests: 1}, false},
		{&spec.Traffic{Refused: 5}, &spec.Traffic{Refused: 1}, false},
		{nil, some, false},
		{some, nil, false},
	} {
		if got := isCount(c.before, c.now); got != c.want {
			t.Errorf("%+v, then %+v: %v", c.before, c.now, got)
		}
	}
}
