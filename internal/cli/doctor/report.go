package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
)

// A Report is the output of doctor; its JSON names stay as they are.
type Report struct {
	Ready    bool             `json:"ready"`
	Verdict  string           `json:"verdict"`
	Kernel   kernelReport     `json:"kernel"`
	UID      int              `json:"uid"`
	In       string           `json:"container"` // "" on a host of its own
	Features []featureReport  `json:"features"`
	Paths    []pathReport     `json:"paths"`
	Settings []kernel.Setting `json:"settings"`
	Rules    string           `json:"rules"` // the launcher's, "" for the defaults
	Quotas   []quotaReport    `json:"quotas"`
	Network  networkReport    `json:"network"`
	Proofs   []proofReport    `json:"proofs"`
	Unproven string           `json:"unproven"` // why there are no proofs
	Launcher string           `json:"launcher"` // the socket of the launcher of this user's sandboxes, "" for none
}

type kernelReport struct {
	Release string `json:"release"`
	Machine string `json:"machine"`
	Minimum string `json:"minimum"`
	Recent  bool   `json:"recent_enough"`
}

type featureReport struct {
	Name   kernel.Feature `json:"name"`
	Group  string         `json:"group"`
	Title  string         `json:"title"`
	Status featureStatus  `json:"status"`
	Need   kernel.Need    `json:"need"`
	Since  string         `json:"since"` // of Linux; "" if all have it
	Detail string         `json:"detail"`
	Error  string         `json:"error"`
	Lost   string         `json:"lost"`
	Fix    string         `json:"fix"`
}

// A featureStatus is the finding about one feature.
type featureStatus string

// The findings about a feature.
const (
	StatusOK      featureStatus = "ok"
	StatusMissing featureStatus = "missing"
	statusUnknown featureStatus = "unknown" // it could not be tried
)

type pathReport struct {
	Path       string `json:"path"`
	Filesystem string `json:"filesystem"`
	IDMapped   bool   `json:"idmapped"`
	Error      string `json:"error"`
}

func examine() (Report, error) {
	host, err := kernel.Describe()
	if err != nil {
		return Report{}, err
	}
	minimum := kernel.Minimum()
	r := Report{
		Kernel: kernelReport{host.Release, host.Machine, minimum.String(), !host.Version.Before(minimum)},
		UID:    os.Geteuid(),
		In:     host.Container,
	}
	for _, f := range slices.Concat(kernel.Survey(), examineProxied(), examineCgroups(), []kernel.Finding{examineStorage()}) {
		r.Features = append(r.Features, reportFeature(f))
	}
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "." // it was removed
	}
	for _, p := range kernel.IDMappedPaths("/usr", cwd, "/tmp") {
		r.Paths = append(r.Paths, pathReport{p.Path, p.Filesystem, p.IDMapped == nil, errorText(p.IDMapped)})
	}
	r.Settings = kernel.Settings()
	r.Ready, r.Verdict = verdict(r.Features)
	return r, nil
}

