package spec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Limits bound a sandbox's use of the host. Zero fields take the defaults of
// [DefaultLimits]; IORead, IOWrite and those of the network have none and mean unlimited. These
// and FileSize can be [Unlimited].
type Limits struct {
	// Memory, swap included, in bytes.
	Memory Size `json:"memory,omitempty"`
	// CPUs is the share of processor time: 1.5 is one core and a half.
	CPUs CPUs `json:"cpus,omitempty"`
	// Pids counts processes and threads of each command, at once. All commands of a sandbox
	// together, with its PID 1 and the helpers, can have AgentPids more.
	Pids int64 `json:"pids,omitempty"`
	// FileSize is the largest file the command may write, in bytes.
	FileSize Size `json:"file_size,omitempty"`
	// NoFile is how many descriptors a process of the command may have open.
	NoFile int64 `json:"nofile,omitempty"`
	// ShmSize is the size of /dev/shm. It counts towards the memory as it fills.
	ShmSize Size `json:"shm_size,omitempty"`
	// Disk and Files bound the kept writes of the sandbox, in bytes and in files,
	// directories and links.
	Disk  Size  `json:"disk,omitempty"`
	Files int64 `json:"files,omitempty"`
	// IORead and IOWrite bound disk traffic, in bytes per second.
	IORead  Size `json:"io_read,omitempty"`
	IOWrite Size `json:"io_write,omitempty"`
	// NetworkRate bounds each direction of [NetworkFull], in bytes per second.
	NetworkRate Size `json:"network_rate,omitempty"`
	// NetworkQuota bounds both directions of [NetworkFull] or [NetworkProxied] together, in bytes, in
	// the whole life of the sandbox.
	NetworkQuota Size `json:"network_quota,omitempty"`
	// NetworkRequests bounds the connections and requests of [NetworkProxied] in the whole life of
	// the sandbox. Each request of plain HTTP counts, and each other connection.
	NetworkRequests int64 `json:"network_requests,omitempty"`
}

// Throttled says that disk traffic is limited.
func (l Limits) Throttled() bool { return l.IORead != 0 || l.IOWrite != 0 }

// DefaultLimits are the limits of a sandbox that asks for none. In memory it gets no more
// of Disk than three quarters of its memory.
func DefaultLimits() Limits {
	return Limits{
		Memory: 1 << 30, CPUs: 1, Pids: 512, FileSize: Unlimited, NoFile: 4096, ShmSize: 64 << 20, Disk: 1 << 30, Files: filesOf(1 << 30),
	}
}

// filesOf is the default of Files: one for every 8 KiB, so that trees of many small
// files fit. On disk that reserves a 32nd of the room.
func filesOf(disk Size) int64 { return min(max(int64(disk>>13), minFiles), maxFiles) }

// diskOf is the default of Disk.
func diskOf(c Config) Size {
	disk := DefaultLimits().Disk
	if c.Storage == StorageDisk {
		return disk
	}
	return max(min(disk, c.Limits.Memory/4*3), minDisk) // too little memory is told as such
}

const (
	minDisk  = 1 << 20
	maxSize  = 1 << 50
	minFiles = 4096
	maxFiles = 1 << 31
	minIO    = 64 << 10
	// The queue of the kernel's token bucket filter (tc-tbf(8)) suits rates in between.
	minNetworkRate = 64 << 10
	maxNetworkRate = 128 << 30
)

// A Limit describes one field of [Limits].
type Limit struct {
	// Name of the field in JSON.
	Name string
	// Usage and Default are texts for help. Usage has the unit in backquotes.
	Usage, Default string
	// OfCommand says that a single command can have this limit.
	OfCommand bool
	// Fixed limits do not change while the sandbox is up.
	Fixed bool
	// Networks are those that can have this limit. Nil: the limit is not one of the network.
	Networks []Network
	// kind is the part of a LimitReport. Nil: each host enforces the limit.
	kind func(LimitReport) Enforcement
	field
}

