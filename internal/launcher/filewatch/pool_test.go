package filewatch

import (
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Many more sandboxes than there are groups are watched, for they share them.
func TestGroupsAreShared(t *testing.T) {
	testhost.NeedRoot(t, "groups of fanotify")
	var pool Pool
	var taken []*Group
	for range 3 * MaxGroups {
		g, err := pool.Take(false)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, g)
	}
	if len(pool.all) != MaxGroups || taken[0].users != 3 {
		t.Errorf("%d groups, %d users of the first", len(pool.all), taken[0].users)
	}
	alone, err := pool.Take(true)
	if err != nil || alone.users != 1 || slices.Contains(taken, alone) {
		t.Errorf("one that has to be alone: %+v, %v", alone, err)
	}
	for _, g := range append(taken, alone) {
		if err := pool.Leave(g); err != nil {
			t.Error(err)
		}
	}
	if len(pool.all) != 0 {
		t.Errorf("%d groups are left", len(pool.all))
	}
}
