package main

import "testing"

// What does not fit must not end as another limit.
func TestUpdateRefusesWhatDoesNotFit(t *testing.T) {
	h := newHost(t)
	id := h.running()
	for _, c := range []struct{ flag, value, words string }{
		{"--blkio-weight", "65546", "invalid value for blkio-weight: 65546 is not between 10 and 1000"}, // 10 in 16 bits
		{"--blkio-weight", "-1", "invalid value for blkio-weight: -1 is not"},
		{"--blkio-weight", "99999999999999999999", "flag -blkio-weight: value out of range (see "},
		{"--memory", "9999999999g", "invalid value for memory: 9999999999g is too much"},
		{"--memory-swap", "9223372036854775807", "invalid value for memory-swap: 9223372036854775807 is too much"},
		{"--pids-limit", "9223372036854775808", "flag -pids-limit: value out of range (see "},
	} {
		h.refuse(1, []string{c.words}, "update", c.flag, c.value, id)
	}
	h.refuse(1, []string{"option --resources: nothing to read: EOF"}, "update", "--resources", h.file("empty", ""), id)
	h.refuse(1, []string{`--cpus is for sandboxes, and "` + id + `" is an OCI container`}, "update", "--cpus", "2", id)
}
