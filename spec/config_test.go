package spec

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestZeroConfigIsTheSafest(t *testing.T) {
	got, err := Config{}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Network:     NetworkNone,
		Sensitivity: SensitivityPublic,
		PID:         PIDPrivate,
		Grace:       DefaultGrace,
		Limits:      Limits{Memory: 1 << 30, CPUs: 1, Pids: 512, FileSize: Unlimited, NoFile: 4096, ShmSize: 64 << 20, Disk: 768 << 20, Files: 98304},
		User:        &User{UID: 1000, GID: 1000},
		Cwd:         "/workspace",
		Hostname:    "sandbox",
		Seccomp:     "default",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestCommandsStartInTheOnlyOverlay(t *testing.T) {
	for name, tt := range map[string]struct {
		config Config
		want   string
	}{
		"one overlay":        {Config{Overlays: []string{"/a/b/"}}, "/a/b"},
		"two overlays":       {Config{Overlays: []string{"/a", "/b"}}, WorkspacePath},
		"the whole root":     {Config{Overlays: []string{"/"}}, WorkspacePath},
		"with a workspace":   {Config{Overlays: []string{"/a"}, Workspace: "/w"}, WorkspacePath},
		"with a directory":   {Config{Overlays: []string{"/a"}, Cwd: "/tmp"}, "/tmp"},
		"a relative overlay": {Config{Overlays: []string{"a"}}, WorkspacePath},
	} {
		full, err := tt.config.Complete()
		if err != nil || full.Cwd != tt.want {
			t.Errorf("%s: commands start in %q, %v; want %q", name, full.Cwd, err, tt.want)
		}
	}
}

func TestCompleteNamesTheChoices(t *testing.T) {
	tests := []struct {
		config Config
		want   string
	}{
		{Config{Storage: "tape"}, `storage: unknown storage "tape"; use "memory" or "disk"`},
		{Config{Network: "host"}, `network: unknown network "host"; use one of ["none" "proxied" "full"]`},
	}
	for _, tt := range tests {
		if _, err := tt.config.Complete(); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

func TestCompleteNamesEveryBadField(t *testing.T) {
	tests := map[string]struct {
		change func(*Config)
		field  string
	}{
		"memory too small":     {func(c *Config) { c.Limits.Memory = 4096 }, "limits.memory"},
		"memory negative":      {func(c *Config) { c.Limits.Memory = -1 }, "limits.memory"},
		"memory absurd":        {func(c *Config) { c.Limits.Memory = 1 << 60 }, "limits.memory"},
		"cpus negative":        {func(c *Config) { c.Limits.CPUs = -1 }, "limits.cpus"},
		"cpus absurd":          {func(c *Config) { c.Limits.CPUs = 1e9 }, "limits.cpus"},
		"pids too few":         {func(c *Config) { c.Limits.Pids = 1 }, "limits.pids"},
		"pids absurd":          {func(c *Config) { c.Limits.Pids = 1 << 40 }, "limits.pids"},
		"few open files":       {func(c *Config) { c.Limits.NoFile = 15 }, "limits.nofile"},
		"file size negative":   {func(c *Config) { c.Limits.FileSize = -1 }, "limits.file_size"},
		"disk too small":       {func(c *Config) { c.Limits.Disk = 4096 }, "limits.disk"},
		"files too few":        {func(c *Config) { c.Limits.Files = 10 }, "limits.files"},
		"storage unknown":      {func(c *Config) { c.Storage = "tape" }, "storage"},
		"overlay empty":        {func(c *Config) { c.Overlays = []string{""} }, "overlays[0]"},
		"overlay twice":        {func(c *Config) { c.Overlays = []string{"/a", "/a"} }, "overlays[1]"},
		"io read negative":     {func(c *Config) { c.Limits.IORead = -1 }, "limits.io_read"},
		"io write absurd":      {func(c *Config) { c.Limits.IOWrite = 1 }, "limits.io_write"},
		"io write negative":    {func(c *Config) { c.Limits.IOWrite = -1 }, "limits.io_write"},
		"rate negative":        {func(c *Config) { c.Limits.NetworkRate = -1 }, "limits.network_rate"},
		"rate absurd":          {func(c *Config) { c.Limits.NetworkRate = 1 << 40 }, "limits.network_rate"},
		"rate too low":         {func(c *Config) { c.Limits.NetworkRate = 1000 }, "limits.network_rate"},
		"quota negative":       {func(c *Config) { c.Limits.NetworkQuota = -1 }, "limits.network_quota"},
		"network unknown":      {func(c *Config) { c.Network = "open" }, "network"},
		"allow with none":      {func(c *Config) { c.Network, c.Allow = NetworkNone, []string{"192.0.2.1"} }, "allow"},
		"deny with none":       {func(c *Config) { c.Network, c.Deny = NetworkNone, []string{"192.0.2.1"} }, "deny"},
		"observe with full":    {func(c *Config) { c.Network, c.Observe = NetworkFull, true }, "observe"},
		"ask with none":        {func(c *Config) { c.Network, c.Ask = NetworkNone, true }, "ask"},
		"an empty name":        {func(c *Config) { c.Allow = []string{"a.example", ""} }, "allow[1]"},
		"a long name":          {func(c *Config) { c.Deny = []string{strings.Repeat("a", 4097)} }, "deny[0]"},
		"too many names":       {func(c *Config) { c.Allow = slices.Repeat([]string{"a.example"}, 10_001) }, "allow"},
		"publish of a secret":  {func(c *Config) { c.Publish, c.Sensitivity = []string{"80:80"}, SensitivitySecret }, "publish"},
		"publish of port 0":    {func(c *Config) { c.Network, c.Publish = NetworkFull, []string{"80:80", "0:80"} }, "publish[1]"},
		"published twice":      {func(c *Config) { c.Network, c.Publish = NetworkFull, []string{"80:80", "127.0.0.1:80:81"} }, "publish[1]"},
		"too many to publish":  {func(c *Config) { c.Network, c.Publish = NetworkFull, slices.Repeat([]string{"80:80"}, 65) }, "publish"},
		"allow of a name":      {func(c *Config) { c.Network, c.Allow = NetworkFull, []string{"192.0.2.1", "example.com"} }, "allow[1]"},
		"too many to deny":     {func(c *Config) { c.Network, c.Deny = NetworkFull, slices.Repeat([]string{"192.0.2.1"}, 257) }, "deny"},
		"bind source empty":    {func(c *Config) { c.Binds = []Bind{{Target: "/a"}} }, "binds[0].source"},
		"bind target relative": {func(c *Config) { c.Binds = []Bind{{Source: "/a", Target: "a"}} }, "binds[0].target"},
		"bind target climbs":   {func(c *Config) { c.Binds = []Bind{{Source: "/a", Target: "/b/../c"}} }, "binds[0].target"},
		"bind target too long": {func(c *Config) { c.Binds = []Bind{{Source: "/a", Target: "/" + strings.Repeat("b", 4095)}} }, "binds[0].target"},
		"bind target root":     {func(c *Config) { c.Binds = []Bind{{Source: "/a", Target: "/"}} }, "binds[0].target"},
		"bind target twice": {func(c *Config) {
			c.Binds = []Bind{{Source: "/a", Target: "/x"}, {Source: "/b", Target: "/x"}}
		}, "binds[1].target"},
		"bind on workspace": {func(c *Config) {
			c.Workspace, c.Binds = "/w", []Bind{{Source: "/a", Target: WorkspacePath}}
		}, "binds[0].target"},
		"user is the agent":           {func(c *Config) { c.User = &User{UID: AgentID} }, "user.uid"},
		"group is the agent":          {func(c *Config) { c.User = &User{GID: AgentID} }, "user.gid"},
		"unknown pid namespace":       {func(c *Config) { c.PID = "pod" }, "pid"},
		"disk beside the host's pids": {func(c *Config) { c.PID, c.Storage = PIDHost, StorageDisk }, "storage"},
		"groups with the agent's":     {func(c *Config) { c.User = &User{Groups: []uint32{1, AgentID}} }, "user.groups"},
		"too many groups":             {func(c *Config) { c.User = &User{Groups: make([]uint32, 257)} }, "user.groups"},
		"name beside ids":             {func(c *Config) { c.User = &User{Name: "ann", UID: 1} }, "user.name"},
		"name with a line break":      {func(c *Config) { c.User = &User{Name: "ann\n"} }, "user.name"},
		"user wraps around":           {func(c *Config) { c.User = &User{UID: 1<<32 - 1} }, "user.uid"},
		"timeout negative":            {func(c *Config) { c.Timeout = -1 }, "timeout"},
		"cwd relative":                {func(c *Config) { c.Cwd = "tmp" }, "cwd"},
		"cwd with NUL":                {func(c *Config) { c.Cwd = "/a\x00b" }, "cwd"},
		"hostname with slash":         {func(c *Config) { c.Hostname = "a/b" }, "hostname"},
		"hostname with space inside":  {func(c *Config) { c.Hostname = "a b" }, "hostname"},
		"hostname begins with a dash": {func(c *Config) { c.Hostname = "-a" }, "hostname"},
		"hostname ends with a dot":    {func(c *Config) { c.Hostname = "a." }, "hostname"},
		"hostname too long":           {func(c *Config) { c.Hostname = strings.Repeat("a", 65) }, "hostname"},
		"env name with equals":        {func(c *Config) { c.Env = map[string]string{"A=B": ""} }, "env"},
		"env value with NUL":          {func(c *Config) { c.Env = map[string]string{"A": "\x00"} }, "env"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var c Config
			test.change(&c)
			_, err := c.Complete()
			var field *FieldError
			if !errors.As(err, &field) || field.Field != test.field {
				t.Errorf("got %v, want an error of %s", err, test.field)
			}
		})
	}
}

func TestCompleteLeavesItsReceiverAlone(t *testing.T) {
	c := Config{Env: map[string]string{"A": "1"}, Binds: []Bind{{Source: "/a", Target: "/b"}}, User: &User{UID: 5}}
	full, err := c.Complete()
	if err != nil {
		t.Fatal(err)
	}
	full.Env["A"], full.Binds[0].Target, full.User.UID = "2", "/c", 6
	if c.Env["A"] != "1" || c.Binds[0].Target != "/b" || c.User.UID != 5 {
		t.Errorf("receiver changed to %+v", c)
	}
}

func TestReadConfig(t *testing.T) {
	c, err := ReadConfig(strings.NewReader(`{
		"workspace": "/srv/w", "limits": {"memory": "512m", "cpus": "1.5", "pids": 64, "file_size": 4096},
		"timeout": "1m30s", "user": {"uid": 0, "gid": 7}, "env": {"A": "b"}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Workspace: "/srv/w",
		Limits:    Limits{Memory: 512 << 20, CPUs: 1.5, Pids: 64, FileSize: 4096},
		Timeout:   Duration(90 * time.Second),
		User:      &User{UID: 0, GID: 7},
		Env:       map[string]string{"A": "b"},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v\nwant %+v", c, want)
	}
}

func TestGroupInJSONIsTheUsersIfLeftOut(t *testing.T) {
	c, err := ReadConfig(strings.NewReader(`{"user": {"uid": 1234}}`))
	if err != nil || !reflect.DeepEqual(*c.User, User{UID: 1234, GID: 1234}) {
		t.Errorf("got %v, %v", c.User, err)
	}
}

func TestNegativeSizeInJSONIsNamedByItsField(t *testing.T) {
	c, err := ReadConfig(strings.NewReader(`{"limits": {"memory": -1}}`))
	if err != nil {
		t.Fatal(err)
	}
	var field *FieldError
	if _, err := c.Complete(); !errors.As(err, &field) || field.Field != "limits.memory" {
		t.Errorf("got %v", err)
	}
}

func TestReadConfigSaysWhatIsWrong(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"unknown field":    {`{"memroy": "1g"}`, `unknown field "memroy"`},
		"unknown limit":    {`{"limits": {"ram": 1}}`, `unknown field "ram"`},
		"broken":           {"{\n\"cwd\": \n}", "line 3"},
		"cut off":          {`{"cwd": "/`, "unexpected EOF"},
		"empty":            {"", "empty"},
		"wrong kind":       {`{"cwd": 3}`, `line 1: "cwd" is a JSON number; write a string`},
		"no object":        {`[]`, "line 1: the configuration is a JSON array; write an object"},
		"user as a name":   {`{"user": "ann"}`, `"user" is a JSON string; write an object`},
		"seconds":          {`{"timeout": 5}`, `"timeout" is a JSON number; write a string`},
		"one overlay":      {`{"overlays": "x"}`, `"overlays" is a JSON string; write an array`},
		"list of env":      {`{"env": ["A=b"]}`, `"env" is a JSON array; write an object`},
		"pids as text":     {`{"limits": {"pids": "5"}}`, `"limits.pids" is a JSON string; write a number`},
		"bad size":         {`{"limits": {"memory": "lots"}}`, `limits.memory: size "lots"`},
		"bad cpus":         {`{"limits": {"cpus": "NaN"}}`, `limits.cpus: cpus "NaN"`},
		"bad duration":     {`{"timeout": "5 min"}`, `timeout: duration "5 min"`},
		"absurd size":      {`{"limits": {"memory": "99999999999g"}}`, "limits.memory: 99999999999g is too large"},
		"absurd pids":      {`{"limits": {"pids": 99999999999999999999}}`, `"limits.pids": 99999999999999999999 is too large`},
		"second bad limit": {`{"limits": {"disk": "x", "cpus": 2}, "timeout": "1m"}`, `limits.disk: size "x"`},
		"user without uid": {`{"user": {"gid": 5}}`, `user: "uid" is missing`},
		"user without all": {`{"user": {}}`, `user: "uid" is missing`},
		"user of more":     {`{"user": {"uid": 5, "shell": "sh"}}`, `unknown field "shell"`},
		"something after":  {`{} {}`, "follows"},
		"too large":        {`{"cwd": "` + strings.Repeat("a", maxConfig) + `"}`, "larger"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadConfig(strings.NewReader(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to contain %q", err, test.want)
			}
		})
	}
}

func TestEnvironKeepsTheHostOut(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "1")
	c := Config{Env: map[string]string{"TERM": "dumb", "A": "b"}}
	got := strings.Join(c.Environ("/opt/python/bin", "/opt/node/bin"), "\n")
	want := "A=b\nHOME=/home/sandbox\nLANG=C.UTF-8\nPATH=/opt/python/bin:/opt/node/bin:" + basePath + "\nSHELL=/bin/sh\nTERM=dumb\nUSER=sandbox"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	names := Config{Network: NetworkProxied, Hostname: "inside", Env: map[string]string{"HTTPS_PROXY": "mine"}}.Environ()
	for _, want := range []string{"http_proxy=http://198.18.0.1:3128", "HTTPS_PROXY=mine", "NO_PROXY=" + notProxied + ",inside", "no_proxy=" + notProxied + ",inside"} {
		if !slices.Contains(names, want) {
			t.Errorf("got %q, want %s in it", names, want)
		}
	}
	for uid, want := range map[uint32]string{0: "USER=root", 1000: "USER=sandbox"} {
		if got := (Config{User: &User{UID: uid}}).Environ(); !slices.Contains(got, want) {
			t.Errorf("uid %d: got %q, want %s in it", uid, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1": 1, "1k": 1 << 10, "512m": 512 << 20, "1g": 1 << 30, "1.5g": 3 << 29, " 2G ": 2 << 30} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "-1g", "1x", "g", "1 2", "1e30g", "0x10"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

func TestUnlimitedSizes(t *testing.T) {
	c, err := ReadConfig(strings.NewReader(`{"limits": {"file_size": "unlimited", "io_read": "unlimited"}}`))
	if err != nil {
		t.Fatal(err)
	}
	full, err := c.Complete()
	if err != nil || full.Limits.FileSize != Unlimited || full.Limits.IORead != 0 || full.Limits.Throttled() {
		t.Errorf("%+v, %v", full.Limits, err)
	}
	for _, r := range full.Rlimits(nil) {
		if r.Type == "RLIMIT_FSIZE" && (r.Soft != math.MaxUint64 || r.Hard != math.MaxUint64) {
			t.Errorf("%+v", r)
		}
	}
	for name, limits := range map[string]Limits{"memory": {Memory: Unlimited}, "disk": {Disk: Unlimited}} {
		if _, err := (Config{Limits: limits}).Complete(); err == nil || !strings.Contains(err.Error(), "unlimited is not between") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDurationsWithoutAUnitAreSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"30": 30 * time.Second, "1.5": 1500 * time.Millisecond, "1m": time.Minute, "0": 0} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || time.Duration(d) != want {
			t.Errorf("%s: %v, %v", text, time.Duration(d), err)
		}
	}
	for _, text := range []string{"", "inf", "NaN", "1e9", "5 min"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken as %v", text, time.Duration(d))
		}
	}
}

func TestTooLargeValuesAreNotCalledBadlyWritten(t *testing.T) {
	limits := map[string]Limit{}
	for _, l := range LimitFields() {
		limits[l.Name] = l
	}
	for _, tt := range []struct{ name, text, want string }{
		{"memory", "99999999999g", "99999999999g is too large; give 1048576g or less"},
		{"file_size", "99999999999g", "99999999999g is too large; give a smaller number"},
		{"pids", "99999999999999999999", "99999999999999999999 is too large; give 4194304 or less"},
		{"pids", "-99999999999999999999", "-99999999999999999999 is too little; give more than 0, or leave the flag out for the default"},
		{"cpus", "1e999", "1e999 is too large; give 4096 or less"},
		{"cpus", "inf", `cpus "inf": write it like 0.5, 1 or 2.5`},
	} {
		if err := limits[tt.name].Parse(&Limits{}, tt.text); err == nil || err.Error() != tt.want {
			t.Errorf("%s %s: got %v, want %s", tt.name, tt.text, err, tt.want)
		}
	}
	for _, text := range []string{"9999999999h", "99999999999999999999", "1h9999999999999m"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "is too long; give 2562047h or less") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSizeTextIsExact(t *testing.T) {
	for _, size := range []Size{0, 1, 1023, 1 << 10, 1<<10 + 1, 3 << 20, 5 << 30, 1 << 50} {
		if got, err := ParseSize(size.String()); err != nil || got != size {
			t.Errorf("%d became %q and then %d, %v", int64(size), size, got, err)
		}
	}
}

func TestParseUser(t *testing.T) {
	for text, want := range map[string]User{
		"0": {}, "7": {UID: 7, GID: 7}, "7:8": {UID: 7, GID: 8},
		"root": {Name: "root"}, "ann:staff": {Name: "ann:staff"}, "ann:8": {Name: "ann:8"}, "7:staff": {Name: "7:staff"}, "pc-1$": {Name: "pc-1$"},
	} {
		if got, err := ParseUser(text); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":", "1:", ":1", "-1", "1:-1", "4294967296", "0x1", "1:2:3", "1 ",
		"ann:", ":ann", "ann:staff:x", "4294967296:ann", "ann:4294967296", "-ann", "ann x", "ann\n", "a/n", "änn", strings.Repeat("a", 65)} {
		if got, err := ParseUser(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, *got)
		}
	}
}

// Whatever is asked for, no other user comes out (crun's CVE-2026-30892).
func FuzzParseUser(f *testing.F) {
	for _, text := range []string{"0", "1000", "1:2", "-1", "+1", "4294967295", "4294967296", "0x0", "00", " 0", "1:", ":", "", "1:2:3", "1_0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ParseUser(text)
		if err != nil {
			return
		}
		c, err := Config{User: u}.Complete()
		if err != nil {
			return
		}
		if u.Name != "" {
			if u.Name != text || u.UID != 0 || u.GID != 0 {
				t.Errorf("%q became %+v", text, u)
			}
			return
		}
		uid, gid, found := strings.Cut(text, ":")
		if !found {
			gid = uid
		}
		for _, id := range []struct {
			text string
			got  uint32
		}{{uid, c.User.UID}, {gid, c.User.GID}} {
			if id.text == "" || strings.TrimLeft(id.text, "0") != strings.TrimLeft(strconv.FormatUint(uint64(id.got), 10), "0") || id.got >= AgentID {
				t.Errorf("%q became %d:%d", text, c.User.UID, c.User.GID)
			}
		}
	})
}

func TestParseBind(t *testing.T) {
	for text, want := range map[string]Bind{
		"/a:/b":    {Source: "/a", Target: "/b"},
		"/a:/b:ro": {Source: "/a", Target: "/b"},
		"a:/b:rw":  {Source: "a", Target: "/b", Writable: true},
	} {
		if got, err := ParseBind(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "/a", "/a:", ":/b", "/a:/b:", "/a:/b:rx", "/a:/b:ro:rw"} {
		if got, err := ParseBind(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add(`{"limits": {"memory": "1g", "cpus": 1.5}, "user": {"uid": 1}, "binds": [{"source": "/a", "target": "/b"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ReadConfig(strings.NewReader(text))
		if err != nil {
			return
		}
		full, err := c.Complete()
		if err != nil {
			return
		}
		if full.User.UID >= AgentID || full.Limits.Memory <= 0 || full.Limits.Pids <= 0 || !(full.Limits.CPUs > 0) {
			t.Errorf("%q passed as %+v", text, full)
		}
	})
}
