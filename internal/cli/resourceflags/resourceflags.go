// Package resourceflags has the flags of runc's command update, as resources of an OCI container.
package resourceflags

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"github.com/docker/go-units"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v3"
)

// All are the flags of runc's update.
func All() []cli.Flag {
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
		&cli.StringFlag{Name: "cpu-idle", Usage: "1: run only when nothing else needs the CPU (SCHED_IDLE); 0: as usual"},
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

// Read returns the limits of --resources, or those of the other flags.
func Read(cmd *cli.Command) (*specs.LinuxResources, error) {
	unchecked := false // the JSON of --resources can change this; an earlier update cannot
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

// parseFlags sets the field of each flag that is given.
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
	if err == nil && (n < 0 || n == math.MaxInt64) { // more than an int64 holds
		err = fmt.Errorf("%s is too much", s)
	}
	return n, err
}
