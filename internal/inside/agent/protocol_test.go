package agent

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

const sources = "../../../cmd/sandbox-agent/"

// TestStagesAreTheAgents compares both lists of stages by number and, but for
// their spelling, by name.
func TestStagesAreTheAgents(t *testing.T) {
	header, err := os.ReadFile(sources + "stages.h")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("stage.go")
	if err != nil {
		t.Fatal(err)
	}
	list := func(text []byte, pattern string) map[string]string {
		found := map[string]string{}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found[strings.ToUpper(strings.ReplaceAll(string(m[1]), "_", ""))] = string(m[2])
		}
		return found
	}
	c := list(header, `STAGE_(\w+) = (\d+),`)
	here := list(source, `Stage(\w+) +Stage = (\d+)`)
	if len(c) < 20 {
		t.Fatalf("only %d stages found in stages.h", len(c))
	}
	for name, number := range c {
		if here[name] != number {
			t.Errorf("%s is %s in stages.h and %q here", name, number, here[name])
		}
		n, _ := strconv.Atoi(number)
		if words := Stage(n).String(); strings.HasPrefix(words, "stage ") {
			t.Errorf("%s has no words", name)
		}
	}
	if len(here) != len(c) {
		t.Errorf("%d stages here, %d in stages.h", len(here), len(c))
	}
}

// TestConstantsAreTheAgents compares the numbers that both ends hold.
func TestConstantsAreTheAgents(t *testing.T) {
	header, err := os.ReadFile(sources + "protocol.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]int{
		"PROTOCOL_VERSION": protocolVersion, "AGENT_ID": agentID,
		"MAX_GROUPS": maxGroups, "MAX_RLIMITS": maxRlimits,
		"PAYLOAD_TTY": payloadTTY, "PAYLOAD_PLAIN_NEWLINES": payloadPlainNewlines,
		"REQUEST_EXEC": int(requestExec), "REQUEST_SIGNAL": int(requestSignal),
		"REQUEST_TIE": int(requestTie), "REQUEST_ATTACH": int(requestAttach),
		"REQUEST_LIST": int(requestList), "REQUEST_FORGET": int(requestForget),
		"REFUSED_TRACE": int(RefusedTrace), "REFUSED_PERF": int(RefusedPerf), "REFUSED_BPF": int(RefusedBPF),
		"REFUSED_NAMESPACE": int(RefusedNamespace), "REFUSED_MOUNT": int(RefusedMount),
		"REQUEST_WITHHOLD": int(requestWithhold), "EVENT_WITHHELD": int(eventWithheld),
		"WITH_CGROUP": withCgroup, "WITH_OUTPUT": withOutput, "WITH_NETWORK": withNetwork, "WITH_ROOT": withRoot, "WITH_PROGRAM": withProgram,
		"MAX_TASKS": maxTasks, "MAX_DETACHED": maxDetached, "ID_SIZE": idSize,
		"EVENT_ATTACHED": int(eventAttached), "EVENT_DRAINED": int(eventDrained), "EVENT_LIST": int(eventList),
		"EVENT_HELLO": int(eventHello), "EVENT_FATAL": int(eventFatal),
		"EVENT_FAILED":   int(eventFailed),
		"EVENT_TERMINAL": int(eventTerminal), "EVENT_EXITED": int(eventExited),
	} {
		want := regexp.MustCompile(name + ` = ` + strconv.Itoa(value) + `\b`)
		if !want.Match(header) {
			t.Errorf("protocol.h lacks %s", want)
		}
	}
	if !bytes.Contains(header, []byte("MAX_PAYLOAD = 8 << 20")) || maxPayload != 8<<20 {
		t.Error("MAX_PAYLOAD differs")
	}
}

// TestAgentRefusesOtherSurroundings starts it where its promises would not
// hold.
func TestAgentRefusesOtherSurroundings(t *testing.T) {
	file, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, test := range map[string]struct {
		option option
		stage  Stage
	}{
		"not process 1":              {setting(childVariable, "yes"), StagePID},
		"process 1 that is to share": {setting(sharedVariable, "yes"), StagePID},
		"id 1000":                    {setting(idVariable, "1000"), StageIdentity},
		"id 0":                       {setting(idVariable, "0"), StageIdentity},
		"no capabilities":            {setting(capsVariable, "none"), StageIdentity},
		"a file as stdin":            {func(c *exec.Cmd) { c.Stdin = file }, StageStdio},
		"a pipe as stderr":           {func(c *exec.Cmd) { c.Stderr = c.ExtraFiles[6] }, StageStdio},
		"a few descriptors":          {setting(filesVariable, "97"), StageLoop},
		"another descriptor":         {func(c *exec.Cmd) { c.ExtraFiles[1] = c.ExtraFiles[0] }, StageControl},
	} {
		s := start(t, test.option)
		err := s.Ready(within(t, testhost.Patience))
		if test.stage == StageControl {
			if !errors.Is(err, ErrGone) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want ErrGone", name, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.stage.String()) {
			t.Errorf("%s: %v, want %s", name, err, test.stage)
		}
		s.Close() // in case it does serve
		s.exits(t, name, test.stage)
	}
}

