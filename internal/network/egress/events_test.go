package egress

import (
	"fmt"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// recordOf is the record of a box, without processes.
func recordOf(t *testing.T) (Egress, *record) {
	t.Helper()
	e := Egress{Dir: t.TempDir()}
	r, err := openRecord(e.boxDir("box"))
	if err != nil {
		t.Fatal(err)
	}
	return e, r
}

// addNumbered adds an event with a number.
func (r *record) addNumbered(number int) {
	r.addEvent(fmt.Sprintf(`{"sent": %d, "name": "%01000d"}`, number, number), Counts{})
}

// The file of the newest events can become that of the older ones while a reader is slow.
func TestASlowReaderMissesNoEvent(t *testing.T) {
	e, r := recordOf(t)
	const count = 2 * maxEvents / 1000
	for i := range count {
		r.addNumbered(i)
	}
	next := -1
	for event, err := range e.Events(t.Context(), "box", false) {
		if err != nil {
			t.Fatal(err)
		}
		if next < 0 {
			for i := range maxEvents / 1000 {
				r.addNumbered(count + i)
			}
		} else if int(event.Sent) != next {
			t.Fatalf("event %d instead of %d", event.Sent, next)
		}
		next = int(event.Sent) + 1
	}
	if next < count {
		t.Errorf("the last event is %d of %d", next-1, count-1)
	}
}

// The events of a sandbox have a bound. A reader that follows them misses none.
func TestEventsAreBounded(t *testing.T) {
	testhost.Concurrent(t)
	e, r := recordOf(t)
	const count = 3 * maxEvents / 100
	seen := make(chan int)
	go func() {
		n := 0
		for event, err := range e.Events(t.Context(), "box", true) {
			if err != nil || event.Sent != int64(n) {
				t.Errorf("event %d: %+v, %v", n, event, err)
				break
			}
			if n++; n%1000 == 0 || n == count {
				seen <- n
			}
			if n == count {
				break
			}
		}
		close(seen)
	}()
	for i := range count {
		r.addEvent(fmt.Sprintf(`{"sent": %d, "name": "%090d"}`, i, i), Counts{})
		if (i+1)%1000 == 0 || i+1 == count {
			if n, ok := <-seen; !ok || n != i+1 {
				t.Fatalf("%d events of %d", n, i+1)
			}
		}
	}
	var size int64
	for _, name := range []string{eventsName, olderName} {
		info, err := os.Stat(r.path(name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 2*maxEvents || size < maxEvents {
		t.Errorf("the events have %d bytes", size)
	}
	kept, last := 0, int64(-1)
	for event, err := range e.Events(t.Context(), "box", false) {
		if err != nil || last >= 0 && event.Sent != last+1 {
			t.Fatalf("%+v after %d, %v", event, last, err)
		}
		kept, last = kept+1, event.Sent
	}
	if last != count-1 || kept < maxEvents/150 {
		t.Errorf("%d events are kept, the last is %d", kept, last)
	}
}
