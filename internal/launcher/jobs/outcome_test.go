package jobs

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// exited and killed are wait statuses as the kernel encodes them, wait(2).
func exited(code int) syscall.WaitStatus           { return syscall.WaitStatus(code << 8) }
func killed(sig syscall.Signal) syscall.WaitStatus { return syscall.WaitStatus(sig) }

func TestEndingsAreToldApart(t *testing.T) {
	tests := map[string]struct {
		end        commandEnd
		status     spec.Status
		code       int
		signal     string
		reason     string
		violations []string
	}{
		"success": {commandEnd{known: true}, spec.StatusExited, 0, "", "succeeded", nil},
		"exit 7":  {commandEnd{known: true, status: exited(7)}, spec.StatusExited, 7, "", "exit code 7", nil},
		"exit 137 of a shell whose child was killed": {
			commandEnd{known: true, status: exited(137), oomKills: 1}, spec.StatusExited, 137, "", "exit code 137", []string{"memory limit"}},
		"exit 7 without a network":  {commandEnd{known: true, status: exited(7), missedNetwork: true}, spec.StatusExited, 7, "", "exit code 7; a connection or a lookup of a name failed, since the sandbox has no network (--network none)", nil},
		"exit 1 of strace":          {commandEnd{known: true, status: exited(1), missedNetwork: true, forbids: "no tracing"}, spec.StatusExited, 1, "", "exit code 1; no tracing", nil},
		"success of strace":         {commandEnd{known: true, status: exited(0), forbids: "no tracing"}, spec.StatusExited, 0, "", "the command succeeded", nil},
		"success without a network": {commandEnd{known: true, status: exited(0), missedNetwork: true}, spec.StatusExited, 0, "", "the command succeeded", nil},
		"success after a child ran out of memory": {
			commandEnd{known: true, status: exited(0), oomKills: 1}, spec.StatusExited, 0, "", "succeeded; memory ran out at 64m", []string{"(raise it with --memory)"}},
		"success after refused forks": {
			commandEnd{known: true, status: exited(0), forksRefused: 3}, spec.StatusExited, 0, "", "succeeded; the limit of 20 processes", []string{"(raise it with --pids)"}},
		"exit 7 without a quota of the network": {
			commandEnd{known: true, status: exited(7), network: networkUse{quota: 1 << 20}}, spec.StatusExited, 7, "", "exit code 7; the quota of 1m of the network is used up", []string{"(raise it with --network-quota)"}},
		"exit 6 after a refusal": {
			commandEnd{known: true, status: exited(6), network: networkUse{refused: 1, reasons: []string{"a.test is not allowed"}}}, spec.StatusExited, 6, "",
			"exit code 6; a.test is not allowed", []string{"a.test is not allowed"}},
		"success after a refusal": {
			commandEnd{known: true, status: exited(0), network: networkUse{refused: 2}}, spec.StatusExited, 0, "", "the command succeeded", []string{"refused: 2"}},
		"exit 7 without requests": {
			commandEnd{known: true, status: exited(7), network: networkUse{requests: 50}}, spec.StatusExited, 7, "", "the 50 requests", []string{"(raise it with --network-requests)"}},
		"timeout": {commandEnd{timedOut: true}, spec.StatusTimedOut, 124, "", "2s", nil},
		"timeout, ended by SIGTERM": {
			commandEnd{known: true, timedOut: true, asked: true, status: killed(syscall.SIGTERM)}, spec.StatusTimedOut, 124, "", "after 2s and ended after SIGTERM", nil},
		"timeout, exit 0 after SIGTERM": {
			commandEnd{known: true, timedOut: true, asked: true, status: exited(0)}, spec.StatusTimedOut, 124, "", "ended by itself after SIGTERM, with exit code 0", nil},
		"timeout, killed after SIGTERM": {
			commandEnd{known: true, timedOut: true, asked: true, grace: time.Second, status: killed(syscall.SIGKILL)}, spec.StatusTimedOut, 124, "", "did not end within 1s after SIGTERM", nil},
		"timeout after the end": {commandEnd{known: true, timedOut: true, status: exited(3)}, spec.StatusExited, 3, "", "exit code 3", nil},
		"given up, exit 0 after SIGTERM": {
			commandEnd{known: true, cancelled: true, asked: true, status: exited(0)}, spec.StatusSignaled, 143, "SIGTERM", "gave up, and the command ended by itself after SIGTERM", nil},
		"given up, killed after SIGTERM": {
			commandEnd{known: true, cancelled: true, asked: true, grace: time.Second, status: killed(syscall.SIGKILL)}, spec.StatusSignaled, 137, "SIGKILL", "did not end within 1s", nil},
		"removed, ended by SIGTERM": {
			commandEnd{known: true, removed: true, status: killed(syscall.SIGTERM)}, spec.StatusLost, 137, "SIGKILL", "the sandbox was removed", nil},
		"removed, exit 0": {commandEnd{known: true, removed: true, status: exited(0)}, spec.StatusExited, 0, "", "succeeded", nil},
		"timeout after a child ran out of memory": {
			commandEnd{timedOut: true, oomKills: 2}, spec.StatusTimedOut, 124, "", "2s", []string{"memory limit"}},
		"out of memory": {
			commandEnd{known: true, status: killed(syscall.SIGKILL), oomKills: 1}, spec.StatusOOMKilled, 137, "SIGKILL", "64m", []string{"memory limit"}},
		"all out of memory": {commandEnd{oomKills: 3}, spec.StatusOOMKilled, 137, "SIGKILL", "64m", []string{"memory limit"}},
		"the host out of memory": {
			commandEnd{known: true, status: killed(syscall.SIGKILL), oomKills: 1, shortOutside: true}, spec.StatusOOMKilled, 137, "SIGKILL", "all its sandboxes together", nil},
		"exit 1 of a shell whose child was killed when the host was out of memory": {
			commandEnd{known: true, status: exited(1), oomKills: 1, shortOutside: true}, spec.StatusExited, 1, "", "all its sandboxes together", nil},
		"sandbox lost when the host was out of memory": {commandEnd{lost: fateOOMOutside}, spec.StatusLost, 137, "SIGKILL", "all its sandboxes together", nil},
		"killed by itself": {commandEnd{known: true, status: killed(syscall.SIGKILL)}, spec.StatusSignaled, 137, "SIGKILL", "signal 9", nil},
		"terminated":       {commandEnd{known: true, status: killed(syscall.SIGTERM)}, spec.StatusSignaled, 143, "SIGTERM", "signal 15", nil},
		"segfault beside a child out of memory": {
			commandEnd{known: true, status: killed(syscall.SIGSEGV), oomKills: 1}, spec.StatusSignaled, 139, "SIGSEGV", "signal 11", []string{"memory limit"}},
		"file too large": {commandEnd{known: true, status: killed(syscall.SIGXFSZ)}, spec.StatusLimit, 153, "SIGXFSZ", "1m", []string{"file size"}},
		"file larger than the host allows": {
			commandEnd{known: true, status: killed(syscall.SIGXFSZ), limits: spec.Limits{FileSize: spec.Unlimited}}, spec.StatusLimit, 153, "SIGXFSZ", "ulimit -f", []string{"file size"}},
		"refused trace": {commandEnd{known: true, status: syscall.WaitStatus(1 << 8), profile: "default", refused: agent.RefusedTrace, missedNetwork: true},
			spec.StatusExited, 1, "", "exit code 1; the profile default refused to trace a process (ptrace), as debuggers and LeakSanitizer do (allow it with --seccomp debug)",
			[]string{"--seccomp debug"}},
		"refused trace that the command does without": {commandEnd{known: true, profile: "strict", refused: agent.RefusedTrace},
			spec.StatusExited, 0, "", "the command succeeded", []string{"the profile strict refused to trace"}},
		"refused namespace, and memory ran out": {commandEnd{known: true, status: syscall.WaitStatus(1 << 8), profile: "default", refused: agent.RefusedNamespace | agent.RefusedMount, oomKills: 1},
			spec.StatusExited, 1, "", "the kernel killed a process it had started", []string{"memory", "a new namespace", "a mount"}},
		"32-bit program": {commandEnd{known: true, status: killed(syscall.SIGSYS), profile: "strict"}, spec.StatusDenied, 159, "SIGSYS",
			"as for a 32-bit system call: the profile strict allows 64-bit programs only", []string{"forbidden"}},
		"32-bit program of a shell": {commandEnd{known: true, status: syscall.WaitStatus(159 << 8), profile: "default"}, spec.StatusExited, 159, "",
			"this exit code is usual after a 32-bit system call: the profile default allows 64-bit programs only", nil},
		"forbidden call": {commandEnd{known: true, status: killed(syscall.SIGSYS)}, spec.StatusDenied, 159, "SIGSYS", "system call", []string{"forbidden"}},
		"forks refused":  {commandEnd{known: true, status: exited(2), forksRefused: 9}, spec.StatusExited, 2, "", "exit code 2", []string{"limit of 20"}},
		"a shell whose child wrote too much": {
			commandEnd{known: true, status: exited(153)}, spec.StatusExited, 153, "", "larger than 1m", nil},
		"a shell whose child was forbidden": {
			commandEnd{known: true, status: exited(159)}, spec.StatusExited, 159, "", "system call", nil},
		"no room": {
			commandEnd{known: true, status: exited(1), full: []fullFileSystem{{"", "the disk is full", "disk limit"}}}, spec.StatusExited, 1, "", "; the disk is full", []string{"disk limit"}},
		"ended before its time was over": {
			commandEnd{known: true, status: exited(0), timedOut: true}, spec.StatusExited, 0, "", "succeeded", nil},
		"sandbox out of memory": {commandEnd{lost: fateOOM}, spec.StatusLost, 137, "SIGKILL", "64m of memory", nil},
		"sandbox removed":       {commandEnd{lost: fateRemoved}, spec.StatusLost, 137, "SIGKILL", "removed", nil},
		"sandbox gone":          {commandEnd{}, spec.StatusLost, 137, "SIGKILL", "outside", nil},
		"caller gave up":        {commandEnd{cancelled: true}, spec.StatusSignaled, 137, "SIGKILL", "gave up", nil},
		"caller gave up, and a shell could not fork for its last moment": {
			commandEnd{cancelled: true, known: true, status: exited(2), forksStopped: 1}, spec.StatusSignaled, 137, "SIGKILL", "gave up", nil},
		"timeout of such a shell": {
			commandEnd{timedOut: true, known: true, status: exited(2), forksStopped: 1}, spec.StatusTimedOut, 124, "", "2s", nil},
		"failed before the caller gave up": {
			commandEnd{cancelled: true, known: true, status: exited(2)}, spec.StatusExited, 2, "", "exit code 2", nil},
	}
	limits := spec.Limits{Memory: 64 << 20, Pids: 20, FileSize: 1 << 20}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var r spec.Result
			test.end.timeout = 2 * time.Second
			if test.end.limits == (spec.Limits{}) {
				test.end.limits = limits
			}
			test.end.describe(&r)
			if r.Status != test.status || r.ExitCode != test.code || r.Signal != test.signal {
				t.Errorf("got %s %d %q, want %s %d %q", r.Status, r.ExitCode, r.Signal, test.status, test.code, test.signal)
			}
			if !strings.Contains(r.Reason, test.reason) {
				t.Errorf("reason %q does not say %q", r.Reason, test.reason)
			}
			if len(r.Violations) != len(test.violations) {
				t.Fatalf("violations %v, want %v", r.Violations, test.violations)
			}
			for i, want := range test.violations {
				if !strings.Contains(r.Violations[i].Detail, want) {
					t.Errorf("violation %v does not say %q", r.Violations[i], want)
				}
			}
		})
	}
}

