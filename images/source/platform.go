package source

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
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
	return p, nil
}

// usualVariant is the variant of an image without a named variant, by architecture.
var usualVariant = map[string]string{"arm": "v7", "arm64": "v8"}

// serves says whether an image for p can be used where want is asked for.
func (p platform) serves(want platform) bool {
	if p.OS != want.OS || p.Architecture != want.Architecture {
		return false
	}
	return want.Variant == "" || p.variant() == want.variant()
}

func (p platform) variant() string {
	if p.Variant == "" {
		return usualVariant[p.Architecture]
	}
	return p.Variant
}

// choose returns the manifest for the platform. Without a wanted variant the usual one is preferred.
func choose(manifests []descriptor, want platform) (descriptor, error) {
	var first *descriptor
	var exist []string
	for i, d := range manifests {
		if d.Platform == nil {
			continue
		}
		if d.Platform.serves(want) {
			if d.Platform.variant() == want.variant() {
				return d, nil
			}
			if first == nil {
				first = &manifests[i]
			}
		}
		// Attestations have the platform unknown/unknown.
		if name := d.Platform.String(); d.Platform.OS != "unknown" && !slices.Contains(exist, name) {
			exist = append(exist, name)
		}
	}
	if first != nil {
		return *first, nil
	}
	if len(exist) == 0 {
		return descriptor{}, fmt.Errorf("no image for %s, nor for any other platform", want)
	}
	return descriptor{}, fmt.Errorf("no image for %s; the platforms are %s", want, strings.Join(exist, ", "))
}

// chooseOrOnly returns the only manifest even if its descriptor has no platform: its config has one.
func chooseOrOnly(manifests []descriptor, want platform) (descriptor, error) {
	if len(manifests) == 1 && manifests[0].Platform == nil {
		return manifests[0], nil
	}
	return choose(manifests, want)
}
