package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// evidence are the facts of a sandbox that looked at its own walls.
type evidence struct {
	config spec.Config // as completed
	inside insideView
	host   hostView
	limits cgroups.Settings
	held   spec.LimitReport // the limits that the host enforces
	// keyring is the sandbox's session keyring, by number.
	keyring int
	// memory and pids are the Results of commands that asked for more than their limit.
	memory, pids spec.Result
	// cpu is the part of a processor that a command had which wanted all of it.
	cpu float64
}

// hostView is the same view outside.
type hostView struct {
	Namespaces map[string]string
	keyring    int
}

type proofStatus string

const (
	proofOK proofStatus = "ok"
	// ProofFailed says that the sandbox lacks the wall.
	ProofFailed   proofStatus = "FAILED"
	proofMissing  proofStatus = "missing" // the host cannot, and the features say so
	proofNotBuilt proofStatus = "not built"
)

type proofReport struct {
	Name   string      `json:"name"`
	Title  string      `json:"title"`
	Status proofStatus `json:"status"`
	Detail string      `json:"detail"`
}

// A Wall is one protection of sandboxes. judge returns a detail for the reader, or an
// error that names the failure.
type Wall struct {
	name, title string
	judge       func(evidence) (string, error)
}

var (
	errNotBuilt = errors.New("")
	errNotHeld  = errors.New("this host does not enforce it")
)

// Walls are the walls that every sandbox must have.
func Walls() []Wall {
	return []Wall{
		{"user", "an ordinary user without groups", judgeUser},
		{"capabilities", "no capabilities", judgeCapabilities},
		{"no_new_privs", "no new privileges", judgeNoNewPrivs},
		{"user_namespace", "a user namespace with host ids of its own", judgeUserNamespace},
		{"namespaces", "pid, mount, network, ipc, uts and cgroup namespaces of its own", judgeNamespaces},
		{"processes", "no process of the host in sight", judgeProcesses},
		{"network", "no network but its own loopback device", judgeNetwork},
		{"host_sockets", "no socket of the host in sight", judgeSockets},
		{"masked_paths", "masked parts of /proc", none("%s can be read", func(v insideView) []string { return v.Masked })},
		{"readonly_paths", "read-only parts of /proc", none("%s can be written", func(v insideView) []string { return v.Changeable })},
		{"readonly_base", "a read-only base, without set-user-ID and devices", judgeBase},
		{"devices", "harmless devices only", judgeDevices},
		{"keyring", "a new session keyring", judgeKeyring},
		{"nested_namespaces", "no namespaces made inside", none("a process in a new one was started: %s", func(v insideView) []string { return v.NewNamespaces })},
		{"seccomp", "refused system calls", judgeSeccomp},
		{"descriptors", "no descriptors but the standard three", none("open are also %s", func(v insideView) []string { return v.Inherited })},
		{"memory_limit", "a limit of memory and swap", ifHeld(judgeMemory, func(r spec.LimitReport) spec.Enforcement { return r.Memory })},
		{"pids_limit", "a limit of processes and threads", ifHeld(judgePids, func(r spec.LimitReport) spec.Enforcement { return r.Pids })},
		{"cpu_limit", "a limit of processor time", ifHeld(judgeCPU, func(r spec.LimitReport) spec.Enforcement { return r.CPU })},
		{"io_limit", "a limit of disk traffic", ifHeld(judgeIO, func(r spec.LimitReport) spec.Enforcement { return r.IO })},
		{"core_limit", "no core dumps", func(e evidence) (string, error) { return judgeRlimit(e, "RLIMIT_CORE", 0) }},
		{"nofile_limit", "a limit of open files", func(e evidence) (string, error) {
			return judgeRlimit(e, "RLIMIT_NOFILE", uint64(e.config.Limits.NoFile))
		}},
		{"fsize_limit", "a limit of file size", judgeFileSize},
		{"landlock", "Landlock as a second wall behind the mounts", func(evidence) (string, error) { return "", errNotBuilt }},
	}
}

