package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// header says on what and how was measured.
func header(w io.Writer, o options) {
	fmt.Fprintf(w, "%s. Each round runs every peer once, in random order, %v idle before each run. Ratios are medians of each round's ratio, with its quartiles and the 95 %% interval of the median.\n",
		machine(), o.idle)
}

// report prints the contest's table and whether its bounds hold.
func (c contest) report(w io.Writer, values map[string][]float64) {
	fmt.Fprintf(w, "\n## %s\n\n%s n = %d rounds.\n\n", c.title, c.about, c.rounds)
	fmt.Fprintf(w, "| what | version | median %s (quartiles) | × %s (quartiles) | 95 %% |\n", c.unit, c.base)
	fmt.Fprintln(w, "|---|---|---|---|---|")
	for _, p := range c.peers {
		if p.missing != "" {
			fmt.Fprintf(w, "| %s | %s | missing: %s | | |\n", p.name, p.version, strings.ReplaceAll(p.missing, "\n", " "))
			continue
		}
		fmt.Fprintf(w, "| %s | %s | %s |", p.name, p.version, spread(values[p.name], "%.1f"))
		if base, ok := values[c.base]; ok {
			r := ratios(values[p.name], base)
			low, high := medianInterval(r)
			fmt.Fprintf(w, " %s | %.2f to %.2f |\n", spread(r, "%.2f"), low, high)
		} else {
			fmt.Fprintln(w, " | |")
		}
	}
	fmt.Fprintln(w)
	for _, b := range c.bounds {
		fmt.Fprintln(w, b.verdict(c.base, values))
	}
}

func (b bound) verdict(baseName string, values map[string][]float64) string {
	claim := fmt.Sprintf("%s at most %.1f × %s", b.peer, b.most, baseName)
	ours, base := values[b.peer], values[baseName]
	if ours == nil || base == nil {
		return claim + ": not measured, one is missing"
	}
	ratio := median(ratios(ours, base))
	if ratio > b.most {
		return fmt.Sprintf("%s: %.2f, missed", claim, ratio)
	}
	return fmt.Sprintf("%s: %.2f, holds", claim, ratio)
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
