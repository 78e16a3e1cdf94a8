package process

import (
	"os"
	"strconv"
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
