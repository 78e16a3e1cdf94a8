package source

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"
)

// platform is a platform as descriptors and configs name it.
type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

func (p platform) String() string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

func parsePlatform(text string) (platform, error) {
	if text == "" {
		return platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	parts := strings.Split(text, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return platform{}, fmt.Errorf("invalid platform %q: use OS/ARCHITECTURE[/VARIANT]", text)
	}
	if parts[0] != "linux" {
		return platform{}, fmt.Errorf("unsupported platform %q: the system must be linux", text)
	}
	p := platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p.normalized(), nil
}

// architectures have other names in some images.
var architectures = map[string]platform{
	"x86_64": {Architecture: "amd64"}, "x86-64": {Architecture: "amd64"}, "i386": {Architecture: "386"}, "i486": {Architecture: "386"},
	"i586": {Architecture: "386"}, "i686": {Architecture: "386"}, "x86": {Architecture: "386"}, "aarch64": {Architecture: "arm64"},
	"armhf": {Architecture: "arm", Variant: "v7"}, "armel": {Architecture: "arm", Variant: "v6"},
}

// normalized is the platform with its usual name.
func (p platform) normalized() platform {
	p.OS, p.Architecture, p.Variant = strings.ToLower(p.OS), strings.ToLower(p.Architecture), strings.ToLower(p.Variant)
	if other, ok := architectures[p.Architecture]; ok {
		p.Architecture, p.Variant = other.Architecture, cmp.Or(p.Variant, other.Variant)
	}
	if p.Variant != "" && strings.Trim(p.Variant, "0123456789.") == "" {
		p.Variant = "v" + p.Variant // 8 of arm64, as some builders write
	}
	return p
}

// isUnknown says that nothing runs on the platform. Attestations have unknown/unknown.
func (p platform) isUnknown() bool { return p.OS == "unknown" || p.Architecture == "unknown" }

// rank says whether an image for p can be used where want is asked for. The image with the lowest rank is the best. The
// order is that of containerd: the highest variant that the processor has, then lower ones. Images of an older
// architecture, as 386 for amd64, are not taken, unlike there: the seccomp profiles refuse their programs.
func (p platform) rank(want platform) (rank int, ok bool) {
	p, want = p.normalized(), want.normalized()
	if p.OS != want.OS || p.Architecture != want.Architecture {
		return 0, false
	}
	wanted, knownWanted := want.wanted().level()
	have, known := p.level()
	switch {
	case p.Variant == want.Variant && p.Variant != "":
		return 0, true
	case knownWanted && known:
		return wanted - have, have <= wanted
	}
	return 1, p.Variant == "" || want.Variant == ""
}

// wanted is the platform with the variant of this processor, if the platform has none and is that of this host.
func (p platform) wanted() platform {
	if p.Variant == "" && p.Architecture == "amd64" && runtime.GOARCH == "amd64" {
		p.Variant = "v" + strconv.Itoa(amd64Level())
	}
	return p
}

// usualVariant is the variant of an image without a named variant, by architecture.
var usualVariant = map[string]string{"amd64": "v1", "arm": "v7", "arm64": "v8"}

// level is a number for vMAJOR[.MINOR] of an architecture whose variants include the lower ones.
func (p platform) level() (level int, ok bool) {
	usual, ok := usualVariant[p.Architecture]
	if !ok {
		return 0, false
	}
	digits, ok := strings.CutPrefix(cmp.Or(p.Variant, usual), "v")
	major, minor, _ := strings.Cut(digits, ".")
	m, err := strconv.ParseUint(major, 10, 8)
	n, err2 := strconv.ParseUint(cmp.Or(minor, "0"), 10, 8)
	return int(m)*(math.MaxUint8+1) + int(n), ok && err == nil && err2 == nil
}

// amd64Level is the level of the processor: psABI for x86-64, "Micro-Architecture Levels". Processors with AVX2, BMI2 and
// FMA have the other features of level 3, too.
func amd64Level() int {
	x := &cpu.X86
	v2 := x.HasSSE3 && x.HasSSSE3 && x.HasSSE41 && x.HasSSE42 && x.HasPOPCNT && x.HasCX16
	v3 := v2 && x.HasAVX && x.HasAVX2 && x.HasBMI1 && x.HasBMI2 && x.HasFMA
	v4 := v3 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512CD && x.HasAVX512DQ && x.HasAVX512VL
	switch {
	case v4:
		return 4
	case v3:
		return 3
	case v2:
		return 2
	}
	return 1
}
