package part

import (
	"context"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp/compile"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// loadProfile loads the seccomp profile of the sandbox, and adds the calls that PID 1 needs.
func (m *Making) loadProfile(context.Context) (err error) {
	if m.host, err = m.parts.Host(); err != nil {
		return err
	}
	profile, groupIDs, err := loadSeccomp(m.Request.Config, m.From)
	if err == nil {
		m.Record.GroupIDs = groupIDs
		m.filters = seccomp.CommandsMayFilter(profile)
		m.profile, err = seccomp.ForAgent(profile, m.host.Mode == cgroups.V2)
	}
	return fault.Refusal(err)
}

// openFilter opens the profile as a filter for PID 1 to load, if the host can do that.
func (m *Making) openFilter(ctx context.Context) (err error) {
	m.filter, m.filterNote, err = m.parts.Filters.Open(ctx, toldProfile(m.Request.Config, m.profile))
	if m.filter == nil || err != nil {
		return err
	}
	m.profile = nil
	m.atEnd(m.filter.Close)
	return nil
}

// loadSeccomp finds the profile of a configuration by its name, or reads it from a file and checks
// it. groupIDs says that a built-in profile allows the set-group-ID bit.
func loadSeccomp(c spec.Config, from Sources) (profile *specs.LinuxSeccomp, groupIDs bool, err error) {
	name := c.Seccomp
	switch {
	case IsProfileFile(name):
		profile, err = readSeccomp(name, from)
		return profile, false, err
	case len(record.WritableBinds(c)) > 0:
		profile, err = seccomp.Profile(name)
		return profile, false, err
	}
	profile, err = seccomp.WithGroupIDs(name)
	return profile, true, err
}

// IsProfileFile says that a seccomp profile is a file, and not a name.
func IsProfileFile(name string) bool {
	return strings.Contains(name, "/") || strings.HasSuffix(name, ".json")
}

// toldProfile is the profile of a sandbox for a filter that PID 1 loads. With a built-in profile
// PID 1 tells of some refused calls, if the host can do that. libcontainer cannot load this form.
func toldProfile(c spec.Config, profile *specs.LinuxSeccomp) *specs.LinuxSeccomp {
	if IsProfileFile(c.Seccomp) || !compile.CanNotify() {
		return profile
	}
	return seccomp.Told(profile)
}

// readSeccomp reads a profile from a file and checks it.
func readSeccomp(name string, from Sources) (profile *specs.LinuxSeccomp, err error) {
	switch file := from.Files[name]; {
	case file != nil:
		profile, err = seccomp.Read(name, file)
	case from.Peer() != nil:
		err = fmt.Errorf("seccomp profile %s: no descriptor came with it", name)
	default:
		profile, err = seccomp.Load(name)
	}
	if err != nil {
		return nil, err
	}
	if err := compile.Validate(profile); err != nil {
		return nil, fmt.Errorf("seccomp profile %s: %w", name, err)
	}
	return profile, nil
}
