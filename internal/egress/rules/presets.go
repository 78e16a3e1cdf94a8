package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// presets are the rules that the usual clients of a service need to read from it. Websites, statistics
// and separate names for uploads are no part of a preset.
var presets = map[string][]string{
	"pypi": {"pypi.org", "files.pythonhosted.org"},
	"npm":  {"registry.npmjs.org"},
	// The module proxy redirects to storage.googleapis.com for archives. Other people's buckets are at
	// this name, too.
	"go": {"proxy.golang.org", "sum.golang.org", "storage.googleapis.com"},
	"github": {
		"github.com", "github.com:22", "ssh.github.com", "api.github.com", "codeload.github.com",
		"raw.githubusercontent.com", "objects.githubusercontent.com", "release-assets.githubusercontent.com",
		"gist.github.com", "gist.githubusercontent.com",
		// Files of Git LFS.
		"lfs.github.com", "media.githubusercontent.com", "github-cloud.githubusercontent.com", "github-cloud.s3.amazonaws.com",
	},
	"debian": {"deb.debian.org", "security.debian.org", "ftp.debian.org"},
	// Mirrors of countries and clouds are below archive.ubuntu.com.
	"ubuntu":   {"archive.ubuntu.com", "*.archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com"},
	"crates":   {"crates.io", "index.crates.io", "static.crates.io"},
	"maven":    {"repo.maven.apache.org", "repo1.maven.org"},
	"rubygems": {"rubygems.org", "index.rubygems.org"},
	// The registry redirects to the last three for the content of images.
	"dockerhub": {
		"registry-1.docker.io", "auth.docker.io", "index.docker.io",
		"production.cloudflare.docker.com", "production.cloudfront.docker.com",
		"docker-images-prod.6aa30f8b08e16409b46e0173d6de2f56.r2.cloudflarestorage.com",
	},
}

// Presets are the names of the presets, sorted, without the @.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// preset returns the rules of a preset.
func preset(name string) ([]Rule, error) {
	texts, isKnown := presets[name]
	if i := strings.IndexAny(name, ":/"); i >= 0 && presets[name[:i]] != nil {
		return nil, fmt.Errorf("%q: a preset has its ports and paths already; write @%s, or rules for its names", "@"+name, name[:i])
	}
	if !isKnown {
		return nil, fmt.Errorf("%q: unknown preset; the presets are @%s", "@"+name, strings.Join(Presets(), ", @"))
	}
	var all []Rule
	for _, text := range texts {
		r, err := parseNamed(text)
		if err != nil {
			return nil, fmt.Errorf("preset @%s: %w", name, err)
		}
		all = append(all, r)
	}
	return all, nil
}
