package cgroups

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// renewable is how many bytes may still be counted in a leaf that is used again, and so
// how much too high its next peak can be. The kernel counts in portions of 64 pages for
// each processor (mm/memcontrol.c, MEMCG_CHARGE_BATCH), and frees the memory of a process
// some time after its end.
const renewable = 1 << 20

// errStays is the condition that a leaf has counts that would be the next command's.
var errStays = errors.New("something that it counted stays")

// Renew turns a leaf whose command has ended into the leaf of another command, as empty as
// a new one but for renewable bytes of memory, and returns it; l must not be used any
// more. u is the result of Usage when nothing lived in it any more.
//
// That costs a tenth of a new leaf. An error gives the reason why l has to be deleted: it
// was limited or killed, something lives in it or stays counted, the name is taken, or, as
// errors.ErrUnsupported, the host cannot do it: on v2 a peak is one for all times.
func (l *Leaf) Renew(name string, u Usage) (*Leaf, error) {
	fresh, err := l.renew(name, u)
	return fresh, l.failed("renew", err)
}

func (l *Leaf) renew(name string, u Usage) (*Leaf, error) {
	if l.parent.host.Mode == V2 {
		return nil, errors.ErrUnsupported
	}
	if err := checkLeafName(name); err != nil {
		return nil, err
	}
	if name == l.name {
		return nil, fs.ErrExist
	}
	if u.OOMKills > 0 || u.PidsLimitHits > 0 || u.IORead > 0 || u.IOWritten > 0 {
		return nil, errStays
	}
	if err := l.blank(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.killed || l.limited {
		return nil, errors.New("it was closed, killed or limited")
	}
	if err := rename(l.places, l.name, name); err != nil {
		return nil, err
	}
	fresh := &Leaf{name: name, parent: l.parent, home: l.home, places: l.places, tasks: l.tasks, files: l.files}
	l.closed, l.renewed, l.tasks, l.files = true, true, nil, nil
	return fresh, nil
}

// blank resets the counts of the leaf, if nothing lives in it and create would make one
// like it.
func (l *Leaf) blank() error {
	full, err := l.populated()
	if full {
		err = unix.EBUSY
	}
	if err != nil {
		return err
	}
	if p, ok := l.placeOf("blkio"); ok {
		throttled, err := p.throttled()
		if throttled {
			err = errors.New("its group has a limit of disk traffic by now, which would not bind it")
		}
		if err != nil {
			return err
		}
	}
	if p, ok := l.placeOf("memory"); ok {
		var room [32]byte
		stays, err := l.figure(figure{"memory", "/memory.usage_in_bytes", parseNumber}, room[:])
		if err == nil && stays > renewable {
			err = errStays
		}
		if err == nil {
			err = l.reset(p, peakFile)
		}
		if err != nil {
			return err
		}
	}
	if p, ok := l.placeOf("cpuacct"); ok {
		return l.reset(p, timeFile)
	}
	return nil
}

// rename gives a leaf another name in each place, or in none.
func rename(places []place, old, now string) error {
	for i, p := range places {
		err := p.rename(old, now)
		if err == nil {
			continue
		}
		for _, done := range places[:i] {
			err = errors.Join(err, done.rename(now, old))
		}
		return err
	}
	return nil
}

// rename does not replace: kernfs lets no directory have another's name.
func (p place) rename(old, now string) error {
	return change(p.dir, "rename", old, func(fd int) error { return unix.Renameat(fd, old, fd, now) })
}
