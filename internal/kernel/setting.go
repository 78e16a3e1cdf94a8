package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// A Setting is something an administrator decided, on this host or for the
// container this process is in, that can keep a sandbox from having a feature.
type Setting struct {
	Name  string `json:"name"` // of a sysctl, as sysctl(8) takes it, or of another setting
	Value string `json:"value"`
	// Restricts is whether this value restricts this process.
	Restricts bool   `json:"restricts"`
	Effect    string `json:"effect"` // its effect when it restricts
	Fix       string `json:"fix"`    // how to change it

	features []Feature // the features that it forbids
	causes   []error   // the kernel's errors when it forbids them
}

// explains reports whether the setting can be why a probe failed.
func (s Setting) explains(info Info, cause error) bool {
	if !slices.Contains(s.features, info.Name) {
		return false
	}
	return slices.ContainsFunc(s.causes, func(e error) bool { return errors.Is(cause, e) })
}

// Settings are those that this host has, whether they restrict or not.
func Settings() []Setting {
	user := !hasCapabilities(unix.CAP_SYS_ADMIN)
	all := slices.Concat(userNamespaceSettings(user), namespaceLimits(), processSwitches(user), processSettings())
	return slices.DeleteFunc(all, func(s Setting) bool { return s.Value == "" })
}

var (
	denied    = []error{unix.EPERM, unix.EACCES}
	exhausted = []error{unix.ENOSPC, unix.EUSERS}
)

// userNamespaceSettings are the distributions' own switches; they bind
// ordinary users only.
func userNamespaceSettings(user bool) []Setting {
	const clone = "kernel.unprivileged_userns_clone"
	const apparmor = "kernel.apparmor_restrict_unprivileged_userns"
	features := append([]Feature{UserNamespaces, OverlayInUserNamespaces}, namespaceFeatures()...)
	return []Setting{{
		Name: clone, Value: sysctl(clone), Restricts: user && sysctl(clone) == "0",
		Effect:   "only root may make user namespaces (Debian's and Arch's switch)",
		Fix:      setSysctl(clone, "1"),
		features: features, causes: denied,
	}, {
		Name: apparmor, Value: sysctl(apparmor), Restricts: user && sysctl(apparmor) == "1",
		Effect:   "AppArmor lets an ordinary user's user namespaces have no rights (Ubuntu's default since 24.04)",
		Fix:      "give the program an AppArmor profile with the rule \"userns,\", or for all programs: " + setSysctl(apparmor, "0"),
		features: append(features, MountAPI, MountAttributes, Nftables, Procfs), causes: denied,
	}}
}

func namespaceFeatures() []Feature {
	return []Feature{MountNamespaces, PIDNamespaces, NetworkNamespaces, IPCNamespaces, UTSNamespaces, CgroupNamespaces, TimeNamespaces}
}

// namespaceLimits are the sysctls of namespaces(7), "The /proc/sys/user
// directory", Linux 4.9. They bind root too, and a limit of an outer user
// namespace holds inside it without being seen there.
func namespaceLimits() []Setting {
	kinds := []struct {
		name    string
		feature Feature
	}{
		{"user", UserNamespaces}, {"mnt", MountNamespaces}, {"pid", PIDNamespaces}, {"net", NetworkNamespaces},
		{"ipc", IPCNamespaces}, {"uts", UTSNamespaces}, {"cgroup", CgroupNamespaces}, {"time", TimeNamespaces},
	}
	var limits []Setting
	for _, k := range kinds {
		name := "user.max_" + k.name + "_namespaces"
		value := sysctl(name)
		limits = append(limits, Setting{
			Name: name, Value: value, Restricts: value == "0",
			Effect:   "nobody may make " + string(k.feature) + " (a container's manager or an administrator set it)",
			Fix:      setSysctl(name, "15000"),
			features: []Feature{k.feature, IDRange, Procfs, OverlayInUserNamespaces}, causes: exhausted,
		})
	}
	return limits
}

// processSwitches are vm.memfd_noexec, Linux 6.3, at which 1 lets a memfd ask to
// be executable, as PID 1's does; and Yama's, Documentation/admin-guide/LSM/Yama.rst.
func processSwitches(user bool) []Setting {
	const noexec, yama = "vm.memfd_noexec", "kernel.yama.ptrace_scope"
	scope := sysctl(yama)
	return []Setting{{
		Name: noexec, Value: sysctl(noexec), Restricts: sysctl(noexec) == "2",
		Effect:   "no memfd may be executable, and a sandbox's PID 1 is one",
		Fix:      setSysctl(noexec, "1"),
		features: []Feature{MemfdExec}, causes: denied,
	}, {
		Name: yama, Value: scope, Restricts: scope == "3" || user && scope == "2",
		Effect:   "no process may be traced, not even one's own child",
		Fix:      "set kernel.yama.ptrace_scope = 1 in /etc/sysctl.d and restart the host: 3 cannot be taken back before",
		features: []Feature{Ptrace}, causes: denied,
	}}
}

