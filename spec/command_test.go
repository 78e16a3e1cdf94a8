package spec

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestCommandsThatMakeNoSense(t *testing.T) {
	for want, c := range map[string]Command{
		"without a program":                 {},
		"without a program;":                {Args: []string{""}},
		"a timeout of -1s":                  {Timeout: Duration(-time.Second)},
		"an output limit of -1":             {OutputLimit: -1},
		`"x" is not an absolute path`:       {Cwd: "x"},
		"a detached command as a trans":     {Detached: true, Transaction: true},
		"a detached command with a termin":  {Detached: true, Terminal: &Winsize{}},
		"plain newlines without a terminal": {PlainNewlines: true},
		"user.uid: 65535 is not below":      {User: &User{UID: AgentID}},
		"user.gid: 65535 is not below":      {User: &User{GID: AgentID}},
		"groups [1 65535]":                  {Groups: []uint32{1, AgentID}},
		"a limit disk for one command":      {Limits: Limits{Disk: 1 << 30}},
		"a limit files for one command":     {Limits: Limits{Files: 5000}},
		"a limit io_read for one command":   {Limits: Limits{IORead: 1 << 20}},
		"a limit io_write for one command":  {Limits: Limits{IOWrite: 1 << 20}},
		"limits.memory: 1k is not between":  {Limits: Limits{Memory: 1 << 10}},
		"limits.pids: -1 is not between":    {Limits: Limits{Pids: -1}},
		"argument 1 has a NUL byte":         {Args: []string{"a", "b\x00"}},
		"the directory has a NUL byte":      {Cwd: "/a\x00"},
		`"A=" is not an environment`:        {Env: map[string]string{"A=": "b"}},
		`"" is not an environment`:          {Env: map[string]string{"": "b"}},
		`"B" is not an environment`:         {Env: map[string]string{"B": "\x00"}},
	} {
		if c.Args == nil && !strings.HasPrefix(want, "without") {
			c.Args = []string{"true"}
		}
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := c.In(Config{}); err == nil {
			t.Errorf("In takes a command that is refused: %s", want)
		}
	}
}

// A launcher that took an unknown name for id 0 would run the command as root inside.
func TestANameIsNoIDForALauncher(t *testing.T) {
	c := Command{Args: []string{"true"}, User: &User{Name: "ann"}}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	if _, err := c.In(Config{}); err == nil {
		t.Error("a name was taken")
	}
}

func TestACommandsOwnConfigurationIsOnTop(t *testing.T) {
	box, err := Config{Env: map[string]string{"A": "box", "B": "box"}, Limits: Limits{Memory: 64 << 20}, Timeout: Duration(time.Hour)}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Command{Args: []string{"true"}}.In(box)
	if err != nil || c.Cwd != WorkspacePath || c.Timeout != box.Timeout || c.Limits != box.Limits || !maps.Equal(c.Env, box.Env) {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = Command{
		Args: []string{"true"}, Env: map[string]string{"A": "own"}, Cwd: "/tmp", User: &User{UID: 7}, Timeout: Duration(time.Second),
		Limits: Limits{Memory: 1 << 30, Pids: 20},
	}.In(box)
	if err != nil || c.Env["A"] != "own" || c.Env["B"] != "box" || c.Cwd != "/tmp" || c.User.UID != 7 || c.Timeout != Duration(time.Second) ||
		c.Limits.Memory != 64<<20 || c.Limits.Pids != 20 {
		t.Errorf("%+v, %v", c, err)
	}
	if box.Env["A"] != "box" {
		t.Error("the sandbox's own environment was changed")
	}
}

// Each field of Limits is in the table: a limit that only the struct has would be neither
// checked nor completed.
func TestEachLimitIsInTheTable(t *testing.T) {
	var all Limits
	for _, l := range LimitFields() {
		if l.Given(all) {
			t.Errorf("%s stands for a field that another limit has", l.Name)
		}
		if err := l.Parse(&all, "1048576"); err != nil {
			t.Fatal(err)
		}
		if !l.Given(all) {
			t.Errorf("%s was not set", l.Name)
		}
	}
	fields := reflect.TypeFor[Limits]()
	for i, l := range LimitFields() {
		if name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ","); name != l.Name {
			t.Errorf("field %s is %s in the table", name, l.Name)
		}
	}
	if fields.NumField() != len(LimitFields()) {
		t.Errorf("%d fields, %d in the table", fields.NumField(), len(LimitFields()))
	}
}