// sendRequest sends a request of any form and returns the exec's and the set-up
// socket.
func (s *sandbox) sendRequest(t testing.TB, message, payload []byte, files ...int) (exec, setup *socket) {
	t.Helper()
	exec, execTheirs, err := newSocket("exec")
	if err != nil {
		t.Fatal(err)
	}
	setup, setupTheirs, err := newSocket("setup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exec.close(); setup.close() })
	fds := []int{execTheirs, setupTheirs}
	defer func() { descriptor.CloseFD(fds...) }()
	ctx := within(t, testhost.Patience)
	if err := s.control.send(ctx, message, append(fds, files...)); err != nil {
		t.Fatal(err)
	}
	descriptor.CloseFD(fds...)
	fds = nil
	if err := sendParts(ctx, setup, payload); err != nil {
		t.Fatal(err)
	}
	return exec, setup
}

// TestMalformedRequestsAreRefused sends what no host of this version would.
func TestMalformedRequestsAreRefused(t *testing.T) {
	s := open(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	exec := request{kind: requestExec}.encode()
	word := func(at int, value byte) []byte {
		b := bytes.Clone(exec)
		b[at] = value
		return b
	}
	for name, test := range map[string]struct {
		message []byte
		files   []int
	}{
		"short":          {exec[:requestSize-1], nil},
		"one byte":       {exec[:1], nil},
		"long":           {append(bytes.Clone(exec), 0), nil},
		"very long":      {make([]byte, 100_000), nil},
		"unknown kind":   {word(0, 9), nil},
		"signal":         {word(0, byte(requestSignal)), nil},
		"more than said": {exec, []int{n}},
		"less than said": {word(4, 7), []int{n, n}},
		"far more":       {exec, make([]int, 200)},
		"more than room": {word(4, 7), make([]int, 30)},
		"unknown stdio":  {word(4, 8), []int{n}},
	} {
		for i := range test.files {
			test.files[i] = n
		}
		exec, _ := s.sendRequest(t, test.message, nil, test.files...)
		e, _, err := exec.receive(within(t, testhost.Patience), false)
		if err != nil || e.kind != eventFailed || e.stage != StageRequest {
			t.Errorf("%s: %+v, %v, want a refusal", name, e, err)
		}
	}
	// Those without an exec's socket, or with other things in its place.
	ctx := within(t, testhost.Patience)
	for _, fds := range [][]int{nil, {n}, {n, n}, {n, n, n}, {n, n, n, n, n, n}} {
		if err := s.control.send(ctx, exec, fds); err != nil {
			t.Fatal(err)
		}
	}
	s.serves(t)
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// TestMalformedSignalsAreIgnored floods an exec's socket.
func TestMalformedSignalsAreIgnored(t *testing.T) {
	s := open(t)
	p, _ := s.begin(t, command("sleep", "1000"))
	kill := request{kind: requestSignal, signal: unix.SIGKILL}
	var messages [][]byte
	for _, signal := range []syscall.Signal{0, -1, 65, 1 << 30, -1 << 31} {
		messages = append(messages, request{kind: requestSignal, signal: signal}.encode())
	}
	other := kill.encode()
	other[0] = 3
	group := kill.encode()
	group[24] = 2
	messages = append(messages, other, group, kill.encode()[:requestSize-1], append(kill.encode(), 0), request{kind: requestExec}.encode())
	ctx := within(t, testhost.Patience)
	for range 50 {
		for _, m := range messages {
			if err := p.exec.send(ctx, m, nil); err != nil {
				t.Fatal(err)
			}
		}
		// Descriptors that it does not ask for are not kept by it.
		if err := p.exec.send(ctx, other, []int{0, 1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	s.serves(t)
	p.Signal(unix.SIGTERM)
	if exit, err := p.Wait(ctx); err != nil || exit.Status.Signal() != unix.SIGTERM {
		t.Errorf("status %#x, %v", exit.Status, err)
	}
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// TestSocketsThatAreNotSockets hands over other things in their place.
func TestSocketsThatAreNotSockets(t *testing.T) {
	s := open(t)
	c := command("sleep", "0.01")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, f := range []*os.File{r, w, dir} {
		fd := int(f.Fd())
		for _, fds := range [][]int{{fd, fd}, {fd, fd, fd, fd, fd}} {
			r := request{kind: requestExec, payload: len(c.encode())}
			if len(fds) > 2 {
				r.stdio = 7
			}
			if err := s.control.send(within(t, testhost.Patience), r.encode(), fds); err != nil {
				t.Fatal(err)
			}
		}
		s.serves(t)
	}
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// Of the milliseconds since the boot an exit tells the low half, which comes
// round every 49 days.
func TestWhenACommandHasEnded(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		told      uint32
		sinceBoot time.Duration
		want      time.Duration // before now
	}{
		{5000, 5 * time.Second, 0},
		{1500, 5 * time.Second, 3500 * time.Millisecond},
		{math.MaxUint32, (1<<32 + 9) * time.Millisecond, 10 * time.Millisecond},
		{7, (3<<32 + 9) * time.Millisecond, 2 * time.Millisecond},
	} {
		if got := exitTime(test.told, now, test.sinceBoot); !got.Equal(now.Add(-test.want)) {
			t.Errorf("%d, %v after the boot: %v ago", test.told, test.sinceBoot, now.Sub(got))
		}
	}
	if got := exitTime(0, now, time.Hour); !got.IsZero() {
		t.Errorf("what was not told: %v", got)
	}
}