// Prove has a sandbox look at its own walls, where one can be had, and takes the
// verdict back if one does not hold.
func (r *Report) Prove(ctx context.Context, open func(context.Context) (Sandboxes, error)) {
	r.Proofs = []proofReport{} // in JSON no null
	if lacking(r.Features, kernel.Required) != "" {
		r.Unproven = "do cannot start a sandbox here"
		return
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop() // until then a signal ends the sandbox, and nothing of it is left
	var proofs []proofReport
	p, err := newProver(ctx, open)
	if err == nil {
		proofs, err = p.prove(ctx, examined())
		err = errors.Join(err, p.Close())
	}
	if err != nil {
		r.Unproven = err.Error()
		r.Ready, r.Verdict = false, "not ready: a sandbox that should look at its own walls failed: "+err.Error()
		return
	}
	r.Proofs = proofs
	if failed := failures(r.Proofs); len(failed) > 0 {
		r.Ready, r.Verdict = false, "not ready: the isolation of a sandbox has failed: "+strings.Join(failed, "; ")
	}
}

func reportFeature(f kernel.Finding) featureReport {
	r := featureReport{
		Name: f.Name, Group: f.Group, Title: f.Title, Status: StatusOK, Need: f.Need,
		Detail: f.Detail, Lost: f.Lost,
	}
	if f.Since != (kernel.Version{}) {
		r.Since = f.Since.String()
	}
	var missing *kernel.NotSupportedError
	switch {
	case f.Err == nil:
	case errors.As(f.Err, &missing):
		r.Status, r.Error, r.Fix = StatusMissing, missing.Cause.Error(), missing.Fix
	default:
		r.Status, r.Error = statusUnknown, f.Err.Error()
	}
	return r
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// verdict is whether do runs programs fully isolated, as the last line says it.
func verdict(features []featureReport) (ready bool, line string) {
	if required := lacking(features, kernel.Required); required != "" {
		return false, "not ready: do cannot start a sandbox here: " + required
	}
	if walls := lacking(features, kernel.Isolating); walls != "" {
		return false, "not ready: do starts sandboxes here, but not fully isolated: " + walls
	}
	line = "ready: do runs programs here fully isolated"
	if useful := lacking(features, kernel.Useful); useful != "" {
		line += "; " + useful
	}
	return true, line
}

// lacking names the missing features of a need; "" if there are none.
func lacking(features []featureReport, need kernel.Need) string {
	var missing []string
	unknown := 0
	for _, f := range features {
		switch {
		case f.Need != need:
		case f.Status == StatusMissing:
			missing = append(missing, f.Title)
		case f.Status == statusUnknown:
			unknown++
		}
	}
	var parts []string
	if len(missing) > 0 {
		parts = append(parts, "it lacks "+strings.Join(missing, ", "))
	}
	if unknown > 0 {
		parts = append(parts, fmt.Sprintf("%d %s could not be tried", unknown, map[bool]string{true: "thing", false: "things"}[unknown == 1]))
	}
	return strings.Join(parts, "; ")
}

// Write prints the report for people: a line for each thing, by groups.
func (r Report) Write(out io.Writer) error {
	var b strings.Builder
	if r.Launcher != "" {
		fmt.Fprintf(&b, "The launcher %s makes the sandboxes of this user, with rights of its own.\nThe next lines are about the rights of this user alone.\n", r.Launcher)
	}
	fmt.Fprintln(&b, "host")
	mark := "ok"
	if !r.Kernel.Recent {
		mark = "warn"
	}
	line(&b, mark, "Linux %s, %s; sandboxes need %s or newer", r.Kernel.Release, r.Kernel.Machine, r.Kernel.Minimum)
	if r.In != "" {
		line(&b, "warn", "in a container: %s. The next lines are about this container", r.In)
	}
	var groups []string
	for _, f := range r.Features {
		if !slices.Contains(groups, f.Group) {
			groups = append(groups, f.Group)
		}
	}
	for _, group := range groups {
		fmt.Fprintln(&b, group)
		for _, f := range r.Features {
			if f.Group == group {
				f.write(&b)
			}
		}
	}
	r.writePaths(&b)
	r.writeSettings(&b)
	r.writeQuotas(&b)
	r.writeNetwork(&b)
	r.writeProofs(&b)
	fmt.Fprintf(&b, "\n%s\n", r.Verdict)
	_, err := io.WriteString(out, b.String())
	return err
}

func line(b *strings.Builder, mark, format string, args ...any) {
	one := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	fmt.Fprintf(b, "  %-8s %s\n", mark, one)
}

func (f featureReport) write(b *strings.Builder) {
	if f.Status == StatusOK {
		detail := f.Detail
		if detail != "" {
			detail = ": " + detail
		}
		line(b, "ok", "%s%s", f.Title, detail)
		return
	}
	mark := "warn"
	if f.Status == StatusMissing && f.Need != kernel.Useful {
		mark = "missing"
	}
	if f.Status == statusUnknown {
		line(b, mark, "%s", f.Error)
		return
	}
	line(b, mark, "%s: %s. Without: %s. To get it: %s", f.Title, f.Error, f.Lost, f.Fix)
}

func (r Report) writePaths(b *strings.Builder) {
	fmt.Fprintln(b, "idmapped mounts of")
	for _, p := range r.Paths {
		if p.IDMapped {
			line(b, "ok", "%s (%s)", p.Path, p.Filesystem)
		} else {
			line(b, "warn", "%s (%s): %s", p.Path, p.Filesystem, p.Error)
		}
	}
}

func (r Report) writeSettings(b *strings.Builder) {
	fmt.Fprintln(b, "settings")
	restricting := false
	for _, s := range r.Settings {
		if s.Restricts {
			restricting = true
			line(b, "warn", "%s is %s: %s. To change it: %s", s.Name, s.Value, s.Effect, s.Fix)
		}
	}
	if !restricting {
		line(b, "ok", "none of the %d looked at restricts this user", len(r.Settings))
	}
}

func (r Report) writeProofs(b *strings.Builder) {
	fmt.Fprintln(b, "isolation, proven from inside a sandbox")
	if r.Unproven != "" {
		line(b, "warn", "nothing was proven: %s", r.Unproven)
	}
	for _, p := range r.Proofs {
		text := p.Title
		if p.Detail != "" {
			text += ": " + p.Detail
		}
		if p.Status == proofNotBuilt {
			line(b, "-", "not built: %s", text)
		} else {
			line(b, string(p.Status), "%s", text)
		}
	}
}
