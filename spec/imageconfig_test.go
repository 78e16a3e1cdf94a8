package spec

import (
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
	got, err := image.Below(Config{Env: map[string]string{"A": "mine"}})
	want := Config{Env: map[string]string{"A": "mine", "B": "b=c"}, User: &User{Name: "web:data"}, Cwd: "/srv"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	mine := Config{User: &User{UID: 5, GID: 5}, Cwd: "/mine"}
	if got, err := image.Below(mine); err != nil || got.User.UID != 5 || got.Cwd != "/mine" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := image.Below(Config{Workspace: "/w"}); err != nil || got.Cwd != "" {
		t.Errorf("the directory of a sandbox with a workspace: %+v, %v", got, err)
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
	hostile := ImageConfig{User: "../../etc/passwd"}
	if _, err := hostile.Below(Config{}); err == nil {
		t.Error("a user that is no name: no error")
	}
}
