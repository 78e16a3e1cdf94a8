package processes

import (
	"errors"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The lines are those of ps 4.0.2.
func TestLinesNameUsersOfTheSandbox(t *testing.T) {
	const first = 2140012544
	ids := map[int]uint32{7: first + 1000, 8: first + spec.AgentID, 9: 0, 10: first + 5, 11: first - 1, 12: first + 65536}
	users := &Users{
		first: first,
		names: spec.UserNames([]byte("sandbox:x:1000:1000\nalongername:x:5:5::/:\n")),
		owner: func(pid int) (uint32, error) {
			if id, ok := ids[pid]; ok {
				return id, nil
			}
			return 0, errors.New("ended")
		},
	}
	const full, tail = "UID        PID  PPID CMD", "  7951  7932 sleep 2140013+"
	for _, c := range []struct {
		name, header, line, want string
		pid                      int
	}{
		{"a name", full, "2140013+" + tail, "sandbox " + tail, 7},
		{"no name", full, "2140078+" + tail, "65535   " + tail, 8},
		{"no name that fits", full, "2140012+" + tail, "alongern+" + tail[1:], 10},
		{"an id outside the range", full, "root    " + tail, "root    " + tail, 9},
		{"an id below the range", full, "2140012+" + tail, "2140012+" + tail, 11},
		{"an id above the range", full, "2140078+" + tail, "2140078+" + tail, 12},
		{"a process that has ended", full, "2140013+" + tail, "2140013+" + tail, 99},
		{"an id that the process has no more", full, "2140013+" + tail, "2140013+" + tail, 8},
		{"a user of the host has the id", full, "mapped  " + tail, "mapped  " + tail, 7},
		{"the last column", "  PID USER", " 7951 2140013+", " 7951 sandbox", 7},
		{"a wide column", "  PID USER                 COMMAND", " 7951 2140012549           sleep", " 7951 alongername          sleep", 10},
		{"numbers", "  UID   PID", "2140013544 7951", "2140013544 7951", 7},
		{"numbers behind", "  PID   UID", " 7951 2140013544", " 7951 2140013544", 7},
		{"a name behind a wide number", "  PID   UID USER", " 7951 2140013544 2140013+", " 7951 2140013544 sandbox", 7},
		{"no user", "  PID COMMAND", " 7951 2140013+", " 7951 2140013+", 7},
		{"a shorter line", "  PID USER", " 7951", " 7951", 7},
	} {
		if got := users.inLine(c.header, c.line, c.pid); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestProcessesOfTheHostHaveNoUsers(t *testing.T) {
	if u := UsersOf([]int{1}, nil); u != nil {
		t.Errorf("%+v", u)
	}
}
