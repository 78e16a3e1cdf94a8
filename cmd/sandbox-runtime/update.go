package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"github.com/docker/go-units"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/configflags"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func updateCommand() *cli.Command {
	return &cli.Command{
		Name:      "update",
		Usage:     "change the limits of a container",
		ArgsUsage: "<container-id>",
		Description: `Changes limits of a created, running or paused container. Limits that are not given
stay as they are. If the kernel refuses one limit, all old limits hold again.

    # ` + programName + ` update --memory 512m --pids-limit 100 web
    # echo '{"cpu": {"quota": 50000, "period": 100000}}' |
        ` + programName + ` update --resources - web

The JSON of --resources is linux.resources of the OCI runtime specification. These
parts of it are used: memory (limit, reservation, swap, checkBeforeUpdate), cpu
(shares, quota, burst, period, realtimeRuntime, realtimePeriod, cpus, mems, idle),
blockIO, pids and unified. With it the other flags are ignored, save the schemata.

Sizes take k, m, g (powers of 1024); -1 is no limit.

For a sandbox use the flags of "up" for limits:

    # ` + programName + ` update --memory 4g --cpus 2 --pids 1000 box`,
		Flags: slices.Concat(updateFlags(), sandboxLimitFlags()),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if namesListed(cmd) {
				return updateSandbox(ctx, cmd)
			}
			return onContainer(1, updateContainer)(ctx, cmd)
		},
	}
}

func updateFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "resources", Aliases: []string{"r"}, Usage: "`FILE` with the limits as JSON, - for stdin"},
		&cli.IntFlag{Name: "blkio-weight", Usage: "share of block I/O, 10 to 1000"},
		&cli.StringFlag{Name: "cpu-period", Usage: "period of the CPU limit in `USEC`; 0 for the system's default"},
		&cli.StringFlag{Name: "cpu-quota", Usage: "CPU time in `USEC` allowed in each period"},
		&cli.StringFlag{Name: "cpu-burst", Usage: "unused CPU time in `USEC` that may be caught up in a period"},
		&cli.StringFlag{Name: "cpu-share", Usage: "relative weight among containers"},
		&cli.StringFlag{Name: "cpu-rt-period", Usage: "period of the realtime limit in `USEC`; 0 for the system's default"},
		&cli.StringFlag{Name: "cpu-rt-runtime", Usage: "realtime CPU time in `USEC` allowed in each period"},
		&cli.StringFlag{Name: "cpuset-cpus", Usage: "CPUs to run on, as in 0-2,5"},
		&cli.StringFlag{Name: "cpuset-mems", Usage: "memory nodes to use"},
		&cli.StringFlag{Name: "cpu-idle", Usage: "1: run only when nobody else wants the CPU (SCHED_IDLE); 0: as usual"},
		&cli.StringFlag{Name: "memory", Usage: "memory limit in `BYTES`"},
		&cli.StringFlag{Name: "memory-reservation", Usage: "`BYTES` that the container keeps when memory runs short"},
		&cli.StringFlag{Name: "memory-swap", Usage: "limit of memory and swap together in `BYTES`"},
		&cli.StringFlag{Name: "kernel-memory", Hidden: true},
		&cli.StringFlag{Name: "kernel-memory-tcp", Hidden: true},
		&cli.IntFlag{Name: "pids-limit", Usage: "most processes and threads together; -1 for no limit"},
		&cli.StringFlag{Name: "l3-cache-schema", Usage: "`SCHEMA` of Intel RDT/CAT's L3 cache"},
		&cli.StringFlag{Name: "mem-bw-schema", Usage: "`SCHEMA` of Intel RDT/MBA's memory bandwidth"},
	}
}

