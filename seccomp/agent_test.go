package seccomp

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestBuiltInProfilesServeTheAgent(t *testing.T) {
	for _, name := range []string{"default", "strict", "debug"} {
		p, err := Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		before := encoded(t, p)
		after, err := ForAgent(p, true)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if encoded(t, p) != before {
			t.Errorf("%s: the profile that was given has changed", name)
		}
		if err := check(after); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// Nothing but the four has another answer.
		for _, rule := range slices.Concat(p.Syscalls, after.Syscalls) {
			for _, call := range rule.Names {
				want := allows(p, call) || call == "clone3" || call == "chroot" || call == "accept4" || call == "seccomp"
				if allows(after, call) != want {
					t.Errorf("%s: %s is allowed: %v", name, call, !want)
				}
			}
		}
	}
}

func TestForAgentAnswersClone3WhateverTheProfileSays(t *testing.T) {
	enosys := uint(38)
	for name, rules := range map[string][]specs.LinuxSyscall{
		"not named": nil,
		"refused":   {{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys}},
		"killed":    {{Names: []string{"clone3", "setns"}, Action: specs.ActKillProcess}},
		"by argument": {{Names: []string{"clone3"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
			{Index: 1, Value: 88, Op: specs.OpEqualTo},
		}}},
	} {
		for _, p := range []*specs.LinuxSeccomp{
			{DefaultAction: specs.ActErrno, Syscalls: append([]specs.LinuxSyscall{{Names: neededByAgent(runtime.GOARCH), Action: specs.ActAllow}}, rules...)},
			{DefaultAction: specs.ActAllow, Syscalls: rules},
		} {
			have, err := ForAgent(p, true)
			if err != nil {
				t.Fatal(name, err)
			}
			if rules := rulesFor("clone3", have); len(rules) != 1 || rules[0].Action != specs.ActAllow || len(rules[0].Args) > 0 {
				t.Errorf("%s, default %s: rules for clone3: %v", name, p.DefaultAction, rules)
			}
			without, err := ForAgent(p, false)
			if err != nil {
				t.Fatal(name, err)
			}
			if rules := rulesFor("clone3", without); len(rules) != 1 || rules[0].Action != specs.ActErrno ||
				*rules[0].ErrnoRet != enosys || len(rules[0].Args) > 0 {
				t.Errorf("%s, default %s: rules for clone3 without cgroups to fork into: %v", name, p.DefaultAction, rules)
			}
			if allows(have, "setns") != (name != "killed" && p.DefaultAction == specs.ActAllow) {
				t.Errorf("%s, default %s: setns has another answer", name, p.DefaultAction)
			}
		}
	}
}

func rulesFor(name string, p *specs.LinuxSeccomp) (found []specs.LinuxSyscall) {
	for _, rule := range p.Syscalls {
		if slices.Contains(rule.Names, name) {
			found = append(found, rule)
		}
	}
	return found
}

func TestForAgentNamesWhatIsMissing(t *testing.T) {
	needed := neededByAgent(runtime.GOARCH)
	for _, name := range needed {
		if name == "accept4" || name == "chroot" || name == "seccomp" {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(needed), func(n string) bool { return n == name })
		for _, p := range []*specs.LinuxSeccomp{
			{DefaultAction: specs.ActKill, Syscalls: []specs.LinuxSyscall{{Names: others, Action: specs.ActAllow}}},
			{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{name}, Action: specs.ActTrap}}},
		} {
			if _, err := ForAgent(p, true); err == nil || !strings.Contains(err.Error(), " needs "+name+":") {
				t.Errorf("without %s, default %s: %v", name, p.DefaultAction, err)
			}
		}
	}
}

// A profile under which a program may listen says itself whether it may accept.
func TestForAgentLetsNobodyAcceptWhoMayListen(t *testing.T) {
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		{Names: strings.Fields(agentCalls + olderCalls + "ppoll"), Action: specs.ActAllow},
	}}
	have, err := ForAgent(p, true)
	if err != nil || !allows(have, "accept4") {
		t.Errorf("without listen: %v", err)
	}
	p.Syscalls[0].Names = append(p.Syscalls[0].Names, "listen")
	if _, err := ForAgent(p, true); err == nil || !strings.Contains(err.Error(), " needs accept4:") {
		t.Errorf("with listen: %v", err)
	}
}

// The built-in profiles refuse filters. A profile of the user's own has the last word.
func TestProfilesSayWhetherCommandsMayFilter(t *testing.T) {
	for _, name := range []string{"default", "strict", "debug"} {
		p, err := Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		if CommandsMayFilter(p) {
			t.Errorf("%s lets commands load filters", name)
		}
	}
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		{Names: strings.Fields(agentCalls + olderCalls + "ppoll"), Action: specs.ActAllow},
	}}
	if CommandsMayFilter(p) {
		t.Error("a profile that does not name seccomp lets commands load filters")
	}
	have, err := ForAgent(p, false)
	if err != nil || !allows(have, "seccomp") {
		t.Errorf("the agent has no seccomp: %v", err)
	}
	p.Syscalls[0].Names = append(p.Syscalls[0].Names, "seccomp")
	if !CommandsMayFilter(p) {
		t.Error("a profile that allows seccomp lets commands load no filters")
	}
}

func encoded(t *testing.T, p *specs.LinuxSeccomp) string {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
