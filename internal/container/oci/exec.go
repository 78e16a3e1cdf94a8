package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// execFailed is the exit status when the process could not be started.
const execFailed = 255

// Exec makes the command exec. Some flags are for sandboxes only.
func Exec(ofSandboxes []cli.Flag, onSandbox OnSandbox) *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a further process in a container, or a command in a sandbox",
		ArgsUsage: "<container-id> <command> [argument...]  or  --process FILE <container-id>",
		Description: `The process is that of the container's ` + frontend.ConfigName + ` with this command and
these flags, or the process that FILE describes. It runs in the container's namespaces
and cgroups, with the container's seccomp filter and capabilities.

    # ` + commandline.Program + ` exec web-1 ps
    # ` + commandline.Program + ` exec --tty --user 1000:1000 --env TERM=xterm --cwd /srv web-1 sh
    # ` + commandline.Program + ` exec --cap CAP_NET_ADMIN web-1 ip link set eth0 mtu 1400
    # ` + commandline.Program + ` exec --cgroup pids,memory:jobs web-1 job    "jobs" must exist below the container's
    # ` + commandline.Program + ` exec --detach --pid-file job.pid --process job.json web-1

Flags after the id belong to the command. The exit status is the command's own, 128+n
if signal n ended the command, and 255 if the command could not be started.

In a sandbox of "up" a command runs as with "do": as the sandbox's user, and without
input unless -i is given. When the command ends, all processes that it has started are
killed. Other processes of the sandbox go on.

    # ` + commandline.Program + ` exec box make test
    # ` + commandline.Program + ` exec -it box bash
    # ` + commandline.Program + ` exec --timeout 10s --memory 256m --json box ./untrusted
    # ` + commandline.Program + ` exec --detach box ./server

--detach prints an id for "attach", and lets the command go on; "ps --execs" shows it.
The exit status is the command's own. Other values: 124 timed out, 125 the runtime
failed, 126 not executable, 127 not found, 128+n killed by signal n.`,
		StopOnNthArg:           new(1), // the command's flags are its own
		UseShortOptionHandling: true,
		Flags: append(append(processFlags(), ofSandboxes...),
			&cli.StringFlag{Name: "cwd", Aliases: []string{"w"}, Usage: "working `DIR` in the container"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set `NAME=VALUE` (repeatable)"},
			&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "allocate a pseudo-TTY"},
			&cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "`UID[:GID]`; in a sandbox also NAME[:GROUP]"},
			&cli.Int64SliceFlag{Name: "additional-gids", Aliases: []string{"g"}, Usage: "add `GID` (repeatable)"},
			&cli.StringFlag{Name: "process", Aliases: []string{"p"}, Usage: "`FILE` with the process as JSON"},
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "leave the process running"},
			&cli.StringFlag{Name: "process-label", Usage: "SELinux `LABEL` of the process"},
			&cli.StringFlag{Name: "apparmor", Usage: "AppArmor `PROFILE` of the process"},
			&cli.BoolFlag{Name: "no-new-privs", Usage: "set no_new_privs for the process"},
			&cli.StringSliceFlag{Name: "cap", Aliases: []string{"c"}, Usage: "add capability `CAP` (repeatable)"},
			&cli.StringSliceFlag{Name: "cgroup", Usage: "run in an existing sub-cgroup `[CONTROLLER:]PATH` (repeatable)"},
			&cli.BoolFlag{Name: "ignore-paused", Usage: "also in a paused container: the process waits"},
		),
		Action: commandline.WithArgs(1, -1, func(ctx context.Context, cmd *cli.Command) error {
			if done, err := onSandbox.run(ctx, cmd); done {
				return err
			}
			status, err := execInContainer(ctx, cmd, ofSandboxes)
			if err != nil {
				return &commandline.ExitError{Code: execFailed, Err: fmt.Errorf("exec failed: %w", err)}
			}
			return commandline.ExitWith(status)
		}),
	}
}

func execInContainer(ctx context.Context, cmd *cli.Command, ofSandboxes []cli.Flag) (status int, err error) {
	for _, f := range ofSandboxes {
		if name := f.Names()[0]; cmd.IsSet(name) {
			if _, err := commandline.LoadContainer(cmd); err != nil {
				return 0, err
			}
			return 0, OnlyForSandboxes(cmd, name)
		}
	}
	go cgroups.Wake() // ends by itself
	processIO, err := readProcessIO(cmd)
	if err != nil {
		return 0, err
	}
	c, err := commandline.LoadContainer(cmd)
	if err != nil {
		return 0, err
	}
	if record.Has(commandline.StateRoot(cmd), cmd.Args().First()) {
		return 0, errors.New("container does not exist: a sandbox of that name was made this moment")
	}
	state, err := c.Status()
	if err != nil {
		return 0, err
	}
	if state == container.Stopped {
		return 0, errors.New("cannot exec in a stopped container")
	}
	if state == container.Paused && !cmd.Bool("ignore-paused") {
		return 0, errors.New("cannot exec in a paused container (use --ignore-paused to override)")
	}
	process, err := execProcess(cmd, c)
	if err != nil {
		return 0, err
	}
	subCgroups, err := parseSubCgroups(cmd.StringSlice("cgroup"))
	if err != nil {
		return 0, err
	}
	s := frontend.Join(c, commandline.LogFrom(ctx), process, subCgroups, processIO)
	s.Detach = cmd.Bool("detach")
	return s.Run()
}