// Of what a command that did not fail has left full it is told what it has written to.
func TestFullDisksOfASuccessAreThoseWrittenTo(t *testing.T) {
	binds := []string{"/workspace", "/workspace/deep", "/data"}
	all := []fullFileSystem{{"", "store", "store"}, {"/workspace", "workspace", "workspace"}, {"/workspace/deep", "deep", "deep"}, {sharedMemory, "shared", "shared"}}
	for want, files := range map[string]*spec.Files{
		"":                  nil,
		"; store":           {Created: []string{"/tmp/x"}},
		"; workspace":       {Modified: []string{"/workspace/x", "/data/x"}},
		"; deep":            {Created: []string{"/workspace/deep/x"}, Deleted: []string{"/tmp/x"}},
		"; store; deep":     {Created: []string{"/workspaces"}, Modified: []string{"/workspace/deep"}},
		" ":                 {Deleted: []string{"/tmp/x"}},
		"; store ":          {Created: []string{"/home/x", "/tmp/x"}},
		"; workspace; deep": {Created: []string{"/workspace/x", "/workspace/deep/x"}},
	} {
		var r spec.Result
		tellFull(&r, all, writtenTo(files, binds))
		if want := strings.TrimRight(want, " "); r.Reason != want || len(r.Violations) != strings.Count(want, ";") {
			t.Errorf("%+v: %q, %v, want %q", files, r.Reason, r.Violations, want)
		}
	}
}
