package layer

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestSourcesTellFilesAndTimesApart(t *testing.T) {
	one := unix.Stat_t{Ino: 7, Ctim: unix.Timespec{Sec: 1, Nsec: 2}}
	other, later := one, one
	other.Ino++
	later.Ctim.Nsec++
	same := one
	if SourceOf(&one) == 0 || SourceOf(&one) != SourceOf(&same) {
		t.Error("a file is not known again")
	}
	for name, st := range map[string]unix.Stat_t{"another inode": other, "another time": later} {
		if SourceOf(&st) == SourceOf(&one) {
			t.Error(name, "has the same source")
		}
	}
}
