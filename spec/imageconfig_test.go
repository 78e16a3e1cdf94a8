package spec

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestSettingsOfAnImageHoldWhereThereAreNone(t *testing.T) {
	image, err := ReadImageConfig([]byte(`{"config":{"User":"web:data","Env":["A=image","B=b=c"],"WorkingDir":"srv","Entrypoint":["/run.sh"],"Cmd":["serve"],"Volumes":{"/srv/x/":{},"/tmp/y":{},"var/lib":{}},"Labels":{"a":"b"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	got := image.Below(Config{Env: map[string]string{"A": "mine"}})
	want := Config{Env: map[string]string{"A": "mine", "B": "b=c"}, Cwd: "/srv"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v; want %+v", got, want)
	}
	mine := Config{User: &User{UID: 5, GID: 5}, Cwd: "/mine"}
	if got := image.Below(mine); got.User.UID != 5 || got.Cwd != "/mine" {
		t.Errorf("%+v", got)
	}
	if got := image.Below(Config{Workspace: "/w"}); got.Cwd != "" {
		t.Errorf("the directory of a sandbox with a workspace: %+v", got)
	}
	if got := image.Directories(); !reflect.DeepEqual(got, []string{"/srv/x", "/var/lib"}) {
		t.Errorf("volumes: %q", got)
	}
	for _, c := range []struct{ words, want []string }{{nil, []string{"/run.sh", "serve"}}, {[]string{"a"}, []string{"/run.sh", "a"}}} {
		if got := image.Command(c.words); !reflect.DeepEqual(got, c.want) {
			t.Errorf("command with %q: %q, want %q", c.words, got, c.want)
		}
	}
}

func TestHostileSettingsOfAnImageAreRefused(t *testing.T) {
	volumes := make([]string, maxVolumes+1)
	for i := range volumes {
		volumes[i] = fmt.Sprintf(`"/v%d":{}`, i)
	}
	for _, config := range []string{
		`"Env":["NAME"]`, `"Env":["=value"]`, `"Env":["A=` + strings.Repeat("x", maxImageEnv) + `"]`, `"Volumes":{` + strings.Join(volumes, ",") + `}`, `"User":7`,
	} {
		if _, err := ReadImageConfig([]byte(`{"config":{` + config + `}}`)); err == nil {
			t.Errorf("%.60s: no error", config)
		}
	}
}

// As in Docker, a number alone has the groups of the user with this id, else the group 0.
func TestUserOfAnImage(t *testing.T) {
	files := map[string]string{
		"passwd": "root:x:0:0\nweb:x:5:50:::\nagain:x:5:51:::\nshort:x:6\nbad:x:7:many:::\n:x:9:90:::\nkept:x:8:4294967295:::\n",
		"group":  "root:x:0:\nweb:x:50:\ndata:x:60:web,other\nmore:x:61:other,web\n",
	}
	read := func(name string) ([]byte, error) { return []byte(files[name]), nil }
	for user, want := range map[string]User{
		"5": {UID: 5, GID: 50, Groups: []uint32{60, 61}}, "5:5": {UID: 5, GID: 5}, "web": {UID: 5, GID: 50, Groups: []uint32{60, 61}},
		"5:data": {UID: 5, GID: 60}, "web:data": {UID: 5, GID: 60}, "6": {UID: 6}, "9": {UID: 9, GID: 90}, "1001": {UID: 1001}, "0": {},
	} {
		if got, err := (ImageConfig{User: user}).UserIn(read); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", user, got, err, want)
		}
	}
	for _, user := range []string{"7", "8", "nobody", "web:none", "../../etc/passwd", "5:", "-1", "4294967296"} {
		if got, err := (ImageConfig{User: user}).UserIn(read); err == nil {
			t.Errorf("%s: %+v", user, got)
		}
	}
	failed := errors.New("not a regular file")
	unread := func(string) ([]byte, error) { return nil, failed }
	if got, err := (ImageConfig{User: "5:6"}).UserIn(unread); err != nil || !reflect.DeepEqual(got, User{UID: 5, GID: 6}) {
		t.Errorf("ids need no files: %+v, %v", got, err)
	}
	if got, err := (ImageConfig{User: "5"}).UserIn(unread); !errors.Is(err, failed) {
		t.Errorf("without the files: %+v, %v", got, err)
	}
}