// execProcess is the process of --process, or that of the bundle changed as the
// flags say.
func execProcess(cmd *cli.Command, c *container.Container) (*specs.Process, error) {
	if path := cmd.String("process"); path != "" {
		return frontend.ReadProcess(path)
	}
	args := cmd.Args().Tail()
	if len(args) == 0 {
		return nil, errors.New("exec args cannot be empty")
	}
	spec, err := frontend.EnterBundle(c.Bundle())
	if err != nil {
		return nil, err
	}
	p := spec.Process
	p.Args = args
	p.Terminal = cmd.Bool("tty")
	p.Env = append(p.Env, cmd.StringSlice("env")...)
	p.Cwd = cmp.Or(cmd.String("cwd"), p.Cwd)
	p.ApparmorProfile = cmp.Or(cmd.String("apparmor"), p.ApparmorProfile)
	p.SelinuxLabel = cmp.Or(cmd.String("process-label"), p.SelinuxLabel)
	if cmd.IsSet("no-new-privs") {
		p.NoNewPrivileges = cmd.Bool("no-new-privs")
	}
	addCapabilities(p, cmd.StringSlice("cap"))
	if err := setUser(&p.User, cmd.String("user"), cmd.Int64Slice("additional-gids")); err != nil {
		return nil, err
	}
	return p, frontend.CheckProcess(p)
}

// addCapabilities leaves the inheritable set alone: a file's capabilities would
// become reachable through it (CVE-2022-29162). Ambient ones need it, so they
// follow only where the container has inheritable ones already.
func addCapabilities(p *specs.Process, names []string) {
	if len(names) == 0 {
		return
	}
	if p.Capabilities == nil {
		p.Capabilities = &specs.LinuxCapabilities{}
	}
	caps := p.Capabilities
	caps.Bounding = append(caps.Bounding, names...)
	caps.Effective = append(caps.Effective, names...)
	caps.Permitted = append(caps.Permitted, names...)
	if caps.Inheritable != nil {
		caps.Ambient = append(caps.Ambient, names...)
	}
}

func setUser(u *specs.User, user string, additional []int64) error {
	if user != "" {
		uid, gid, hasGID := strings.Cut(user, ":")
		id, err := parseID(uid)
		if err != nil {
			return fmt.Errorf("bad uid: %w", err)
		}
		u.UID = id
		if hasGID {
			if u.GID, err = parseID(gid); err != nil {
				return fmt.Errorf("bad gid: %w", err)
			}
		}
	}
	for _, gid := range additional {
		if gid < 0 {
			return fmt.Errorf("additional-gids must be a positive number %d", gid)
		}
		if gid >= math.MaxUint32 {
			return fmt.Errorf("additional-gids: %d is no valid id", gid)
		}
		u.AdditionalGids = append(u.AdditionalGids, uint32(gid))
	}
	return nil
}

// parseID takes decimal digits only. No string may end as another id than the
// one it spells: -1 and 4294967295 mean "unchanged" to setresuid(2).
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, err
	}
	if n == math.MaxUint32 {
		return 0, fmt.Errorf("%s is no valid id", s)
	}
	return uint32(n), nil
}

// parseSubCgroups reads "PATH" (cgroup v2) or "CONTROLLER[,CONTROLLER...]:PATH"
// (cgroup v1) into a map from controller, "" for the former, to path.
func parseSubCgroups(args []string) (map[string]string, error) {
	paths := make(map[string]string, len(args))
	for _, arg := range args {
		controllers, path, ok := strings.Cut(arg, ":")
		if !ok {
			if len(args) > 1 {
				return nil, fmt.Errorf("invalid --cgroup argument: %s (missing <controller>: prefix)", arg)
			}
			return map[string]string{"": arg}, nil
		}
		for c := range strings.SplitSeq(controllers, ",") {
			if c == "" {
				return nil, fmt.Errorf("invalid --cgroup argument: %s (empty <controller> prefix)", arg)
			}
			if _, double := paths[c]; double {
				return nil, fmt.Errorf("invalid --cgroup argument(s): controller %s specified multiple times", c)
			}
			paths[c] = path
		}
	}
	return paths, nil
}
