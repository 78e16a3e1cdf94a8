package spec

import (
	"errors"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

const (
	testPasswd = "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1002:Ann:/home/ann:/bin/sh\r\nann:x:0:0::/:\n\nshort\nno-ids:x:a:b::/:\nempty:x:::::\n" +
		"negative:x:-1:0\nlarge:x:4294967296:0\nagent:x:65535:0\nbare:x:5:6\nposing:x:7:8\n"
	testGroup = "root:x:0:\nstaff:x:50:ann,bob\nadm:x:4:bob\nann:x:1002:\ntwice:x:50:ann\nvideo:x:44:ann\nbad:x:no:posing\n"
)

func TestLookupOfNames(t *testing.T) {
	for name, want := range map[string]User{
		"root":       {},
		"ann":        {UID: 1001, GID: 1002, Groups: []uint32{50, 44}}, // the first line counts, as for getpwnam(3)
		"ann:adm":    {UID: 1001, GID: 4},
		"ann:0":      {UID: 1001},
		"12:staff":   {UID: 12, GID: 50},
		"bare":       {UID: 5, GID: 6},
		"posing:adm": {UID: 7, GID: 4},
	} {
		if got, err := (User{Name: name}).Lookup([]byte(testPasswd), []byte(testGroup)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, want)
		}
	}
}

// No mistake in a file becomes id 0.
func TestLookupOfNamesThatHaveNoIDs(t *testing.T) {
	for name, missing := range map[string]bool{
		"bob": true, "ann:wheel": true,
		"": false, "short": false, "no-ids": false, "empty": false, "negative": false, "large": false, "agent": false, "posing": false, "ann:bad": false,
	} {
		got, err := (User{Name: name}).Lookup([]byte(testPasswd), []byte(testGroup))
		if err == nil || errors.Is(err, ErrNoName) != missing || !reflect.DeepEqual(got, User{}) {
			t.Errorf("%q: got %+v, %v", name, got, err)
		}
	}
}

func TestLookupBoundsTheGroups(t *testing.T) {
	var group strings.Builder
	for i := range maxGroups + 1 {
		group.WriteString("g:x:" + strconv.Itoa(i) + ":ann\n")
	}
	if got, err := (User{Name: "ann"}).Lookup([]byte(testPasswd), []byte(group.String())); err == nil {
		t.Errorf("got %d groups", len(got.Groups))
	}
}

// No form of the files leads to an id of the agent, or to more groups than PID 1 takes.
func FuzzLookup(f *testing.F) {
	f.Add("ann", testPasswd, testGroup)
	f.Add("ann:staff", testPasswd, testGroup)
	f.Add("5:staff", "", testGroup)
	f.Fuzz(func(t *testing.T, name, passwd, group string) {
		u := User{Name: name}
		if _, problem := u.problem(); problem != "" {
			return
		}
		got, err := u.Lookup([]byte(passwd), []byte(group))
		if _, problem := got.problem(); problem != "" || got.Name != "" || err != nil && !reflect.DeepEqual(got, User{}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestUserNamesLeavesOutWhatIsNoName(t *testing.T) {
	got := UserNames([]byte("root:x:0:0\nann:x:7:7::/:\nbob:x:7:7\n\x1b[31mred:x:8:8\n9:x:9:9\nshort:x\nbad:x:no:1\nhuge:x:4294967296:1\n:x:10:1\na b:x:11:11\nlast:x:12"))
	want := map[uint32]string{0: "root", 7: "ann", 12: "last"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNamesOfUsers(t *testing.T) {
	for text, want := range map[string]bool{
		"a": true, "_a-b.c9": true, "A$": true, strings.Repeat("x", 64) + "$": true,
		"": false, "$": false, "a$$": false, "9a": false, "-a": false, ".a": false, "a b": false, "a\n": false, "é": false,
		strings.Repeat("x", 65): false,
	} {
		if got := isName(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
