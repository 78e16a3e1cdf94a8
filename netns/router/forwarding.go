package router

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
)

// A setting is a file of /proc/sys/net/ipv4 or ipv6 that lets packets of a device pass the host. The kernel
// asks for the setting of the device through which a packet comes in.
type setting struct{ family, device string }

func (s setting) key() string { return s.family + "/" + s.device }

func (s setting) path() string {
	switch s.family {
	case "ipv6":
		return filepath.Join("/proc/sys/net/ipv6/conf", s.device, "force_forwarding") // "forwarding" makes a host ignore router advertisements
	case reverse.name:
		return filepath.Join("/proc/sys/net/ipv4/conf", s.device, "src_valid_mark")
	}
	return filepath.Join("/proc/sys/net/ipv4/conf", s.device, "forwarding")
}

// reverse stands for IPv4 in the settings of the filter of reverse paths (rp_filter). The filter looks for the way of an
// answer back to its source as if it came from the router, and without the answer's mark. There the rule closedRule
// refuses it. With the setting, the mark of the answer counts.
var reverse = family{name: "mark"}

// settings are the families of settings that the router switches on.
var settings = append(slices.Clone(families), reverse)

// isNeeded says whether answers that come in through the device need the setting.
func (d device) isNeeded(f family) (bool, error) {
	if f.name != reverse.name {
		return d.isUp, nil
	}
	value, err := pathFilter(d.name)
	return d.isUp && value > 0, err
}

// pathFilter is the value of rp_filter. The greater of two settings counts.
func pathFilter(device string) (greatest int, err error) {
	for _, d := range []string{"all", device} {
		text, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv4/conf", d, "rp_filter"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		value, e := strconv.Atoi(strings.TrimSpace(string(text)))
		if err = errors.Join(err, e); err != nil {
			return 0, err
		}
		greatest = max(greatest, value)
	}
	return greatest, nil
}

// isOff is false for a setting that the kernel does not have: before Linux 6.17 no single device
// forwards IPv6.
func (s setting) isOff() (bool, error) { return readsZero(s.path()) }

func readsZero(path string) (bool, error) {
	value, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && bytes.HasPrefix(value, []byte("0")), err
}

// enable does nothing for a device that is gone.
func (s setting) enable() error {
	isOff, err := s.isOff()
	if err != nil || !isOff {
		return err
	}
	return s.write("1")
}

func (s setting) write(value string) error {
	return erase.IgnoreMissing(os.WriteFile(s.path(), []byte(value), 0))
}

// forwardsAll says that the host forwards packets of all devices, also of devices whose own setting is off. IPv4 has no
// such setting: "all" only sets each device.
func forwardsAll(family string) (bool, error) {
	if family != ipv6.name {
		return false, nil
	}
	path := "/proc/sys/net/ipv6/conf/all/forwarding"
	if _, err := os.Stat(path); err != nil {
		return false, nil //nolint:nilerr // the kernel has no IPv6
	}
	isOff, err := readsZero(path)
	return !isOff, err
}

// A forwardingPlan has the devices of the host, and the settings that the router switches on.
type forwardingPlan struct {
	devices []device
	needed  []setting
}

// noteForwarding finds the settings that let packets pass between the router's device and the networks of the host. The
// state names those that were off before, also those that another router has switched on. Settings for which the state
// has no room stay off.
func (o *lockedRouter) noteForwarding(link netlink.Link) (w forwardingPlan, err error) {
	if w.devices, err = networkDevices(o.host); err != nil {
		return w, err
	}
	routers, err := others(o.host, link.Attrs().Name)
	if err != nil {
		return w, err
	}
	before := o.state.clone()
	o.state.forgetGone(w.devices)
	for _, f := range settings {
		if all, err := forwardsAll(f.name); err != nil {
			return w, err
		} else if all {
			continue
		}
		for _, d := range w.devices {
			needs, err := o.noteDevice(d, f, routers)
			if err != nil {
				return w, err
			}
			if needs {
				w.needed = append(w.needed, setting{f.name, d.name})
			}
		}
	}
	if o.state.equal(before) {
		return w, nil
	}
	return w, o.state.write(o.host, link)
}

// enableForwarding guards the devices before the host forwards anything.
func (o *lockedRouter) enableForwarding(link netlink.Link, w forwardingPlan) error {
	for _, f := range o.state.addresses().families() {
		if err := (setting{f.name, link.Attrs().Name}).enable(); err != nil {
			return err
		}
	}
	if err := o.guard(w.devices); err != nil {
		return err
	}
	for _, s := range w.needed {
		if err := s.enable(); err != nil {
			return err
		}
	}
	return nil
}

// noteDevice notes the setting of a device, if it is off or if another router has switched it on. It says
// whether the router may switch the setting on.
func (o *lockedRouter) noteDevice(d device, f family, routers []state) (bool, error) {
	s := setting{f.name, d.name}
	if o.state.has(d, f) {
		o.noteInRoom(d, f, o.state.isException(d, f)) // by its present name, and by its index
		return true, nil
	}
	if needed, err := d.isNeeded(f); err != nil || !needed {
		return false, err
	}
	isOff, err := s.isOff()
	if err != nil {
		return false, err
	}
	if !isOff {
		// A program can have switched all devices on since another router has noted this one. So the note of that router
		// decides whether the device is an exception, and not the present value of "all".
		isException, isShared := sharedWith(routers, d, f)
		return isShared && o.noteInRoom(d, f, isException), nil
	}
	allOff, err := (setting{f.name, "all"}).isOff()
	if err != nil {
		return false, err
	}
	return o.noteInRoom(d, f, !allOff), nil
}

