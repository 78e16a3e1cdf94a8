package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Divide readies a group for leaves, once its first process is in it, alone. On v2 no
// group with processes can have limits below it (cgroup-v2.rst, "No Internal Process
// Constraint"): so agentPid moves to the group "agent" below; the controllers of the group
// are enabled for its leaves; and the host's user agentUID may move processes between all
// these, except into the group itself, as clone3(2) with CLONE_INTO_CGROUP asks of its
// caller. On v1 there is nothing to do.
func (g *Group) Divide(agentPid, agentUID int) error {
	if g.host.Mode != V2 {
		return nil
	}
	return g.failed("divide", g.divide(agentPid, agentUID))
}

func (g *Group) divide(pid, uid int) error {
	h, err := g.opened()
	if err != nil {
		return err
	}
	p := h.places[0]
	if err := ignore(p.mkdir(agentName), fs.ErrExist); err != nil {
		return err
	}
	if err := p.write(agentName+"/cgroup.procs", strconv.Itoa(pid)); err != nil {
		return err
	}
	if err := p.enableOnceEmpty("cpu", "memory", "pids", "io"); err != nil {
		return err
	}
	// Moving needs the right to write both ends' nearest common group, too.
	return errors.Join(p.chown("cgroup.procs", uid), p.chown(agentName+"/cgroup.procs", uid))
}

// enableOnceEmpty is enable for a group that the agent has just left. Threads of
// it that were about to end are not moved along, as after its execve(2): nobody
// lists them, and for a moment they live in the group.
func (p place) enableOnceEmpty(controllers ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deleteWait)
	defer cancel()
	for wait := (pause{}); ; {
		err := p.enable(controllers...)
		if !errors.Is(err, errPopulated) {
			return err
		}
		var room [1]byte
		listed, readErr := p.read("cgroup.procs", room[:])
		if readErr != nil || len(listed) > 0 || wait.wait(ctx) != nil {
			return errors.Join(err, readErr)
		}
	}
}

// enable enables those of the controllers that the group has for the groups
// below it. One that is refused is left out: the leaves lack its files.
func (p place) enable(controllers ...string) error {
	var room [512]byte
	offered, err := p.read("cgroup.controllers", room[:])
	if err != nil {
		return err
	}
	has := strings.Fields(string(offered))
	controllers = slices.DeleteFunc(controllers, func(c string) bool { return !slices.Contains(has, c) })
	if len(controllers) == 0 {
		return nil
	}
	err = p.write("cgroup.subtree_control", "+"+strings.Join(controllers, " +"))
	if err == nil {
		return nil
	}
	// The kernel refuses a list as a whole.
	for _, c := range controllers {
		err := p.write("cgroup.subtree_control", "+"+c)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%w (%w)", errPopulated, err)
		}
	}
	return nil
}

// delegate has the agent bring processes into the leaf, and the kernel kill
// them together when memory runs out.
func (p place) delegate(leaf string, owner int) error {
	if err := p.chown(leaf+"/cgroup.procs", owner); err != nil {
		return err
	}
	// Without a memory controller, and before Linux 4.19, there is no such file.
	return ignore(p.write(leaf+"/memory.oom.group", "1"), fs.ErrNotExist)
}

// chown gives a file to a user of the host, and to no group: root of a user
// namespace has rights over a file only if both its ids are of the namespace.
func (p place) chown(file string, uid int) error {
	return change(p.dir, "chown", file, func(fd int) error {
		return unix.Fchownat(fd, file, uid, -1, unix.AT_SYMLINK_NOFOLLOW)
	})
}
