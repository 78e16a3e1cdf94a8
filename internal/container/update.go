package container

import (
	"cmp"
	"errors"
	"slices"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/intelrdt"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// IntelRdt are the schemata of the Intel RDT group that an update changes;
// empty ones stay (runtime-spec v1.3.0 config-linux.md "IntelRdt").
type IntelRdt struct {
	L3CacheSchema string
	MemBwSchema   string
}

// Update changes limits of a container that has not stopped; see [ErrNotRunning]. Limits
// that r and rdt leave out stay as they are. After an error the container has its old
// limits.
//
// It uses the fields of r that runc's update uses: CPU, memory, block I/O, pids and
// unified. Device rules are left alone, also if another program has changed them
// meanwhile.
func (c *Container) Update(r *specs.LinuxResources, rdt IntelRdt) error {
	// The old limits must stay intact: Set goes back to them on an error.
	config := c.lc.Config()
	before := config
	old := config.Cgroups.Resources
	next := *old
	next.Freezer = cgroups.Undefined // a paused container stays paused
	applyResources(&next, r)
	group := *config.Cgroups
	group.Resources = &next
	config.Cgroups = &group
	if err := applyIntelRdt(&config, rdt); err != nil {
		return err
	}
	old.SkipDevices, next.SkipDevices = true, true
	defer func() { old.SkipDevices, next.SkipDevices = false, false }()
	set := c.lc.Set
	err := set(config)
	if errors.Is(err, ErrNotRunning) && c.initRuns() {
		set = c.setPaused
		err = set(config)
	}
	if err == nil || errors.Is(err, ErrNotRunning) { // then no limit was set
		return err
	}
	// If only the state cannot be written, Set leaves the new limits in force. The second Set takes
	// them back, and then fails as the first one did.
	back := set(before)
	if errno, ok := errors.AsType[unix.Errno](err); ok && errors.Is(back, errno) {
		return err
	}
	return errors.Join(err, back)
}

func applyResources(to *cgroups.Resources, r *specs.LinuxResources) {
	if r.CPU != nil {
		applyCPU(to, r.CPU)
	}
	if r.Memory != nil {
		applyMemory(to, r.Memory)
	}
	if r.BlockIO != nil {
		applyBlockIO(to, r.BlockIO)
	}
	// For these nil means "as it is" to libcontainer too.
	to.PidsLimit = nil
	if r.Pids != nil {
		to.PidsLimit = r.Pids.Limit
	}
	to.Unified = r.Unified
}

func applyCPU(to *cgroups.Resources, cpu *specs.LinuxCPU) {
	// Quota and period go together: one that is not given is the one before.
	// 0 is none, as in a specification.
	if cpu.Period != nil && *cpu.Period != 0 {
		to.CpuPeriod = *cpu.Period
	}
	if cpu.Quota != nil && *cpu.Quota != 0 {
		to.CpuQuota = *cpu.Quota
	}
	shares := cpu.Shares
	if shares == nil && cpu.Idle != nil {
		// The kernel refuses a weight for a group that is idle (cgroup-v2.rst,
		// cpu.weight): the one of the specification must not be written again.
		shares = new(uint64)
	}
	if shares != nil {
		to.CpuShares = *shares
		to.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*shares)
	}
	setIfGiven(&to.CpuRtPeriod, cpu.RealtimePeriod)
	setIfGiven(&to.CpuRtRuntime, cpu.RealtimeRuntime)
	// Empty and nil mean "as it is".
	to.CpuBurst, to.CPUIdle = cpu.Burst, cpu.Idle
	to.CpusetCpus, to.CpusetMems = cpu.Cpus, cpu.Mems
}

func applyMemory(to *cgroups.Resources, memory *specs.LinuxMemory) {
	swap := memory.Swap
	if swap == nil && memory.Limit != nil && *memory.Limit == -1 {
		swap = new(int64) // a swap limit without a memory limit is refused
	}
	setIfGiven(&to.Memory, memory.Limit)
	setIfGiven(&to.MemorySwap, swap)
	setIfGiven(&to.MemoryReservation, memory.Reservation)
	setIfGiven(&to.MemoryCheckBeforeUpdate, memory.CheckBeforeUpdate)
}

func applyBlockIO(to *cgroups.Resources, io *specs.LinuxBlockIO) {
	setIfGiven(&to.BlkioWeight, io.Weight)
	setIfGiven(&to.BlkioLeafWeight, io.LeafWeight)
	for _, d := range io.WeightDevice {
		to.BlkioWeightDevice = withWeight(to.BlkioWeightDevice, d)
	}
	for _, list := range []struct {
		to   *[]*cgroups.ThrottleDevice
		from []specs.LinuxThrottleDevice
	}{
		{&to.BlkioThrottleReadBpsDevice, io.ThrottleReadBpsDevice},
		{&to.BlkioThrottleWriteBpsDevice, io.ThrottleWriteBpsDevice},
		{&to.BlkioThrottleReadIOPSDevice, io.ThrottleReadIOPSDevice},
		{&to.BlkioThrottleWriteIOPSDevice, io.ThrottleWriteIOPSDevice},
	} {
		for _, d := range list.from {
			*list.to = withThrottle(*list.to, d)
		}
	}
}

// withWeight returns the list with d in place of the present entry of that device.
func withWeight(list []*cgroups.WeightDevice, d specs.LinuxWeightDevice) []*cgroups.WeightDevice {
	w := cgroups.NewWeightDevice(d.Major, d.Minor, 0, 0)
	list = slices.DeleteFunc(slices.Clone(list), func(old *cgroups.WeightDevice) bool {
		same := old.Major == d.Major && old.Minor == d.Minor
		if same {
			w.Weight, w.LeafWeight = old.Weight, old.LeafWeight
		}
		return same
	})
	setIfGiven(&w.Weight, d.Weight)
	setIfGiven(&w.LeafWeight, d.LeafWeight)
	return append(list, w)
}

// withThrottle returns the list with d in place of the present entry of that device.
func withThrottle(list []*cgroups.ThrottleDevice, d specs.LinuxThrottleDevice) []*cgroups.ThrottleDevice {
	list = slices.DeleteFunc(slices.Clone(list), func(old *cgroups.ThrottleDevice) bool {
		return old.Major == d.Major && old.Minor == d.Minor
	})
	return append(list, cgroups.NewThrottleDevice(d.Major, d.Minor, d.Rate))
}

func applyIntelRdt(config *configs.Config, rdt IntelRdt) error {
	switch {
	case rdt.L3CacheSchema != "" && !intelrdt.IsCATEnabled():
		return errors.New("Intel RDT/CAT: l3 cache schema is not enabled") //nolint:staticcheck // in runc's words
	case rdt.MemBwSchema != "" && !intelrdt.IsMBAEnabled():
		return errors.New("Intel RDT/MBA: memory bandwidth schema is not enabled") //nolint:staticcheck // in runc's words
	case rdt == IntelRdt{}:
		return nil
	case config.IntelRdt == nil:
		// The container would have to be moved into a group first.
		return errors.New("updating a non-existent Intel RDT configuration is not supported")
	}
	next := *config.IntelRdt
	next.L3CacheSchema = cmp.Or(rdt.L3CacheSchema, next.L3CacheSchema)
	next.MemBwSchema = cmp.Or(rdt.MemBwSchema, next.MemBwSchema)
	config.IntelRdt = &next
	return nil
}

// setIfGiven changes the field if there is a value for it.
func setIfGiven[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}
