package spec

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/golden"
)

func testHost() Host {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1879048192, Size: IDs}}
	return Host{
		Root:        "/stage",
		Devices:     "/stage/dev",
		Init:        []string{"/proc/self/fd/3"},
		CgroupsPath: "/sandbox-runtime/x",
		Limits:      LimitReport{Memory: Enforced, CPU: Enforced, Pids: Enforced, IO: Enforced},
		SwapLimit:   true,
		UIDMappings: ids, GIDMappings: ids,
		Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActErrno},
		Disks:   []Disk{{Major: 254, Minor: 0}},
	}
}

func TestBuildGolden(t *testing.T) {
	tests := map[string]struct {
		config Config
		host   func(*Host)
	}{
		"zero": {},
		"full": {
			config: Config{
				Workspace: "/srv/w",
				Hostname:  "box",
				User:      &User{},
				Limits:    Limits{Memory: 64 << 20, CPUs: 1.5, Pids: 20, FileSize: 1 << 20, IORead: 1 << 20, IOWrite: 2 << 20},
			},
			host: func(h *Host) { h.SwapLimit, h.Network = false, "/proc/1/fd/9" },
		},
		"host pid": {
			config: Config{PID: PIDHost},
			host:   func(h *Host) { h.Proc = "/stage/proc" },
		},
		"nothing enforced": {
			config: Config{Limits: Limits{IORead: 1 << 20}},
			host:   func(h *Host) { h.Limits, h.Devices = LimitReport{}, "" },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := test.config.Complete()
			if err != nil {
				t.Fatal(err)
			}
			h := testHost()
			if test.host != nil {
				test.host(&h)
			}
			compareGolden(t, strings.ReplaceAll(name, " ", "-"), Build(c, h))
		})
	}
}

func compareGolden(t *testing.T, name string, s *specs.Spec) {
	t.Helper()
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, name+".json", append(got, '\n'))
}

func TestBuildIsDeterministic(t *testing.T) {
	c, err := Config{Env: map[string]string{"A": "1", "B": "2", "C": "3"}}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	first, err := json.Marshal(Build(c, testHost()))
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if again, _ := json.Marshal(Build(c, testHost())); !bytes.Equal(again, first) {
			t.Fatalf("two builds differ:\n%s\n%s", first, again)
		}
	}
}

func TestRlimitsStayBelowTheInherited(t *testing.T) {
	c := Config{Limits: Limits{FileSize: 100}}
	got := c.Rlimits(map[string]uint64{"RLIMIT_NOFILE": 512, "RLIMIT_FSIZE": 1 << 40})
	want := []specs.POSIXRlimit{
		{Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_FSIZE", Soft: 100, Hard: 100},
		{Type: "RLIMIT_NOFILE", Soft: 512, Hard: 512},
		{Type: "RLIMIT_SIGPENDING", Soft: 4096, Hard: 4096},
		{Type: "RLIMIT_MSGQUEUE", Soft: 819200, Hard: 819200},
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %+v, want %+v", got[i], want[i])
		}
	}
}
