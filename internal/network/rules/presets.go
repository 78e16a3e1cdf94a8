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
	// yarn 1 and corepack have the last two (nodejs/corepack, config.json). The first of them is another name of the
	// registry, and the second has the releases of yarn.
	"npm": {"registry.npmjs.org", "registry.yarnpkg.com", "repo.yarnpkg.com"},
	// The module proxy redirects to storage.googleapis.com for archives, also for those of toolchains. Other people's
	// buckets are at this name, too.
	"go": {"proxy.golang.org", "sum.golang.org", "storage.googleapis.com"},
	"github": {
		"github.com", "github.com:22", "ssh.github.com", "api.github.com", "codeload.github.com", "raw.githubusercontent.com",
		// Files of releases (docs.github.com, "Self-hosted runners reference").
		"objects.githubusercontent.com", "release-assets.githubusercontent.com", "github-releases.githubusercontent.com",
		"gist.github.com", "gist.githubusercontent.com",
		// Files of Git LFS.
		"lfs.github.com", "media.githubusercontent.com", "github-cloud.githubusercontent.com", "github-cloud.s3.amazonaws.com",
	},
	// Images of clouds name mirrors below deb.debian.org, such as cdn-aws.deb.debian.org. apt follows no SRV record to a
	// name of the content network, since the sandbox gets none.
	"debian": {"deb.debian.org", "*.deb.debian.org", "security.debian.org", "ftp.debian.org"},
	// Mirrors of countries and clouds are below archive.ubuntu.com, and below ports.ubuntu.com for ARM (cloud-init's
	// package_mirrors).
	"ubuntu": {"archive.ubuntu.com", "*.archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com", "*.ports.ubuntu.com"},
	// index.crates.io/config.json names the other two. cargo before 1.70 reads its index from github.com.
	"crates": {"crates.io", "index.crates.io", "static.crates.io"},
	// Maven and Gradle have the first name, sbt and coursier the second.
	"maven":    {"repo.maven.apache.org", "repo1.maven.org"},
	"rubygems": {"rubygems.org", "index.rubygems.org"},
	// The registry redirects to the last three for the content of images (docs.docker.com, "Allowlist for Docker
	// Desktop").
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
