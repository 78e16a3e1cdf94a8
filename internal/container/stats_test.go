package container

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/cgroups"
)

// Each list of block I/O ends under the key that runc has for it.
func TestBlkioStatsInRuncsForm(t *testing.T) {
	one := func(value uint64) []cgroups.BlkioStatEntry {
		return []cgroups.BlkioStatEntry{{Major: 8, Minor: 1, Op: "Read", Value: value}}
	}
	got, err := json.Marshal(blkioStats(cgroups.BlkioStats{
		IoServiceBytesRecursive: one(1),
		IoServicedRecursive:     one(2),
		IoQueuedRecursive:       one(3),
		IoServiceTimeRecursive:  one(4),
		IoWaitTimeRecursive:     one(5),
		IoMergedRecursive:       one(6),
		IoTimeRecursive:         one(7),
		SectorsRecursive:        one(8),
	}))
	want := `{"ioServiceBytesRecursive":[{"major":8,"minor":1,"op":"Read","value":1}],` +
		`"ioServicedRecursive":[{"major":8,"minor":1,"op":"Read","value":2}],` +
		`"ioQueueRecursive":[{"major":8,"minor":1,"op":"Read","value":3}],` +
		`"ioServiceTimeRecursive":[{"major":8,"minor":1,"op":"Read","value":4}],` +
		`"ioWaitTimeRecursive":[{"major":8,"minor":1,"op":"Read","value":5}],` +
		`"ioMergedRecursive":[{"major":8,"minor":1,"op":"Read","value":6}],` +
		`"ioTimeRecursive":[{"major":8,"minor":1,"op":"Read","value":7}],` +
		`"sectorsRecursive":[{"major":8,"minor":1,"op":"Read","value":8}]}`
	if err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
}