// judge goes through the walls.
func judge(e evidence) []proofReport {
	var all []proofReport
	for _, w := range Walls() {
		p := proofReport{Name: w.name, Title: w.title, Status: proofOK}
		detail, err := w.judge(e)
		switch {
		case errors.Is(err, errNotBuilt):
			p.Status = proofNotBuilt
		case errors.Is(err, errNotHeld):
			p.Status, p.Detail = proofMissing, err.Error()
		case err != nil:
			p.Status, p.Detail = ProofFailed, err.Error()
		default:
			p.Detail = detail
		}
		all = append(all, p)
	}
	return all
}

func judgeUser(e evidence) (string, error) {
	v := e.inside
	if v.UID != 1000 || v.GID != 1000 || len(v.Groups) != 0 {
		return "", fmt.Errorf("it is user %d, group %d, with the groups %v", v.UID, v.GID, v.Groups)
	}
	return "uid 1000, gid 1000", nil
}

func judgeCapabilities(e evidence) (string, error) {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if value := e.inside.Status[set]; value == "" || strings.Trim(value, "0") != "" {
			return "", fmt.Errorf("%s is %s", set, value)
		}
	}
	return "all five sets are empty, the bounding one too", nil
}

func judgeNoNewPrivs(e evidence) (string, error) {
	if value := e.inside.Status["NoNewPrivs"]; value != "1" {
		return "", fmt.Errorf("NoNewPrivs is %s", value)
	}
	return "", nil
}

func judgeUserNamespace(e evidence) (string, error) {
	var inside, outside, size uint32
	if _, err := fmt.Sscan(e.inside.UIDMap, &inside, &outside, &size); err != nil {
		return "", fmt.Errorf("uid_map is %q", e.inside.UIDMap)
	}
	if err := differs(e, "user"); err != nil {
		return "", err
	}
	if outside < spec.IDs || size > spec.IDs || strings.Count(e.inside.UIDMap, " ") != 2 {
		return "", fmt.Errorf("uid_map is %q, which has ids of the host", e.inside.UIDMap)
	}
	return fmt.Sprintf("its ids from %d on are the host's from %d on", inside, outside), nil
}

func judgeNamespaces(e evidence) (string, error) {
	for _, kind := range namespaceKinds() {
		if err := differs(e, kind); err != nil {
			return "", err
		}
	}
	return "none is the caller's", nil
}

func differs(e evidence, kind string) error {
	inside, outside := e.inside.Namespaces[kind], e.host.Namespaces[kind]
	if inside == "" || outside == "" || inside == outside {
		return fmt.Errorf("the %s namespace is %q inside and %q outside", kind, inside, outside)
	}
	return nil
}

func judgeProcesses(e evidence) (string, error) {
	// PID 1 and the probe.
	if n := e.inside.Processes; n != 2 {
		return "", fmt.Errorf("%d processes are in sight", n)
	}
	return "PID 1 and itself", nil
}

func judgeNetwork(e evidence) (string, error) {
	if !slices.Equal(e.inside.Links, []string{"lo"}) {
		return "", fmt.Errorf("there are %s", some(e.inside.Links))
	}
	return "", differs(e, "net")
}

func judgeSockets(e evidence) (string, error) {
	if len(e.inside.Sockets) != 0 {
		return "", fmt.Errorf("in sight: %s", some(e.inside.Sockets))
	}
	return "", differs(e, "net") // abstract ones belong to it
}

// none judges a list of things that must not be there. failure names them.
func none(failure string, list func(insideView) []string) func(evidence) (string, error) {
	return func(e evidence) (string, error) {
		if found := list(e.inside); len(found) != 0 {
			return "", fmt.Errorf(failure, some(found))
		}
		return "", nil
	}
}