// updateSandbox changes the limits of a sandbox of a launcher that listens.
func updateSandbox(ctx context.Context, cmd *cli.Command) error {
	if err := wantArgs(cmd, 1, 1); err != nil {
		return err
	}
	limits, ok, err := upLimits(cmd)
	if err == nil && !ok {
		var r *specs.LinuxResources
		if r, err = newLimits(cmd); err == nil {
			limits, ok = sandboxLimits(cmd, r)
		}
	}
	if err == nil && !ok {
		err = errors.New("a launcher changes only the limits that \"up\" has; say at least one, as in --memory 4g")
	}
	if err != nil {
		return err
	}
	return setLimits(ctx, cmd, limits)
}

// setLimits changes limits of a sandbox.
func setLimits(ctx context.Context, cmd *cli.Command, limits spec.Limits) error {
	err := withSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return box.Update(ctx, limits) })
	if err != nil {
		return &exitError{code: 1, err: configflags.AsTyped(cmd, err), plain: true}
	}
	return nil
}

func updateContainer(ctx context.Context, cmd *cli.Command, c *container.Container) error {
	if limits, ok, err := upLimits(cmd); err != nil {
		return &exitError{code: 1, err: configflags.AsTyped(cmd, err), plain: true}
	} else if ok {
		return setLimits(ctx, cmd, limits)
	}
	r, err := newLimits(cmd)
	if err != nil {
		return err
	}
	if limits, ok := sandboxLimits(cmd, r); ok {
		return withSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return box.Update(ctx, limits) })
	}
	if r.Memory != nil && (r.Memory.Kernel != nil || r.Memory.KernelTCP != nil) { //nolint:staticcheck // old callers give it
		logFrom(ctx).Warn("Kernel memory settings are ignored and will be removed")
	}
	return c.Update(r, container.IntelRdt{
		L3CacheSchema: cmd.String("l3-cache-schema"),
		MemBwSchema:   cmd.String("mem-bw-schema"),
	})
}

// memoryFlag is a flag of runc's update, and a limit of sandboxes.
const memoryFlag = "memory"

// sandboxLimitFlags are the flags of "up" for limits that update does not have from runc.
func sandboxLimitFlags() []cli.Flag {
	var flags []cli.Flag
	for _, f := range configflags.OfLimits() {
		if f.Name() != memoryFlag {
			flags = append(flags, f.Flag)
		}
	}
	return flags
}

// upLimits are the limits of a sandbox that flags of "up" give. It returns false if there are
// none, or flags of runc's beside --memory alone.
func upLimits(cmd *cli.Command) (l spec.Limits, ok bool, err error) {
	isSandbox := namesSandbox(cmd)
	ofUp, ofRunc := "", ""
	for _, name := range cmd.LocalFlagNames() {
		switch {
		case name == memoryFlag:
		case slices.ContainsFunc(sandboxLimitFlags(), func(f cli.Flag) bool { return f.Names()[0] == name }):
			ofUp = name
		default:
			ofRunc = name
		}
	}
	switch {
	case ofUp == "":
		return l, false, nil
	case !isSandbox:
		return l, false, fmt.Errorf("--%s is for sandboxes, and %q is none", ofUp, cmd.Args().First())
	case ofRunc != "":
		return l, false, fmt.Errorf("--%s and --%s do not go together: for a sandbox use the flags of \"up\"", ofUp, ofRunc)
	}
	var c spec.Config
	err = configflags.Apply(cmd, configflags.OfLimits(), &c)
	return c.Limits, err == nil, err
}

// sandboxLimits are limits of a sandbox, if the sandbox has all the limits to change: then
// the sandbox knows of the change, in its own description and in the reason of a command's
// death. Its memory is memory and swap.
func sandboxLimits(cmd *cli.Command, r *specs.LinuxResources) (l spec.Limits, ok bool) {
	if cmd.IsSet("resources") || !namesSandbox(cmd) {
		return l, false
	}
	for _, flag := range cmd.LocalFlagNames() {
		switch {
		case flag == "memory" && r.Memory.Limit != nil && *r.Memory.Limit > 0:
			l.Memory = spec.Size(*r.Memory.Limit)
		case flag == "memory-swap" && r.Memory.Limit != nil && r.Memory.Swap != nil && *r.Memory.Swap == *r.Memory.Limit:
			// The values are the same.
		case flag == "pids-limit" && *r.Pids.Limit > 0:
			l.Pids = *r.Pids.Limit
		default:
			return l, false
		}
	}
	return l, l != spec.Limits{}
}

