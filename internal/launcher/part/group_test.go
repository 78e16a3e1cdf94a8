package part

import "testing"

// All sandboxes together use half of the numbers of processes and of the threads at most, also if
// each of their tasks keeps three numbers in use.
func TestTasksLeaveHalfOfTheNumbers(t *testing.T) {
	for _, test := range []struct{ pidMax, threadsMax, want int64 }{
		{32_768, 96_364, 5_461},
		{1 << 22, 96_364, 48_182},
		{1 << 22, 1 << 30, 699_050},
	} {
		got := shareOfTasks(test.pidMax, test.threadsMax)
		if got != test.want || 3*got > test.pidMax/2 || got > test.threadsMax/2 {
			t.Errorf("pid_max %d, threads-max %d: %d tasks, want %d", test.pidMax, test.threadsMax, got, test.want)
		}
	}
}
