package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
)

// openMemory compares the most memory that a create takes, of the runtime and
// of the container's init together: the peak of a cgroup that both are in.
func openMemory(o options, dir string) ([]trial, func() error, error) {
	b, err := makeBundle(o, dir, []string{"true"})
	if err != nil {
		return nil, nil, err
	}
	m, err := newMemoryMeter(filepath.Join(o.peers, "bin/busybox"))
	if err != nil {
		return nil, nil, err
	}
	b.spec.Linux.CgroupsPath = m.parent + "/container"
	if err := b.write(); err != nil {
		return nil, nil, err
	}
	var peers []peer
	for _, r := range runtimes(o, dir) {
		p := r.peer("create", "create", "--bundle", b.dir, "bench")
		p.after = [][]string{r.args("delete", "--force", "bench")}
		peers = append(peers, p)
	}
	return []trial{contest{
		title: "Memory of `create`",
		about: "The most memory that is charged to the runtime and to the container's init while a container is created, the kernel's memory for them included.",
		unit:  "MiB", base: runcName + " create", peers: peers, rounds: max(o.rounds/8, 1), measure: m.measure,
		bounds: []bound{{ourName + " create", runcName + " create", 1.0}},
	}}, nothing, nil
}

type memoryMeter struct {
	busybox string
	host    *cgroups.Host
	parent  string // path of a group that is made anew for each measurement
	files   string // directory of the memory hierarchy
}

func newMemoryMeter(busybox string) (*memoryMeter, error) {
	host, err := cgroups.Probe()
	if err != nil {
		return nil, err
	}
	m := &memoryMeter{busybox: busybox, host: host, parent: fmt.Sprintf("/sandbox-runtime-bench-%d", os.Getpid())}
	for _, c := range host.Controllers {
		if c.Name == "memory" {
			m.files = c.Mountpoint
		}
	}
	if m.files == "" {
		return nil, errors.New("this host has no memory controller")
	}
	return m, nil
}

// joinAndExec is a shell script: the first argument is the group's list of
// processes, the others are the command.
const joinAndExec = `echo $$ > "$1" && shift && exec "$@"`

func (m *memoryMeter) measure(p peer) (mib float64, err error) {
	if _, err := m.host.EnsureParent(m.parent+"/runtime", 0); err != nil {
		return 0, err
	}
	group, err := m.host.Open(m.parent)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, group.Delete(context.Background())) }()
	cmd := p.commandOf(append([]string{m.busybox, "sh", "-c", joinAndExec, "sh",
		filepath.Join(m.files, m.parent, "runtime/cgroup.procs")}, p.args...))
	// No pipe: the container's init would hold it open.
	if err := cmd.Run(); err != nil {
		return 0, err
	}
	stats, err := group.Stats()
	if err != nil {
		return 0, errors.Join(err, p.undo())
	}
	return float64(stats.MemoryPeak) / (1 << 20), p.undo()
}
