package userns

import (
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// IDCount is the number of ids in a sandbox's range.
const IDCount = 65536

// An Owner is a user and a group.
type Owner struct{ UID, GID uint32 }

// IDs is how a sandbox's ids map to the host's.
type IDs struct {
	Base   uint32 // the host's id of the sandbox's id 0
	User   Owner  // the sandbox's user, in ids of the inside
	Direct *Owner // takes the user's place, where a file system cannot be idmapped
}

// IDsOf are the ids of a sandbox whose user namespace has a map. The map can lead the user of the sandbox to a user of
// the host.
func IDsOf(base uint32, user Owner, m Map) IDs {
	i := IDs{Base: base, User: user}
	uid, gid := m.Host(user)
	if host := (Owner{uint32(uid), uint32(gid)}); host != i.Host() {
		i.Direct = &host
	}
	return i
}

// Host is the host's owner behind the sandbox's user.
func (i IDs) Host() Owner {
	if i.Direct != nil {
		return *i.Direct
	}
	return Owner{i.Base + i.User.UID, i.Base + i.User.GID}
}

// Map is the id map of the sandbox's user namespace.
func (i IDs) Map() Map {
	return Map{extents(i.Base, i.User.UID, i.Host().UID), extents(i.Base, i.User.GID, i.Host().GID)}
}

// extents map a range, with one id of the inside to an id of the host's own.
func extents(base, inside, host uint32) []syscall.SysProcIDMap {
	if host == base+inside {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(base), Size: IDCount}}
	}
	var m []syscall.SysProcIDMap
	if inside > 0 {
		m = append(m, syscall.SysProcIDMap{ContainerID: 0, HostID: int(base), Size: int(inside)})
	}
	m = append(m, syscall.SysProcIDMap{ContainerID: int(inside), HostID: int(host), Size: 1})
	if inside < IDCount-1 {
		m = append(m, syscall.SysProcIDMap{ContainerID: int(inside) + 1, HostID: int(base+inside) + 1, Size: IDCount - 1 - int(inside)})
	}
	return m
}

// Single is the map of one user and group to those of the host.
func Single(from, to Owner) Map {
	one := func(from, to uint32) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: int(from), HostID: int(to), Size: 1}}
	}
	return Map{one(from.UID, to.UID), one(from.GID, to.GID)}
}

// Host translates ids of the inside. An id without a translation is -1.
func (m Map) Host(inside Owner) (uid, gid int) {
	return hostID(m.UIDs, inside.UID), hostID(m.GIDs, inside.GID)
}

func hostID(m []syscall.SysProcIDMap, inside uint32) int {
	for _, e := range m {
		if off := int(inside) - e.ContainerID; off >= 0 && off < e.Size {
			return e.HostID + off
		}
	}
	return -1
}

// With is the map with one more id, of users and of groups.
func (m Map) With(inside, host int) Map {
	one := syscall.SysProcIDMap{ContainerID: inside, HostID: host, Size: 1}
	return Map{append(m.UIDs, one), append(m.GIDs, one)}
}

// FromOCI is a map of the OCI's form.
func FromOCI(uids, gids []specs.LinuxIDMapping) Map {
	return Map{fromOCI(uids), fromOCI(gids)}
}

func fromOCI(in []specs.LinuxIDMapping) (out []syscall.SysProcIDMap) {
	for _, m := range in {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
	}
	return out
}

// OCI has extents in the OCI's form.
func OCI(in []syscall.SysProcIDMap) []specs.LinuxIDMapping {
	out := make([]specs.LinuxIDMapping, 0, len(in))
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: uint32(m.ContainerID), HostID: uint32(m.HostID), Size: uint32(m.Size)})
	}
	return out
}
