package userns

import "testing"

func TestExtents(t *testing.T) {
	const base = 1 << 20
	for _, test := range []struct{ inside, host uint32 }{{0, 7}, {1, 7}, {1000, 1000}, {IDCount - 1, 7}} {
		m := extents(base, test.inside, test.host)
		size := 0
		for _, e := range m {
			if e.ContainerID != size || e.Size < 1 {
				t.Errorf("%+v: %+v", test, m)
			}
			size += e.Size
		}
		if size != IDCount {
			t.Errorf("%+v maps %d ids", test, size)
		}
		for inside := range uint32(IDCount) {
			want := int(base + inside)
			if inside == test.inside {
				want = int(test.host)
			}
			if got := hostID(m, inside); got != want {
				t.Fatalf("%+v: id %d is %d", test, inside, got)
			}
		}
	}
	if m := extents(base, 5, base+5); len(m) != 1 {
		t.Errorf("%+v", m)
	}
}