// LimitFields are all limits, in the order of help texts. The default of one may follow
// from those before it.
func LimitFields() []Limit {
	def := DefaultLimits()
	return []Limit{
		{
			Name: "memory", Usage: "`SIZE` of memory and swap", Default: "1g", OfCommand: true,
			kind:  func(r LimitReport) Enforcement { return r.Memory },
			field: amount[Size]{func(l *Limits) *Size { return &l.Memory }, ParseSize, always(def.Memory), 16 << 20, maxSize, 0},
		},
		{
			Name: "cpus", Usage: "`NUMBER` of cores' worth of processor time", Default: "1.0", OfCommand: true,
			kind:  func(r LimitReport) Enforcement { return r.CPU },
			field: amount[CPUs]{func(l *Limits) *CPUs { return &l.CPUs }, ParseCPUs, always(def.CPUs), 0.01, 1 << 12, 0},
		},
		{
			Name: "pids", Usage: "`NUMBER` of processes and threads at once", Default: "512", OfCommand: true,
			kind:  func(r LimitReport) Enforcement { return r.Pids },
			field: amount[int64]{func(l *Limits) *int64 { return &l.Pids }, parseCount, always(def.Pids), 16, 1 << 22, 0}, // PID_MAX_LIMIT of 64-bit Linux
		},
		{
			Name: "file_size", Usage: "`SIZE` of the largest file that may be written", Default: "unlimited", OfCommand: true,
			field: amount[Size]{func(l *Limits) *Size { return &l.FileSize }, ParseSize, always(def.FileSize), 1, 0, 0},
		},
		{
			Name: "nofile", Usage: "`NUMBER` of files that a process may have open", Default: "4096", OfCommand: true,
			field: amount[int64]{func(l *Limits) *int64 { return &l.NoFile }, parseCount, always(def.NoFile), 16, 1 << 30, 0},
		},
		{
			Name: "shm_size", Usage: "`SIZE` of /dev/shm", Default: "64m", Fixed: true,
			field: amount[Size]{func(l *Limits) *Size { return &l.ShmSize }, ParseSize, always(def.ShmSize), 64 << 10, maxSize, 0},
		},
		{
			Name: "disk", Usage: "`SIZE` of all that it keeps of its writes", Default: "1g, in memory 3/4 of --memory at most", Fixed: true,
			field: amount[Size]{func(l *Limits) *Size { return &l.Disk }, ParseSize, diskOf, minDisk, maxSize, 0},
		},
		{
			Name: "files", Usage: "`NUMBER` of files, directories and links in that", Default: "one for each 8k of --disk", Fixed: true,
			field: amount[int64]{func(l *Limits) *int64 { return &l.Files }, parseCount, func(c Config) int64 { return filesOf(c.Limits.Disk) }, minFiles, maxFiles, 0},
		},
		{
			Name: "io_read", Usage: "`BYTES` per second read from disk", Default: "unlimited",
			kind:  func(r LimitReport) Enforcement { return r.IO },
			field: amount[Size]{func(l *Limits) *Size { return &l.IORead }, ParseSize, always[Size](0), minIO, 0, Unlimited},
		},
		{
			Name: "io_write", Usage: "`BYTES` per second written to disk", Default: "unlimited",
			kind:  func(r LimitReport) Enforcement { return r.IO },
			field: amount[Size]{func(l *Limits) *Size { return &l.IOWrite }, ParseSize, always[Size](0), minIO, 0, Unlimited},
		},
		{
			Name: "network_rate", Usage: "`BYTES` per second of --network full, in each direction", Default: "unlimited", Fixed: true, Networks: []Network{NetworkFull},
			field: amount[Size]{func(l *Limits) *Size { return &l.NetworkRate }, ParseSize, always[Size](0), minNetworkRate, maxNetworkRate, Unlimited},
		},
		{
			Name: "network_quota", Usage: "`BYTES` of --network full or proxied, both directions together, in the sandbox's whole life", Default: "unlimited", Fixed: true,
			Networks: []Network{NetworkProxied, NetworkFull},
			field:    amount[Size]{func(l *Limits) *Size { return &l.NetworkQuota }, ParseSize, always[Size](0), 1, maxSize, Unlimited},
		},
		{
			Name: "network_requests", Usage: "`NUMBER` of connections and requests with --network proxied, in the sandbox's whole life", Default: "unlimited", Fixed: true,
			Networks: []Network{NetworkProxied},
			field:    amount[int64]{func(l *Limits) *int64 { return &l.NetworkRequests }, parseCount, always[int64](0), 1, 1 << 40, 0},
		},
	}
}

// CheckNetworkLimits refuses limits of the network in a request for a sandbox with a network that
// cannot have them. A sandbox that loses its network later keeps them.
func (c Config) CheckNetworkLimits() error {
	network := c.Grant().Kind()
	for _, l := range LimitFields() {
		if l.Networks != nil && !slices.Contains(l.Networks, network) && l.Given(c.Limits) && !l.Absent(c.Limits) {
			return &FieldError{Field: "limits." + l.Name, Problem: fmt.Sprintf("needs the network %s", quotedList(l.Networks))}
		}
	}
	return nil
}

