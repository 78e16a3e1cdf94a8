package integrity

import "testing"

func TestUnwrittenBytesAreRead(t *testing.T) {
	n, err := unwrittenBytes()
	if err != nil || n < 0 {
		t.Error(n, err)
	}
}