// processSettings are settings of the process that started this one.
func processSettings() []Setting {
	status := ProcessStatus()
	filtered := status["Seccomp"] == "2"
	settings := []Setting{{
		Name: "seccomp", Value: map[string]string{"0": "none", "1": "strict", "2": "filter"}[status["Seccomp"]],
		Restricts: filtered,
		Effect:    "this process runs under a seccomp filter, which may refuse calls that sandboxes need",
		Fix:       "start the container around it with --security-opt seccomp=unconfined, or --privileged",
		features:  everyFeature(), causes: append([]error{unix.ENOSYS, errKills}, denied...),
	}, {
		Name: "no_new_privs", Value: status["NoNewPrivs"], Restricts: status["NoNewPrivs"] == "1" && os.Geteuid() != 0,
		Effect:   "newuidmap, newgidmap and sudo get no rights",
		Fix:      "start the program outside of the container or service that set it (systemd: NoNewPrivileges=no)",
		features: []Feature{IDRange}, causes: []error{errRefused},
	}}
	return append(settings, securityModules()...)
}

func securityModules() []Setting {
	var settings []Setting
	selinux := read("/sys/fs/selinux/enforce")
	label := strings.TrimRight(read("/proc/self/attr/current"), "\x00\n")
	if selinux != "" {
		confined := selinux == "1" && !strings.Contains(label, "unconfined_t") && !strings.Contains(label, ":spc_t")
		settings = append(settings, Setting{
			Name: "selinux", Value: map[string]string{"0": "permissive", "1": "enforcing"}[selinux] + " " + label,
			Restricts: confined,
			Effect:    "SELinux confines this process, and may refuse namespaces and mounts",
			Fix:       "look for the denial with: ausearch -m avc -ts recent; start the container around it with --security-opt label=disable",
			features:  everyFeature(), causes: denied,
		})
	} else if strings.HasSuffix(label, ")") { // "docker-default (enforce)"
		settings = append(settings, Setting{
			Name: "apparmor", Value: label, Restricts: strings.HasSuffix(label, "(enforce)"),
			Effect:   "an AppArmor profile confines this process, and may refuse mounts",
			Fix:      "start the container around it with --security-opt apparmor=unconfined",
			features: everyFeature(), causes: denied,
		})
	}
	return settings
}

func everyFeature() []Feature {
	var names []Feature
	for _, info := range Features() {
		names = append(names, info.Name)
	}
	return names
}

// sysctl is the value of a setting by its name with dots; "" if the host has
// none of that name.
func sysctl(name string) string {
	return read("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
}

func setSysctl(name, value string) string {
	return fmt.Sprintf("sysctl -w %s=%s (to keep it, write %s = %s to a file in /etc/sysctl.d)", name, value, name, value)
}

// read is the text of a small file without the white space around it; "" if
// it cannot be read.
func read(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// ProcessStatus are the fields of proc_pid_status(5) of the calling thread.
func ProcessStatus() map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(read("/proc/thread-self/status")) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

// needed are the capabilities with which root makes sandboxes, found by leaving
// out each: rootfs needs the first three, netns CAP_NET_ADMIN, libcontainer the others.
var needed = []capability.Cap{
	capability.CAP_CHOWN, capability.CAP_DAC_OVERRIDE, capability.CAP_FOWNER, capability.CAP_KILL, capability.CAP_SETGID,
	capability.CAP_SETUID, capability.CAP_NET_ADMIN, capability.CAP_SYS_ADMIN, capability.CAP_SYS_CHROOT, capability.CAP_SYS_PTRACE,
}

// lackingCapabilities are those of the needed ones that the calling thread's
// effective set is without.
func lackingCapabilities() []string {
	var lacking []string
	for _, c := range needed {
		if !hasCapabilities(c) {
			lacking = append(lacking, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	return lacking
}

// hasCapabilities reports whether the calling thread's effective set has all of
// them; where that cannot be read, it has none.
func hasCapabilities(all ...capability.Cap) bool {
	effective, _ := strconv.ParseUint(ProcessStatus()["CapEff"], 16, 64)
	return !slices.ContainsFunc(all, func(c capability.Cap) bool { return effective&(1<<c) == 0 })
}

func probePrivilege(*prober) (string, error) {
	if lacking := lackingCapabilities(); len(lacking) > 0 {
		return "", &absentError{what: fmt.Sprintf("uid %d lacks %s", os.Geteuid(), strings.Join(lacking, ", "))}
	}
	return fmt.Sprintf("uid %d", os.Geteuid()), nil
}