// judgeBase looks at every mount: writable files are in memory, and the host's files
// cannot lend rights.
func judgeBase(e evidence) (string, error) {
	readonly, all := 0, 0
	for _, m := range e.inside.Mounts {
		if harmless(m.Device) {
			continue // one node, over a name in /dev or over a masked path
		}
		all++
		ro, err := judgeMount(m)
		if err != nil {
			return "", err
		}
		if ro {
			readonly++
		}
	}
	if readonly == 0 {
		return "", errors.New("no mount is read-only")
	}
	return fmt.Sprintf("%d of %d mounts, the others are in memory", readonly, all), nil
}

func judgeMount(m mountView) (readonly bool, err error) {
	options := strings.Split(m.Options, ",")
	inMemory := slices.Contains([]string{"tmpfs", "proc", "devpts", "mqueue"}, m.Type)
	ofDevices := m.Target == "/dev" || m.Target == "/dev/pts" // where nodes are the runtime's
	readonly = slices.Contains(options, "ro")
	switch {
	case readonly && m.Type == "tmpfs":
		// The runtime's own: the root's skeleton, and the masks of directories.
	case !readonly && !inMemory:
		err = fmt.Errorf("%s (%s) can be written", m.Target, m.Type)
	case !slices.Contains(options, "nosuid"):
		err = fmt.Errorf("set-user-ID programs of %s (%s) would count", m.Target, m.Type)
	case !slices.Contains(options, "nodev") && !ofDevices:
		err = fmt.Errorf("devices of %s (%s) would count", m.Target, m.Type)
	}
	return readonly, err
}

// harmless says whether the device is null, zero, full, random, urandom or tty
// (Documentation/admin-guide/devices.txt).
func harmless(number string) bool {
	return slices.Contains([]string{"c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0"}, number)
}

func judgeDevices(e evidence) (string, error) {
	names := slices.Sorted(maps.Keys(e.inside.Devices))
	for _, name := range names {
		if number := e.inside.Devices[name]; !harmless(number) {
			return "", fmt.Errorf("/dev/%s is there (%s)", name, number)
		}
	}
	if len(names) == 0 {
		return "", errors.New("none is there, not even null")
	}
	if e.inside.DeviceMade {
		return "", errors.New("a device node could be made")
	}
	if !e.inside.OwnDevices {
		return "", fmt.Errorf("the nodes are the host's, and locks on them reach the host: %w", errNotHeld)
	}
	return strings.Join(names, " ") + ", the sandbox's own, and none can be made", nil
}

func judgeKeyring(e evidence) (string, error) {
	if e.keyring <= 0 || e.keyring == e.host.keyring {
		return "", fmt.Errorf("number %d inside, %d outside", e.keyring, e.host.keyring)
	}
	return fmt.Sprintf("number %d; the caller's is %d. Asked under a profile that allows to ask", e.keyring, e.host.keyring), nil
}

func judgeSeccomp(e evidence) (string, error) {
	if mode := e.inside.Status["Seccomp"]; mode != "2" {
		return "", fmt.Errorf("no filter is on: mode %q", mode)
	}
	if len(e.inside.Allowed) != 0 || e.inside.Refused != len(forbiddenCalls()) {
		return "", fmt.Errorf("not refused: %s", some(e.inside.Allowed))
	}
	return fmt.Sprintf("%d that were tried, ptrace, bpf, userfaultfd, io_uring and keyctl among them, and sockets of AF_ALG and AF_VSOCK", e.inside.Refused), nil
}

// ifHeld judges a limit that the host enforces. Otherwise the error has the host's reason.
func ifHeld(judge func(evidence) (string, error), held func(spec.LimitReport) spec.Enforcement) func(evidence) (string, error) {
	return func(e evidence) (string, error) {
		if how := held(e.held); how != spec.Enforced {
			return "", fmt.Errorf("%w (%s)", errNotHeld, how)
		}
		return judge(e)
	}
}

