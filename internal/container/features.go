package container

import (
	"fmt"

	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	runcfeatures "github.com/opencontainers/runc/types/features"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// LibseccompVersion is "2.5.4" or the like; empty when built without seccomp.
func LibseccompVersion() string {
	major, minor, micro := seccomp.Version()
	if major+minor+micro == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", major, minor, micro)
}

// Features describes the abilities of this build, in the form of runtime-spec v1.3.0
// features.md. It says nothing about the host. The caller adds its own annotations.
func Features() *features.Features {
	yes := true
	f := &features.Features{
		OCIVersionMin: "1.0.0",
		OCIVersionMax: specs.Version,
		Annotations:   map[string]string{runcfeatures.AnnotationRuncCheckpointEnabled: "true"},
		Hooks:         configs.KnownHookNames(),
		MountOptions:  specconv.KnownMountOptions(),
		Linux: &features.Linux{
			Namespaces:   specconv.KnownNamespaces(),
			Capabilities: capabilities.KnownCapabilities(),
			Cgroup:       &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &yes, Rdma: &yes},
			Apparmor:     &features.Apparmor{Enabled: &yes},
			Selinux:      &features.Selinux{Enabled: &yes},
			IntelRdt:     &features.IntelRdt{Enabled: &yes, Schemata: &yes, Monitoring: &yes},
			MemoryPolicy: &features.MemoryPolicy{
				Modes: specconv.KnownMemoryPolicyModes(),
				Flags: specconv.KnownMemoryPolicyFlags(),
			},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &yes}},
			NetDevices:      &features.NetDevices{Enabled: &yes},
		},
		// Annotations that libcontainer acts on ("." at the end: all below).
		PotentiallyUnsafeConfigAnnotations: []string{"bundle", "org.systemd.property.", "org.criu.config"},
	}
	if seccomp.Enabled {
		f.Linux.Seccomp = &features.Seccomp{
			Enabled:        &yes,
			Actions:        seccomp.KnownActions(),
			Operators:      seccomp.KnownOperators(),
			Archs:          seccomp.KnownArchs(),
			KnownFlags:     seccomp.KnownFlags(),
			SupportedFlags: seccomp.SupportedFlags(),
		}
		f.Annotations[runcfeatures.AnnotationLibseccompVersion] = LibseccompVersion()
	}
	return f
}

// ExampleSpec is the starter config.json that the spec command writes;
// rootless adapts it to a user without privileges, whose ids it maps.
func ExampleSpec(rootless bool) *specs.Spec {
	spec := specconv.Example()
	spec.Hostname = "sandbox-runtime"
	if rootless {
		specconv.ToRootless(spec)
	}
	return spec
}
