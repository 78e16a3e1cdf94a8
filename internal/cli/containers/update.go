package containers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/configflags"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/resourceflags"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Update makes the command update.
func Update() *cli.Command {
	return &cli.Command{
		Name:      "update",
		Usage:     "change the limits of a container",
		ArgsUsage: "<container-id>",
		Description: `Changes limits of a created, running or paused container. Limits that are not given
stay as they are. If the kernel refuses one limit, all old limits hold again.

    # ` + commandline.Program + ` update --memory 512m --pids-limit 100 web
    # echo '{"cpu": {"quota": 50000, "period": 100000}}' |
        ` + commandline.Program + ` update --resources - web

The JSON of --resources is linux.resources of the OCI runtime specification. These
parts of it are used: memory (limit, reservation, swap, checkBeforeUpdate), cpu
(shares, quota, burst, period, realtimeRuntime, realtimePeriod, cpus, mems, idle),
blockIO, pids and unified. With it the other flags are ignored, save the schemata.

Sizes take k, m, g (powers of 1024); -1 is no limit.

For a sandbox use the flags of "up" for limits:

    # ` + commandline.Program + ` update --memory 4g --cpus 2 --pids 1000 box`,
		Flags: slices.Concat(resourceflags.All(), sandboxLimitFlags()),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if namesListed(cmd) {
				return commandline.WithArgs(1, 1, updateSandbox)(ctx, cmd)
			}
			return commandline.OnContainer(1, updateContainer)(ctx, cmd)
		},
	}
}

// updateSandbox changes the limits of a sandbox of a launcher that listens.
func updateSandbox(ctx context.Context, cmd *cli.Command) error {
	limits, ok, _, err := askedLimits(cmd)
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("a launcher changes only the limits that \"up\" has; say at least one, as in --memory 4g")
	}
	return setLimits(ctx, cmd, limits)
}

// askedLimits are the limits of the flags: those of a sandbox if ok, else the resources of a container.
func askedLimits(cmd *cli.Command) (l spec.Limits, ok bool, r *specs.LinuxResources, err error) {
	if l, ok, err = upLimits(cmd); ok || err != nil {
		return l, ok, nil, err
	}
	if r, err = resourceflags.Read(cmd); err != nil {
		return l, false, nil, err
	}
	l, ok = sandboxLimits(cmd, r)
	return l, ok, r, nil
}

// setLimits changes limits of a sandbox.
func setLimits(ctx context.Context, cmd *cli.Command, limits spec.Limits) error {
	err := connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return box.Update(ctx, limits) })
	return configflags.AsTyped(cmd, err)
}

func updateContainer(ctx context.Context, cmd *cli.Command, c *container.Container) error {
	limits, ok, r, err := askedLimits(cmd)
	if err != nil {
		return err
	}
	if ok {
		return setLimits(ctx, cmd, limits)
	}
	if r.Memory != nil && (r.Memory.Kernel != nil || r.Memory.KernelTCP != nil) { //nolint:staticcheck // old callers give it
		commandline.LogFrom(ctx).Warn("Kernel memory settings are ignored and will be removed")
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
	flags := configflags.ForLibrary(configflags.OfLimits())
	return slices.DeleteFunc(flags, func(f cli.Flag) bool { return f.Names()[0] == memoryFlag })
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
		return l, false, oci.OnlyForSandboxes(cmd, ofUp)
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
		case flag == memoryFlag && r.Memory.Limit != nil && *r.Memory.Limit > 0:
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
