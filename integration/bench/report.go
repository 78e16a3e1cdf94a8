package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// target is what do may cost at most, as a share of runc's run.
const target = 0.9

// report prints the table, the machine it was measured on, and whether the
// target holds.
func report(w io.Writer, o options, peers []peer, times map[string][]float64) {
	fmt.Fprintf(w, "Starts of busybox true (do: of the host's true): %s. n = %d rounds, each peer once per round in random order, %v idle before each start.\n",
		machine(), o.rounds, o.idle)
	fmt.Fprintln(w, "The OCI runtimes share one bundle as Docker writes it, with the seccomp profile of containers-common. Ratios are medians of each round's ratio, with its quartiles and the 95 % interval of the median.")
	fmt.Fprintln(w)
	fmt.Fprintln(w, "| what | version | median ms (quartiles) | × host | × runc run (quartiles) | 95 % |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, p := range peers {
		if p.missing != "" {
			fmt.Fprintf(w, "| %s | %s | missing: %s | | | |\n", p.name, p.version, strings.ReplaceAll(p.missing, "\n", " "))
			continue
		}
		t := times[p.name]
		fmt.Fprintf(w, "| %s | %s | %s |", p.name, p.version, spread(t, "%.1f"))
		if host, ok := times[hostPeer]; ok {
			fmt.Fprintf(w, " %.1f |", median(ratios(t, host)))
		} else {
			fmt.Fprint(w, " |")
		}
		if base, ok := times[runcPeer]; ok {
			r := ratios(t, base)
			low, high := medianInterval(r)
			fmt.Fprintf(w, " %s | %.2f to %.2f |\n", spread(r, "%.2f"), low, high)
		} else {
			fmt.Fprintln(w, " | |")
		}
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, verdict(times))
}

func verdict(times map[string][]float64) string {
	ours, base := times[targetPeer], times[runcPeer]
	if ours == nil || base == nil {
		return fmt.Sprintf("target: %s at most %.1f × %s: not measured, one is missing", targetPeer, target, runcPeer)
	}
	ratio := median(ratios(ours, base))
	word := "missed"
	if ratio <= target {
		word = "holds"
	}
	return fmt.Sprintf("target: %s at most %.1f × %s: %.2f, %s", targetPeer, target, runcPeer, ratio, word)
}

func spread(values []float64, format string) string {
	return fmt.Sprintf(format+" ("+format+" to "+format+")", median(values), quantile(values, 0.25), quantile(values, 0.75))
}

// machine says what bears on the figures.
func machine() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d cores%s, Linux %s %s, %s", runtime.NumCPU(), cpuModel(),
		unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Machine[:]), cgroupMode())
}

func cpuModel() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return " (" + strings.TrimSpace(model) + ")"
		}
	}
	return ""
}

func cgroupMode() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "cgroup v2"
	}
	if _, err := os.Stat(unified); err == nil {
		return "hybrid cgroups, cgroup2 unmounted for all peers"
	}
	return "cgroup v1"
}
