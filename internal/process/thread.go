package process

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Dir is the directory of procfs that describes a process: that of the main thread, or of another thread
// if the main thread has ended. procfs shows neither files nor namespaces of an ended thread, although
// the rest of its process still uses them.
func Dir(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	if !LacksMainThread(pid) {
		return dir
	}
	if thread, ok := findThread(pid, isRunning); ok {
		return thread
	}
	return dir
}

// LacksMainThread says that the main thread of a process has ended, and other threads of the process have not.
func LacksMainThread(pid int) bool {
	fields, err := readStat("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && mainThreadEnded(fields) && hasOtherThreads(fields)
}

func isRunning(dir string) bool {
	fields, err := readStat(dir + "/stat")
	return err == nil && !mainThreadEnded(fields)
}

// IsKilled says that SIGKILL is pending for each thread of a process that has not ended, or that the thread exits.
// A thread in a frozen cgroup of v1 keeps the signal until the cgroup is thawed.
func IsKilled(pid int) bool {
	_, found := findThread(pid, func(dir string) bool {
		fields, err := readStat(dir + "/stat")
		return err == nil && !isExiting(fields) && !isKillPending(fields)
	})
	return !found
}

// isKillPending looks at the signals that are pending for a thread (field 31): the kernel sends SIGKILL to each.
func isKillPending(fields []string) bool {
	pending, err := strconv.ParseUint(fields[31-3], 10, 64)
	return err == nil && pending&(1<<(unix.SIGKILL-1)) != 0
}

// findThread finds a thread of a process for which a condition on its directory of procfs holds.
func findThread(pid int, holds func(dir string) bool) (dir string, found bool) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return "", false
	}
	for _, thread := range threads {
		if dir := tasks + "/" + thread.Name(); holds(dir) {
			return dir, true
		}
	}
	return "", false
}
