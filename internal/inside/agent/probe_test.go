package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// probe runs inside a sandbox, as the command of a test.
func probe(role string) {
	switch role {
	case "report":
		printJSON(report())
	case "attack":
		victim, _ := strconv.Atoi(os.Args[1])
		printJSON(attack(victim))
	case "storm":
		storm()
	case "orphans":
		orphans()
	}
	os.Exit(0)
}

// asProbe makes a command of one of the parts above.
func asProbe(role string, args ...string) Command {
	c := command(append([]string{"/probe"}, args...)...)
	c.Env = append(c.Env, roleVariable+"="+role)
	return c
}

func printJSON(v any) {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		os.Exit(3)
	}
}

// A selfReport is the report of a command about itself.
type selfReport struct {
	Args, Env   []string
	Dir         string
	IDs         []int // real, effective, saved uid, then gid
	Groups      []int
	Status      map[string]string // of /proc/self/status
	Descriptors []string
	OOMScoreAdj string
	Session     bool // leads one
	Rlimits     map[int]Rlimit
	Umask       int
	Processes   []seenProcess
}

type seenProcess struct {
	PID, Parent int
	State, Name string
}

func report() selfReport {
	// Before anything else is opened. The runtime's poller may be there.
	var descriptors []string
	for fd := range 64 {
		if target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && !strings.HasPrefix(target, "anon_inode:") {
			descriptors = append(descriptors, strconv.Itoa(fd))
		}
	}
	r, e, s := unix.Getresuid()
	rg, eg, sg := unix.Getresgid()
	groups, _ := os.Getgroups()
	dir, _ := os.Getwd()
	score, _ := os.ReadFile("/proc/self/oom_score_adj")
	sid, _ := unix.Getsid(0)
	limits := map[int]Rlimit{}
	for n := range maxRlimits {
		var l unix.Rlimit
		if unix.Prlimit(0, n, nil, &l) == nil {
			limits[n] = Rlimit{n, l.Cur, l.Max}
		}
	}
	return selfReport{
		Args: os.Args, Env: os.Environ(), Dir: dir,
		IDs: []int{r, e, s, rg, eg, sg}, Groups: groups,
		Status: status(), Descriptors: descriptors,
		OOMScoreAdj: strings.TrimSpace(string(score)), Session: sid == os.Getpid(),
		Rlimits: limits, Umask: unix.Umask(0), Processes: processes(),
	}
}

func status() map[string]string {
	text, _ := os.ReadFile("/proc/self/status")
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			fields[k] = strings.TrimSpace(v)
		}
	}
	return fields
}

func processes() []seenProcess {
	var all []seenProcess
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		open, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
		rest := strings.Fields(string(text[end+1:]))
		parent, _ := strconv.Atoi(rest[1])
		all = append(all, seenProcess{pid, parent, rest[0], string(text[open+1 : end])})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].PID < all[j].PID })
	return all
}

// storm stops and kills whatever it may, until it is killed from elsewhere.
func storm() {
	signal := map[string]unix.Signal{"STOP": unix.SIGSTOP, "KILL": unix.SIGKILL}[os.Args[1]]
	fmt.Println("storm")
	for {
		unix.Kill(1, signal)
		unix.Kill(-1, signal)
	}
}

// orphans leaves many processes to process 1.
func orphans() {
	for range 20 {
		c := exec.Command("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.0$i &) ; done")
		c.Run()
	}
}
