package spec

import (
	"encoding/json"
	"testing"
	"time"
)

func TestChangeJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600))
	tests := map[string]struct {
		change Change
		want   string
	}{
		"name only": {
			Change{Path: "a/b", Kind: Modified, Type: TypeDirectory, Was: TypeDirectory, Opaque: true},
			`{"path":"a/b","kind":"modified","type":"directory","was":"directory","opaque":true}`,
		},
		"held": {
			Change{Path: "a", Kind: Created, Type: TypeFile, Warning: "git runs it", Held: true},
			`{"path":"a","kind":"created","type":"file","warning":"git runs it","held":true}`,
		},
		"empty file of root": {
			Change{Path: "a", Kind: Created, Type: TypeFile, ModTime: at},
			`{"path":"a","kind":"created","type":"file","mode":0,"uid":0,"gid":0,"size":0,"mod_time":"2026-01-02T02:04:05.000006Z"}`,
		},
		"all of a file": {
			Change{Path: "a", Kind: Created, Type: TypeFile, Mode: 0o4755, UID: 1, GID: 2, Size: 3, ModTime: at, HardLink: "b",
				Xattrs: map[string][]byte{"user.a": {0xff}, "user.\xff": []byte("x")}},
			`{"path":"a","kind":"created","type":"file","mode":2541,"uid":1,"gid":2,"size":3,"mod_time":"2026-01-02T02:04:05.000006Z",` +
				`"hard_link":"b","xattrs":{"user.a":"/w=="},"xattrs_base64":{"dXNlci7/":"eA=="}}`,
		},
		"bytes": {
			Change{Path: "\xff", Kind: Created, Type: TypeSymlink, Link: "\xfe", HardLink: "\xfd"},
			`{"path_base64":"/w==","kind":"created","type":"symlink","link_base64":"/g==","hard_link_base64":"/Q=="}`,
		},
		"device": {
			Change{Path: "a", Kind: Modified, Type: TypeDevice, ModTime: at, Block: true, Major: 7},
			`{"path":"a","kind":"modified","type":"device","mode":0,"uid":0,"gid":0,"size":0,"mod_time":"2026-01-02T02:04:05.000006Z","block":true,"major":7,"minor":0}`,
		},
		"a year that JSON cannot tell": {
			Change{Path: "a", Kind: Created, Type: TypeFile, ModTime: time.Unix(1<<60, 0)},
			`{"path":"a","kind":"created","type":"file","mode":0,"uid":0,"gid":0,"size":0,"mod_time":"9999-12-31T23:59:59Z"}`,
		},
		"a year before all others": {
			Change{Path: "a", Kind: Created, Type: TypeFile, ModTime: time.Unix(-1<<60, 0)},
			`{"path":"a","kind":"created","type":"file","mode":0,"uid":0,"gid":0,"size":0,"mod_time":"0000-01-01T00:00:00Z"}`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(test.change)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
