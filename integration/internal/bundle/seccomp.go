package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A profileFile is a seccomp profile in the form of Docker and of
// containers-common: rules with conditions, from which a spec's rules follow.
type profileFile struct {
	DefaultAction   specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrnoRet *uint                    `json:"defaultErrnoRet"`
	ArchMap         []struct {
		Architecture     specs.Arch   `json:"architecture"`
		SubArchitectures []specs.Arch `json:"subArchitectures"`
	} `json:"archMap"`
	Syscalls []struct {
		specs.LinuxSyscall
		Includes condition `json:"includes"`
		Excludes condition `json:"excludes"`
	} `json:"syscalls"`
}

// A condition names architectures and capabilities. Kernel versions that the
// files ask for are older than what this project supports.
type condition struct {
	Arches []string `json:"arches"`
	Caps   []string `json:"caps"`
}

// Seccomp reads a profile and returns what an engine would write into the spec
// of a container with the capabilities caps on this machine.
func Seccomp(file string, caps []string) (*specs.LinuxSeccomp, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var p profileFile
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	native := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}[runtime.GOARCH]
	out := &specs.LinuxSeccomp{DefaultAction: p.DefaultAction, DefaultErrnoRet: p.DefaultErrnoRet}
	for _, m := range p.ArchMap {
		if m.Architecture == native {
			out.Architectures = append([]specs.Arch{native}, m.SubArchitectures...)
		}
	}
	for _, rule := range p.Syscalls {
		in, ex := rule.Includes, rule.Excludes
		included := (len(in.Arches) == 0 || slices.Contains(in.Arches, runtime.GOARCH)) &&
			!slices.ContainsFunc(in.Caps, func(c string) bool { return !slices.Contains(caps, c) })
		excluded := slices.Contains(ex.Arches, runtime.GOARCH) ||
			slices.ContainsFunc(ex.Caps, func(c string) bool { return slices.Contains(caps, c) })
		if included && !excluded {
			out.Syscalls = append(out.Syscalls, rule.LinuxSyscall)
		}
	}
	return out, nil
}
