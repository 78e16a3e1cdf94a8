package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// User is the identity of a command, as seen inside: ids, or a name for them.
type User struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Groups are supplementary groups.
	Groups []uint32 `json:"groups,omitempty"`
	// Name takes the place of the ids. It has the form NAME, NAME:GROUP, NAME:GID or
	// UID:GROUP, with names of the sandbox's /etc/passwd and /etc/group. NAME alone stands
	// for all groups of the user. The program that asks for a sandbox or a command looks the
	// name up; a launcher takes ids only.
	Name string `json:"name,omitempty"`
}

// MaxUserFile is the size of the largest /etc/passwd and /etc/group in which names are
// looked up.
const MaxUserFile = 1 << 20

// maxGroups is the number of groups that PID 1 takes for one command.
const maxGroups = 256

// errNameForIDs is about a request to a launcher.
var errNameForIDs = errors.New("user.name: a launcher takes ids; look the name up first")

// UnmarshalJSON implements [json.Unmarshaler]. A missing gid becomes the uid.
func (u *User) UnmarshalJSON(data []byte) error {
	var given struct {
		UID    *uint32  `json:"uid"`
		GID    *uint32  `json:"gid"`
		Groups []uint32 `json:"groups"`
		Name   string   `json:"name"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&given); err != nil {
		return err
	}
	var none uint32
	switch {
	case given.UID == nil && given.Name == "":
		return errors.New(`"uid" is missing`)
	case given.UID == nil:
		given.UID = &none
	}
	if given.GID == nil {
		given.GID = given.UID
	}
	*u = User{UID: *given.UID, GID: *given.GID, Groups: given.Groups, Name: given.Name}
	return nil
}

// ParseUser reads UID[:GID], or the names that [User] has in place of ids. The gid is the
// uid's if it is left out.
func ParseUser(text string) (*User, error) {
	uids, gids, found := strings.Cut(text, ":")
	if !found {
		gids = uids
	}
	uid, uidErr := strconv.ParseUint(uids, 10, 32)
	gid, gidErr := strconv.ParseUint(gids, 10, 32)
	if uidErr == nil && gidErr == nil {
		return &User{UID: uint32(uid), GID: uint32(gid)}, nil
	}
	if !isUserName(text) {
		return nil, fmt.Errorf("user %.64q: write it as UID, UID:GID, NAME or NAME:GROUP", text)
	}
	return &User{Name: text}, nil
}

// isName says whether a text is a name of a user or group, as useradd(8) makes them, with capital letters
// and dots. A regular expression for that would cost each start of the program more than all other
// variables of this package.
func isName(text string) bool {
	text = strings.TrimSuffix(text, "$")
	if len(text) < 1 || len(text) > 64 {
		return false
	}
	for i := range len(text) {
		c := text[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c != '.' && c != '-' && (c < '0' || c > '9')) {
			return false
		}
	}
	return true
}

// isUserName says whether a text has a name for a user, for a group, or for both.
func isUserName(text string) bool {
	user, group, found := strings.Cut(text, ":")
	if !found {
		return isName(user)
	}
	named := 0
	for _, part := range []string{user, group} {
		_, err := strconv.ParseUint(part, 10, 32)
		switch {
		case isName(part):
			named++
		case err != nil:
			return false
		}
	}
	return named > 0
}

// problem names the field with a mistake, and the mistake.
func (u User) problem() (field, problem string) {
	const kept = "%d is not below %d; the sandbox keeps the ids from there on"
	tooLarge := slices.IndexFunc(u.Groups, func(g uint32) bool { return g >= AgentID })
	switch {
	case u.UID >= AgentID:
		return "uid", fmt.Sprintf(kept, u.UID, AgentID)
	case u.GID >= AgentID:
		return "gid", fmt.Sprintf(kept, u.GID, AgentID)
	case tooLarge >= 0:
		return "groups", fmt.Sprintf(kept, u.Groups[tooLarge], AgentID)
	case len(u.Groups) > maxGroups:
		return "groups", fmt.Sprintf("%d are more than %d", len(u.Groups), maxGroups)
	case u.Name == "":
	case u.UID != 0 || u.GID != 0 || len(u.Groups) > 0:
		return "name", fmt.Sprintf("%.64q stands beside ids; leave one of the two out", u.Name)
	case !isUserName(u.Name):
		return "name", fmt.Sprintf("%.64q is neither NAME nor NAME:GROUP", u.Name)
	}
	return "", ""
}

// Lookup returns the ids of a user with a name. passwd and group are the contents of the
// sandbox's files, and may be of any form. As in Docker, a user without a group gets all groups
// that have it as a member.
func (u User) Lookup(passwd, group []byte) (found User, err error) {
	if !isUserName(u.Name) {
		return User{}, fmt.Errorf("%.64q is neither NAME nor NAME:GROUP", u.Name)
	}
	user, groupName, hasGroup := strings.Cut(u.Name, ":")
	if id, err := strconv.ParseUint(user, 10, 32); err == nil {
		found.UID = uint32(id)
	} else if found.UID, found.GID, err = lookupUser(passwd, user); err != nil {
		return User{}, err
	}
	if !hasGroup {
		found.Groups, err = groupsOf(group, user)
	} else if id, err := strconv.ParseUint(groupName, 10, 32); err == nil {
		found.GID = uint32(id)
	} else if found.GID, err = lookupGroup(group, groupName); err != nil {
		return User{}, err
	}
	if err != nil {
		return User{}, err
	}
	if field, problem := found.problem(); problem != "" {
		return User{}, fmt.Errorf("%s of %q: %s", field, u.Name, problem)
	}
	return found, nil
}

// LookupIn is Lookup with the contents that read returns for the names passwd and group. For a user without a name it
// returns the group and the groups of the user with this uid, and without such a user the group 0.
func (u User) LookupIn(read func(name string) ([]byte, error)) (User, error) {
	passwd, err := read("passwd")
	if err != nil {
		return User{}, err
	}
	group, err := read("group")
	if err != nil {
		return User{}, err
	}
	if u.Name == "" {
		return lookupID(u.UID, passwd, group)
	}
	return u.Lookup(passwd, group)
}

// lookupID takes the first line of a uid, passwd(5).
func lookupID(uid uint32, passwd, group []byte) (User, error) {
	for fields := range lines(passwd) {
		if len(fields) < 4 || fields[2] != strconv.FormatUint(uint64(uid), 10) {
			continue
		}
		gid, err := strconv.ParseUint(fields[3], 10, 32)
		if err != nil {
			return User{}, fmt.Errorf("/etc/passwd: the line of user %d has no gid", uid)
		}
		var groups []uint32
		if fields[0] != "" { // groups without members have the member ""
			if groups, err = groupsOf(group, fields[0]); err != nil {
				return User{}, err
			}
		}
		found := User{UID: uid, GID: uint32(gid), Groups: groups}
		if field, problem := found.problem(); problem != "" {
			return User{}, fmt.Errorf("%s of user %d: %s", field, uid, problem)
		}
		return found, nil
	}
	return User{UID: uid}, nil
}

// ErrNoName says that a file has no line for a name.
var ErrNoName = errors.New("no such name")

// lookupUser takes the first line of a name, passwd(5).
func lookupUser(passwd []byte, name string) (uid, gid uint32, err error) {
	for fields := range lines(passwd) {
		if fields[0] != name {
			continue
		}
		if len(fields) < 4 {
			return 0, 0, fmt.Errorf("/etc/passwd: the line of %s has no ids", name)
		}
		uid, uidErr := strconv.ParseUint(fields[2], 10, 32)
		gid, gidErr := strconv.ParseUint(fields[3], 10, 32)
		if uidErr != nil || gidErr != nil {
			return 0, 0, fmt.Errorf("/etc/passwd: the line of %s has no ids", name)
		}
		return uint32(uid), uint32(gid), nil
	}
	return 0, 0, fmt.Errorf("user %s: %w in /etc/passwd", name, ErrNoName)
}

// UserNames are the names of users by their ids. passwd is the content of the sandbox's file, and may
// have any form. A name that could be taken for something else is left out. The first line of an id
// counts.
func UserNames(passwd []byte) map[uint32]string {
	all := map[uint32]string{}
	for fields := range lines(passwd) {
		if len(fields) < 3 || !isName(fields[0]) {
			continue
		}
		uid, err := strconv.ParseUint(fields[2], 10, 32)
		if _, known := all[uint32(uid)]; err == nil && !known {
			all[uint32(uid)] = fields[0]
		}
	}
	return all
}

// lookupGroup takes the first line of a name, group(5).
func lookupGroup(group []byte, name string) (uint32, error) {
	for fields := range lines(group) {
		if fields[0] == name {
			return groupID(fields)
		}
	}
	return 0, fmt.Errorf("group %s: %w in /etc/group", name, ErrNoName)
}

// groupsOf are the groups that have a user as a member.
func groupsOf(group []byte, user string) (all []uint32, err error) {
	for fields := range lines(group) {
		if len(fields) < 4 || !slices.Contains(strings.Split(fields[3], ","), user) {
			continue
		}
		id, err := groupID(fields)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all, nil
}

func groupID(fields []string) (uint32, error) {
	if len(fields) >= 3 {
		if id, err := strconv.ParseUint(fields[2], 10, 32); err == nil {
			return uint32(id), nil
		}
	}
	return 0, fmt.Errorf("/etc/group: the line of %.64q has no id", fields[0])
}

// lines are the fields of each line of a file, the first of them a name.
func lines(file []byte) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for line := range bytes.Lines(file) {
			if !yield(strings.Split(strings.TrimRight(string(line), "\r\n"), ":")) {
				return
			}
		}
	}
}