func judgeMemory(e evidence) (string, error) {
	limit := e.config.Limits.Memory
	swap := "swap included"
	switch {
	case e.limits.Memory != int64(limit):
		return "", fmt.Errorf("the cgroup has %d bytes, not %d", e.limits.Memory, int64(limit))
	case e.limits.MemoryAndSwap == cgroups.Unknown:
		swap = "without swap, which this host does not count"
	case e.limits.MemoryAndSwap != int64(limit):
		return "", fmt.Errorf("with swap the cgroup has %d bytes, not %d", e.limits.MemoryAndSwap, int64(limit))
	}
	if e.memory.Status != spec.StatusOOMKilled {
		return "", fmt.Errorf("a command that took more than it may: %s", e.memory.Reason)
	}
	return fmt.Sprintf("%s, %s; a command that took more was killed", limit, swap), nil
}

func judgePids(e evidence) (string, error) {
	limit := e.config.Limits.Pids + spec.AgentPids
	if e.limits.Pids != limit {
		return "", fmt.Errorf("the cgroup has %d, not %d", e.limits.Pids, limit)
	}
	if !slices.ContainsFunc(e.pids.Violations, func(v spec.Violation) bool { return strings.Contains(v.Detail, "processes and threads") }) {
		return "", fmt.Errorf("no process was refused to a command that started more than it may: %s", e.pids.Reason)
	}
	return fmt.Sprintf("%d, and %d of PID 1; a command that started more was refused them", e.config.Limits.Pids, spec.AgentPids), nil
}

// mayUse is the part of a processor that a spinning command may have used. A short time
// may be beside the limit: it is one of periods.
var mayUse = 2 * float64(spinning.Limits.CPUs)

func judgeCPU(e evidence) (string, error) {
	limit := float64(e.config.Limits.CPUs)
	if e.limits.CPUs != limit {
		return "", fmt.Errorf("the cgroup has %v processors, not %v", e.limits.CPUs, limit)
	}
	may := float64(spinning.Limits.CPUs)
	if e.cpu > mayUse {
		return "", fmt.Errorf("a command that wanted more used %.2f of the %v processors it may", e.cpu, may)
	}
	return fmt.Sprintf("%v processors; a command that wanted more used %.2f of the %v it had", limit, e.cpu, may), nil
}

func judgeIO(e evidence) (string, error) {
	rate := fmt.Sprint(int64(e.config.Limits.IORead))
	if !slices.ContainsFunc(e.limits.IO, func(rule string) bool { return strings.Contains(rule, rate) }) {
		return "", fmt.Errorf("no disk of the cgroup has the limit %s: %q", rate, e.limits.IO)
	}
	return fmt.Sprintf("%s a second where asked for; in the cgroup %s", e.config.Limits.IORead, strings.Join(e.limits.IO, ", ")), nil
}

func judgeFileSize(e evidence) (string, error) {
	detail, err := judgeRlimit(e, "RLIMIT_FSIZE", uint64(e.config.Limits.FileSize))
	if err != nil {
		return "", err
	}
	if !strings.Contains(e.inside.FileError, "file too large") {
		return "", fmt.Errorf("a byte was written behind it (%s)", e.inside.FileError)
	}
	return detail + ", and a byte behind it is refused", nil
}

func judgeRlimit(e evidence, name string, most uint64) (string, error) {
	got, ok := e.inside.Rlimits[name]
	if !ok || got > most {
		return "", fmt.Errorf("%s is %d, more than %d", name, got, most)
	}
	return fmt.Sprintf("%s is %d", name, got), nil
}

// some names a few of many.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// failures are the names of walls that do not hold.
func failures(proofs []proofReport) []string {
	var failed []string
	for _, p := range proofs {
		if p.Status == ProofFailed {
			failed = append(failed, p.Title)
		}
	}
	slices.Sort(failed)
	return failed
}
