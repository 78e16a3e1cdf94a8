package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// header describes the machine and the method.
func header(w io.Writer, o options) {
	fmt.Fprintf(w, "%s. Each round runs every peer once, in random order, %v idle before each run. Ratios are medians of each round's ratio, with its quartiles and the 95 %% interval of the median.\n",
		machine(), o.idle)
}

// report prints the contest's tables and whether its bounds hold.
func (c contest) report(w io.Writer, m measurement) {
	fmt.Fprintf(w, "\n## %s\n\n%s n = %d rounds.\n\n", c.title, c.about, c.rounds)
	c.table(w, m.spaced)
	if c.burst == 0 {
		return
	}
	fmt.Fprintf(w, "\nBack to back, the mean of %d at once after that:\n\n", c.burst)
	c.table(w, m.together)
}

func (c contest) table(w io.Writer, values series) {
	fmt.Fprintf(w, "| what | version | median %s (quartiles) | × %s (quartiles) | 95 %% |\n", c.unit, c.base)
	fmt.Fprintln(w, "|---|---|---|---|---|")
	for _, p := range c.peers {
		if p.missing != "" {
			fmt.Fprintf(w, "| %s | %s | missing: %s | | |\n", p.name, p.version, strings.ReplaceAll(p.missing, "\n", " "))
			continue
		}
		fmt.Fprintf(w, "| %s | %s | %s |", p.name, p.version, spread(values[p.name]))
		if base, ok := values[c.base]; ok {
			r := ratios(values[p.name], base)
			low, high := medianInterval(r)
			fmt.Fprintf(w, " %s | %.2f to %.2f |\n", spread(r), low, high)
		} else {
			fmt.Fprintln(w, " | |")
		}
	}
	fmt.Fprintln(w)
	for _, b := range c.bounds {
		fmt.Fprintln(w, b.verdict(values))
	}
	for _, l := range c.limits {
		fmt.Fprintln(w, l.verdict(values, c.unit))
	}
	for _, e := range c.extras {
		fmt.Fprintln(w, e.verdict(values))
	}
}

func (l limit) verdict(values series, unit string) string {
	claim := fmt.Sprintf("%s at most %.3g %s", l.peer, l.most, unit)
	cost := values[l.peer]
	if l.beyond != "" {
		claim += " beyond " + l.beyond
		cost = differences(cost, values[l.beyond])
	}
	return verdict(claim, cost, l.most)
}

func (b bound) verdict(values series) string {
	claim := fmt.Sprintf("%s at most %.2f × %s", b.peer, b.most, b.base)
	return verdict(claim, ratios(values[b.peer], values[b.base]), b.most)
}

func (e extra) verdict(values series) string {
	claim := fmt.Sprintf("%s beyond %s at most %.2f × %s", e.peer, e.beyond, e.most, e.base)
	return verdict(claim, ratios(differences(values[e.peer], values[e.beyond]), values[e.base]), e.most)
}

// verdict tells whether the median of the values is at most so much.
func verdict(claim string, values []float64, most float64) string {
	switch {
	case values == nil:
		return "- " + claim + ": not measured, one is missing"
	case median(values) > most:
		return fmt.Sprintf("- %s: %.3f, missed", claim, median(values))
	}
	return fmt.Sprintf("- %s: %.3f, holds", claim, median(values))
}

func spread(values []float64) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(values), quantile(values, 0.25), quantile(values, 0.75))
}

// machine describes the parts of the machine that matter for the figures.
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
