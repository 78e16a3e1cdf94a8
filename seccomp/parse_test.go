package seccomp

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestParseReadsEveryField(t *testing.T) {
	p, err := parse([]byte(`{
		"defaultAction": "SCMP_ACT_ERRNO",
		"defaultErrnoRet": 38,
		"architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
		"flags": ["SECCOMP_FILTER_FLAG_LOG"],
		"syscalls": [
			{"names": ["execve", "read"], "action": "SCMP_ACT_ALLOW"},
			{"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 97,
			 "args": [{"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": 18446744073709551615, "valueTwo": 38},
			          {"index": 1, "op": "SCMP_CMP_NE", "value": 1}]}
		]
	}`))
	if err != nil {
		t.Fatal(err)
	}
	enosys, noFamily := uint(38), uint(97)
	want := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &enosys,
		Architectures:   []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64},
		Flags:           []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"execve", "read"}, Action: specs.ActAllow},
			{Names: []string{"socket"}, Action: specs.ActErrno, ErrnoRet: &noFamily, Args: []specs.LinuxSeccompArg{
				{Index: 0, Op: specs.OpMaskedEqual, Value: ^uint64(0), ValueTwo: 38},
				{Index: 1, Op: specs.OpNotEqual, Value: 1},
			}},
		},
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("have %+v, want %+v", p, want)
	}
}

// TestParseNamesTheField: each message begins with the place of the mistake.
func TestParseNamesTheField(t *testing.T) {
	const (
		list  = `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["execve"], "action": "SCMP_ACT_ALLOW"}, `
		allow = `{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": [`
		equal = `{"index": 1, "op": "SCMP_CMP_EQ", "value": 1}`
	)
	rule := func(r string) string { return list + r + `]}` }
	condition := func(c string) string { return rule(allow + c + `]}`) }
	for _, c := range []struct{ name, profile, message string }{
		{"nothing", ``, "not JSON"},
		{"no object", `[]`, "want an object"},
		{"null", `null`, "want an object"},
		{"cut off", `{"defaultAction": "SCMP_ACT_ERRNO"`, "not JSON"},
		{"more behind", `{"defaultAction": "SCMP_ACT_ALLOW"} {}`, "something follows"},
		{"empty, which runtimes take for unconfined", `{}`, "defaultAction: missing"},
		{"no default action", `{"syscalls": []}`, "defaultAction: missing"},
		{"unknown default action", `{"defaultAction": "ALLOW"}`, `defaultAction: unknown action "ALLOW"`},
		{"default action of another type", `{"defaultAction": 1}`, "defaultAction: want a string, got number"},
		{"default error number of an action without", `{"defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": 1}`, "defaultErrnoRet: SCMP_ACT_ALLOW returns no"},
		{"default error number too high", `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 4096}`, "defaultErrnoRet: 4096 is above"},
		{"default error number negative", `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": -1}`, "defaultErrnoRet: want a whole number"},
		{"unknown field", `{"defaultAction": "SCMP_ACT_ALLOW", "syscall": []}`, "syscall: unknown field"},
		{"field in another case", `{"DefaultAction": "SCMP_ACT_ALLOW"}`, "DefaultAction: unknown field"},
		{"field twice", `{"defaultAction": "SCMP_ACT_ERRNO", "defaultAction": "SCMP_ACT_ALLOW"}`, "defaultAction: given twice"},
		{"architecture", `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["amd64"]}`, `architectures[0]: unknown architecture "amd64"`},
		{"flag", `{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG", "LOG"]}`, `flags[1]: unknown flag "LOG"`},
		{"listener", `{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/x"}`, "listenerPath"},
		{"notification by default", `{"defaultAction": "SCMP_ACT_NOTIFY"}`, "defaultAction: SCMP_ACT_NOTIFY needs a listener"},
		{"no rule allows execve", `{"defaultAction": "SCMP_ACT_ERRNO"}`, "syscalls: no rule allows execve"},
		{"rules of another type", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": {}}`, "syscalls: want a list, got object"},

		{"rule of another type", rule(`"read"`), "syscalls[1]: want an object"},
		{"rule without names", rule(`{"action": "SCMP_ACT_ALLOW"}`), "syscalls[1].names: missing"},
		{"name by number", rule(`{"names": ["1"], "action": "SCMP_ACT_ALLOW"}`), "syscalls[1].names[0]:"},
		{"name with a space", rule(`{"names": ["read", "read "], "action": "SCMP_ACT_ALLOW"}`), "syscalls[1].names[1]:"},
		{"name of a list of names", rule(`{"names": "read", "action": "SCMP_ACT_ALLOW"}`), "syscalls[1].names: want a list, got string"},
		{"rule without action", rule(`{"names": ["read"]}`), "syscalls[1].action: missing"},
		{"unknown action", rule(`{"names": ["read"], "action": "allow"}`), `syscalls[1].action: unknown action "allow"`},
		{"notification", rule(`{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}`), "syscalls[1].action: SCMP_ACT_NOTIFY needs a listener"},
		{"error number", rule(`{"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 65536}`), "syscalls[1].errnoRet: 65536 is above"},
		{"unknown field of a rule", rule(`{"names": ["read"], "action": "SCMP_ACT_ALLOW", "arg": []}`), "syscalls[1].arg: unknown field"},
		{"old form of names", rule(`{"name": "read", "action": "SCMP_ACT_ALLOW"}`), `syscalls[1].name: unknown field, the OCI form has "names"`},
		{"comment", rule(`{"names": ["read"], "action": "SCMP_ACT_ALLOW", "comment": "x"}`), "syscalls[1].comment: unknown field, JSON profiles have no comments"},

		{"argument", condition(`{"index": 6, "op": "SCMP_CMP_EQ", "value": 1}`), "syscalls[1].args[0].index: 6"},
		{"no operator", condition(`{"index": 1, "value": 1}`), "syscalls[1].args[0].op: missing"},
		{"operator", condition(`{"index": 1, "op": "==", "value": 1}`), `syscalls[1].args[0].op: unknown operator "=="`},
		{"unknown field of a condition", condition(`{"index": 1, "op": "SCMP_CMP_EQ", "val": 1}`), "syscalls[1].args[0].val: unknown field"},
		{"value in text", condition(`{"index": 1, "op": "SCMP_CMP_EQ", "value": "0x1"}`), "syscalls[1].args[0].value: want a whole number"},
		{"second value without a mask", condition(`{"index": 1, "op": "SCMP_CMP_EQ", "value": 1, "valueTwo": 1}`), "syscalls[1].args[0].valueTwo: SCMP_CMP_EQ compares"},
		{"mask that never matches", condition(`{"index": 1, "op": "SCMP_CMP_MASKED_EQ", "value": 1, "valueTwo": 3}`), "syscalls[1].args[0].valueTwo: 0x3 has bits outside"},
		{"two conditions on an argument", condition(equal + `, {"index": 1, "op": "SCMP_CMP_NE", "value": 2}`), "syscalls[1].args[1].index: a second condition on argument 1"},

		{"condition behind a rule without", rule(`{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"},
			{"names": ["read", "ioctl"], "action": "SCMP_ACT_KILL", "args": [` + equal + `]}`), "syscalls[2]: ioctl has another answer in syscalls[1]"},
		{"rule without behind a condition", rule(allow + equal + `]}, {"names": ["ioctl"], "action": "SCMP_ACT_LOG"}`), "syscalls[2]: ioctl has another answer in syscalls[1]"},
		{"rule that says what the default says", rule(allow + equal + `]},
			{"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [` + equal + `]}`), "syscalls[1], syscalls[2]: one of the rules for ioctl"},

		{"Docker's form", `{"defaultAction": "SCMP_ACT_ERRNO", "archMap": []}`, "this is Docker's form"},
		{"a rule in Docker's form", rule(`{"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_BPF"]}}`), "this is Docker's form"},
		{"container config", `{"ociVersion": "1.3.0", "linux": {"seccomp": {}}}`, "this is a whole container config"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse([]byte(c.profile))
			if err == nil || !strings.HasPrefix(err.Error(), c.message) {
				t.Errorf("have %v, want %s", err, c.message)
			}
		})
	}
}