// sharedWith says whether one of the other routers has switched the setting on, and whether this was an exception.
func sharedWith(routers []state, d device, f family) (isException, isShared bool) {
	for _, r := range routers {
		isShared = isShared || r.has(d, f)
		isException = isException || r.isException(d, f)
	}
	return isException, isShared
}

// noteInRoom notes a setting if the alias has room for that.
func (o *lockedRouter) noteInRoom(d device, f family, isException bool) bool {
	noted := o.state.clone()
	noted.noteSetting(d, f, isException)
	if !noted.fitsAlias() {
		return false
	}
	o.state = noted
	return true
}

// restore switches the settings of the router off, except those that another router needs. It says whether there are
// other routers.
func restore(host *netlink.Handle, name string, s state) (areOthers bool, err error) {
	routers, err := others(host, name)
	if err != nil {
		return false, err
	}
	return len(routers) > 0, switchOff(host, s, routers)
}

// switchOff switches the settings of the state off, except those that the other routers need.
func switchOff(host *netlink.Handle, s state, routers []state) error {
	devices, err := networkDevices(host)
	if err != nil {
		return err
	}
	for _, f := range settings {
		allOff, e := (setting{f.name, "all"}).isOff()
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		for _, d := range devices {
			if !s.has(d, f) || slices.ContainsFunc(routers, func(r state) bool { return r.has(d, f) }) {
				continue
			}
			if !allOff && !s.isException(d, f) {
				continue // another program has switched all devices on since, and needs this one, too
			}
			err = errors.Join(err, setting{f.name, d.name}.write("0"))
		}
	}
	return err
}

// A switchedDevice is a device with settings that routers have switched on: its index, and bits.
type switchedDevice int

const (
	switchedIPv4, switchedIPv6 switchedDevice = 1, 2
	// The setting was off although "all" was on: an administrator wants the exception back.
	exceptIPv4, exceptIPv6 switchedDevice = 4, 8
	switchedReverse        switchedDevice = 16
	exceptReverse          switchedDevice = 32
	switchedBits                          = 6
)

func (s switchedDevice) index() int { return int(s >> switchedBits) }

func bitsOf(f family) (on, except switchedDevice) {
	switch f.name {
	case ipv4.name:
		return switchedIPv4, exceptIPv4
	case ipv6.name:
		return switchedIPv6, exceptIPv6
	}
	return switchedReverse, exceptReverse
}

// exceptOf and a family are in state.Enabled if a device of Enabled was off although "all" was on.
const exceptOf = "except/"

// noteSetting notes a setting that the router switches on. Switched has it by the device's index, since names change. The
// settings of uplinks are also in Enabled as FAMILY/DEVICE, for versions of this program that know nothing of Switched.
func (s *state) noteSetting(d device, f family, isException bool) {
	if d.isUplink && f.name != reverse.name {
		s.enable(setting{f.name, d.name}.key())
		if isException {
			s.enable(exceptOf + f.name)
		}
	}
	on, except := bitsOf(f)
	if isException {
		on |= except
	}
	if i := s.placeOf(d); i >= 0 {
		s.Switched[i] |= on
		return
	}
	s.Switched = append(s.Switched, switchedDevice(d.index)<<switchedBits|on)
}

func (s *state) enable(key string) {
	if !slices.Contains(s.Enabled, key) {
		s.Enabled = append(s.Enabled, key)
	}
}

func (s *state) placeOf(d device) int {
	return slices.IndexFunc(s.Switched, func(w switchedDevice) bool { return w.index() == d.index })
}

// has says whether the routers have switched the setting on.
func (s *state) has(d device, f family) bool {
	on, _ := bitsOf(f)
	return slices.Contains(s.Enabled, setting{f.name, d.name}.key()) || s.hasBit(d, on)
}

func (s *state) hasBit(d device, bit switchedDevice) bool {
	i := s.placeOf(d)
	return i >= 0 && s.Switched[i]&bit != 0
}

// isException says whether the setting was off although "all" was on.
func (s *state) isException(d device, f family) bool {
	on, except := bitsOf(f)
	if s.hasBit(d, on) {
		return s.hasBit(d, except)
	}
	return slices.Contains(s.Enabled, setting{f.name, d.name}.key()) && slices.Contains(s.Enabled, exceptOf+f.name)
}

// forgetGone makes room: devices that are gone have no settings.
func (s *state) forgetGone(devices []device) {
	s.Switched = slices.DeleteFunc(s.Switched, func(w switchedDevice) bool {
		return !slices.ContainsFunc(devices, func(d device) bool { return d.index == w.index() })
	})
	s.Enabled = slices.DeleteFunc(s.Enabled, func(key string) bool {
		_, name, _ := strings.Cut(key, "/")
		return !strings.HasPrefix(key, exceptOf) && !slices.ContainsFunc(devices, func(d device) bool { return d.name == name })
	})
}

func (s *state) clone() state {
	c := *s
	c.Enabled, c.Switched = slices.Clone(s.Enabled), slices.Clone(s.Switched)
	return c
}

func (s *state) equal(o state) bool {
	return slices.Equal(s.Enabled, o.Enabled) && slices.Equal(s.Switched, o.Switched)
}
