package processes

import "testing"

func TestLinesOfThePidsAreKept(t *testing.T) {
	for _, c := range []struct {
		name, out, kept, fault string
	}{
		{name: "the column may be any", out: "USER PID CMD\nroot 7 a 8\nroot 8 b\nroot 71 c\n", kept: "USER PID CMD\nroot 8 b\n"},
		{name: "no such process", out: "  PID CMD\n    1 init\n", kept: "  PID CMD\n"},
		{name: "empty lines and no last newline", out: "PID\n\n8", kept: "PID\n8\n"},
		{name: "no column PID", out: "USER CMD\nroot a\n", fault: "couldn't find PID field in ps output"},
		{name: "nothing", out: "", fault: "couldn't find PID field in ps output"},
		{name: "a line that is too short", out: "USER PID\nroot\n", fault: `unable to parse pid: no field 2 in "root\n"`},
		{name: "a line without a number", out: "PID\nx\n", fault: `unable to parse pid: strconv.Atoi: parsing "x": invalid syntax`},
	} {
		kept, err := linesOf(c.out, []int{8, 9}, nil)
		fault := ""
		if err != nil {
			fault = err.Error()
		}
		if kept != c.kept || fault != c.fault {
			t.Errorf("%s: %q, %q", c.name, kept, fault)
		}
	}
}