// TestParseTakesRulesSideBySide: what checkTogether must not refuse.
func TestParseTakesRulesSideBySide(t *testing.T) {
	for name, rules := range map[string]string{
		"the same answer twice": `{"names": ["read"], "action": "SCMP_ACT_ALLOW"}, {"names": ["read"], "action": "SCMP_ACT_ALLOW"}`,
		"conditions with different answers": `
			{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "op": "SCMP_CMP_EQ", "value": 0}]},
			{"names": ["read"], "action": "SCMP_ACT_KILL", "args": [{"index": 0, "op": "SCMP_CMP_EQ", "value": 1}]}`,
		"the default's answer alone": `{"names": ["read"], "action": "SCMP_ACT_ERRNO"}`,
	} {
		profile := `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["execve"], "action": "SCMP_ACT_LOG"}, ` + rules + `]}`
		if _, err := parse([]byte(profile)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadNamesThePath(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, message := range map[string]string{
		write("bad.json", `{"defaultAction": "x"}`):              "defaultAction: unknown action",
		write("big.json", strings.Repeat(" ", maxFileSize)+`{}`): "larger than",
		filepath.Join(dir, "missing"):                            "no such file",
		dir:                                                      "not a regular file",
		fifo:                                                     "not a regular file",
	} {
		_, err := Load(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), message) {
			t.Errorf("Load(%s): %v, want %s", path, err, message)
		}
	}
	if _, err := Load(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file is %v, want fs.ErrNotExist", err)
	}
}

// FuzzParse: what is accepted stays accepted, and is never an empty profile.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":1,"flags":[],"syscalls":[{"names":["execve"],"action":"SCMP_ACT_ALLOW"}]}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_KILL","args":[{"index":1,"op":"SCMP_CMP_EQ"}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parse(data)
		if err != nil {
			return
		}
		if p.DefaultAction == "" {
			t.Error("a profile without default action, which libcontainer takes for none")
		}
		if err := check(p); err != nil {
			t.Errorf("accepted, then refused: %v", err)
		}
	})
}