// newLimits are those of --resources, or those of the other flags.
func newLimits(cmd *cli.Command) (*specs.LinuxResources, error) {
	unchecked := false // unless the JSON says otherwise, also after an earlier update
	r := &specs.LinuxResources{
		Memory:  &specs.LinuxMemory{CheckBeforeUpdate: &unchecked},
		CPU:     &specs.LinuxCPU{},
		BlockIO: &specs.LinuxBlockIO{},
		Pids:    &specs.LinuxPids{},
	}
	switch file := cmd.String("resources"); file {
	case "":
		return r, limitsOfFlags(cmd, r)
	case "-":
		return r, readLimits(os.Stdin, r)
	default:
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return r, readLimits(f, r)
	}
}

func readLimits(from io.Reader, r *specs.LinuxResources) error {
	err := json.NewDecoder(from).Decode(r)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("nothing to read: %w", err)
	}
	if err != nil {
		return fmt.Errorf("option --resources: %w", err)
	}
	return nil
}

func limitsOfFlags(cmd *cli.Command, r *specs.LinuxResources) error {
	if weight := cmd.Int("blkio-weight"); weight != 0 {
		if weight < 0 || weight > math.MaxUint16 {
			return fmt.Errorf("invalid value for blkio-weight: %d is not between 10 and 1000", weight)
		}
		r.BlockIO.Weight = new(uint16(weight))
	}
	if cmd.IsSet("pids-limit") {
		r.Pids.Limit = new(int64(cmd.Int("pids-limit")))
	}
	r.CPU.Cpus, r.CPU.Mems = cmd.String("cpuset-cpus"), cmd.String("cpuset-mems")
	return cmp.Or(
		parseFlags(cmd, parseInt, map[string]**int64{
			"cpu-idle":       &r.CPU.Idle,
			"cpu-quota":      &r.CPU.Quota,
			"cpu-rt-runtime": &r.CPU.RealtimeRuntime,
		}),
		parseFlags(cmd, parseUint, map[string]**uint64{
			"cpu-burst":     &r.CPU.Burst,
			"cpu-period":    &r.CPU.Period,
			"cpu-rt-period": &r.CPU.RealtimePeriod,
			"cpu-share":     &r.CPU.Shares,
		}),
		parseFlags(cmd, parseSize, map[string]**int64{
			"memory":             &r.Memory.Limit,
			"memory-swap":        &r.Memory.Swap,
			"memory-reservation": &r.Memory.Reservation,
			"kernel-memory":      &r.Memory.Kernel, //nolint:staticcheck // old callers give it
			"kernel-memory-tcp":  &r.Memory.KernelTCP,
		}),
	)
}

// parseFlags sets the fields whose flags are given.
func parseFlags[T any](cmd *cli.Command, parse func(string) (T, error), fields map[string]**T) error {
	for name, field := range fields {
		s := cmd.String(name)
		if s == "" {
			continue
		}
		v, err := parse(s)
		if err != nil {
			return fmt.Errorf("invalid value for %s: %w", name, err)
		}
		*field = &v
	}
	return nil
}

func parseInt(s string) (int64, error)   { return strconv.ParseInt(s, 10, 64) }
func parseUint(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }

// parseSize takes "512m", and "-1" for no limit.
func parseSize(s string) (int64, error) {
	if s == "-1" {
		return -1, nil
	}
	n, err := units.RAMInBytes(s)
	if err == nil && (n < 0 || n == math.MaxInt64) { // more than that holds
		err = fmt.Errorf("%s is too much", s)
	}
	return n, err
}