// quotedList names networks in a sentence.
func quotedList(networks []Network) string {
	var quoted []string
	for _, n := range networks {
		quoted = append(quoted, strconv.Quote(string(n)))
	}
	return strings.Join(quoted, " or ")
}

// EnforcedIn says whether a host with this report enforces the limit.
func (l Limit) EnforcedIn(r LimitReport) bool { return l.kind == nil || l.kind(r) == Enforced }

// LimitReport says of each kind of limit whether the host enforces it. It is empty if no host
// was asked.
type LimitReport struct {
	Memory Enforcement `json:"memory,omitempty"`
	CPU    Enforcement `json:"cpu,omitempty"`
	Pids   Enforcement `json:"pids,omitempty"`
	Disk   Enforcement `json:"disk,omitempty"`
	IO     Enforcement `json:"io,omitempty"`
}

// NoLimits is the report of a host, or a way to run, that enforces none.
func NoLimits() LimitReport {
	return LimitReport{Memory: Unavailable, CPU: Unavailable, Pids: Unavailable, Disk: Unavailable, IO: Unavailable}
}

// Enforcement is the state of one kind of limit.
type Enforcement string

// A limit is enforced by the kernel, or the host has no means to.
const (
	Enforced    Enforcement = "enforced"
	Unavailable Enforcement = "unavailable"
)

// field is one field of Limits, of any type.
type field interface {
	// Given says that the field is not zero.
	Given(Limits) bool
	// Absent says that the field asks for no limit, where 0 means that.
	Absent(Limits) bool
	// Text is the field's value.
	Text(Limits) string
	// Parse sets the field from the text of a flag. It refuses 0, which would mean the
	// default.
	Parse(l *Limits, text string) error
	// Take sets the field if from has it.
	Take(l *Limits, from Limits)
	// Tighten sets the field if from has less.
	Tighten(l *Limits, from Limits)
	// Above says that the field is more than most has; 0 is no bound.
	Above(l, most Limits) bool
	// Complete sets the field to its default if it is zero.
	Complete(*Config)
	// problem says why the field's value is wrong. Empty: it is right.
	problem(Limits) string
}

// amount is a field. At a most of 0 it has no upper bound. The value absent, if it is not 0, is
// kept as 0, which means no limit.
type amount[T Size | CPUs | int64] struct {
	of          func(*Limits) *T
	parse       func(string) (T, error)
	byDefault   func(Config) T
	least, most T
	absent      T
}

func always[T any](value T) func(Config) T { return func(Config) T { return value } }

func (a amount[T]) Given(l Limits) bool { return *a.of(&l) != 0 }

func (a amount[T]) Absent(l Limits) bool { return a.absent != 0 && *a.of(&l) == a.absent }

func (a amount[T]) Text(l Limits) string { return fmt.Sprint(*a.of(&l)) }

func (a amount[T]) Parse(l *Limits, text string) error {
	v, err := a.parse(text)
	if _, tooLarge := errors.AsType[*tooLargeError](err); tooLarge && a.most != 0 {
		return fmt.Errorf("%s is too large; give %v or less", text, a.most)
	}
	if err != nil {
		return err
	}
	if v <= 0 {
		return fmt.Errorf("%s is too little; give more than 0, or leave the flag out for the default", text)
	}
	*a.of(l) = v
	return nil
}

func (a amount[T]) Take(l *Limits, from Limits) { *a.of(l) = cmp.Or(*a.of(&from), *a.of(l)) }

func (a amount[T]) Tighten(l *Limits, from Limits) {
	if v := *a.of(&from); v != 0 && (*a.of(l) == 0 || v < *a.of(l)) {
		*a.of(l) = v
	}
}

func (a amount[T]) Above(l, most Limits) bool {
	v, bound := *a.of(&l), *a.of(&most)
	return bound != 0 && (v > bound || v != v) // NaN is above each bound
}

func (a amount[T]) Complete(c *Config) {
	v := a.of(&c.Limits)
	if a.Absent(c.Limits) {
		*v = 0
	}
	*v = cmp.Or(*v, a.byDefault(*c))
}

func (a amount[T]) problem(l Limits) string {
	v := *a.of(&l)
	switch {
	case v == 0 && a.byDefault(Config{}) == 0:
		return ""
	case a.most != 0 && (v < a.least || v > a.most || v != v): // NaN is neither
		return fmt.Sprintf("%v is not between %v and %v", v, a.least, a.most)
	case v < a.least:
		return fmt.Sprintf("%v is less than %v", v, a.least)
	}
	return ""
}

// parseCount reads a whole number.
func parseCount(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && n > 0:
		return 0, &tooLargeError{text}
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	return n, nil
}
