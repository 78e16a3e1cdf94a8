// Package etcfiles has the content of a sandbox's /etc: the files that are the sandbox's own, and the
// names of the host's files that a sandbox may have.
package etcfiles

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// AptConfig lets root without capabilities run apt. apt downloads as another user, which takes capabilities, so it
// must stay root. The directories for downloads belong to that other user: one gets another place, and two are
// made anew before an update, if they are empty.
const AptConfig = `APT::Sandbox::User "root";
Dir::Cache::Archives "sandbox-archives/";
APT::Update::Pre-Invoke { "for d in partial auxfiles; do d=/var/lib/apt/lists/$d; [ ! -d $d ] || [ -O $d ] || { rmdir $d && mkdir -m 755 $d; }; done || true"; };
`

// Taken are the parts of the host's /etc that programs need in order to run at all, as
// patterns of [path.Match]. None may be a place for secrets: no ssl/private, no profile.d, no
// maven/settings.xml, no php.ini, no directory of a service. A new part is a single file. A part
// that is missing or that not every user of the host can read is left out. docs/host.md has
// the reasons.
var Taken = []string{
	"alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts",
	"java-*-openjdk", "ld-musl-*.path",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "mime.types",
	"os-release", "pki/ca-trust/extracted", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf",
	"protocols", "services", "ssl/ca-bundle.pem", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf",
	"terminfo", "timezone",

	"ImageMagick-[67]/colors.xml", "ImageMagick-[67]/delegates.xml", "ImageMagick-[67]/policy.xml",
	"ImageMagick-[67]/thresholds.xml", "ImageMagick-[67]/type.xml", "ImageMagick-[67]/type-*.xml",
	"R/Makeconf", "R/Renviron", "R/ldpaths", "R/repositories",
	"dpkg/origins/*", "emacs/site-start.d/00debian.el", "groff/man.local", "groff/mdoc.local", "manpath.config",
	"maven/logging/simplelogger.properties", "maven/m2.conf",
	"sgml/docbook-xml/*/dbgenent.mod", "texmf/web2c/mktex.cnf", "texmf/web2c/texmf.cnf", "xml/*.xml", "xml/catalog",
}

// Names are the names below /etc, whose entries are present, that Taken matches.
func Names(dir string, present []string) ([]string, error) {
	var names []string
	for _, pattern := range Taken {
		top, _, _ := strings.Cut(pattern, "/")
		switch meta := strings.ContainsAny(pattern, "*["); {
		case !meta && slices.Contains(present, top):
			names = append(names, pattern)
		case meta && slices.ContainsFunc(present, func(name string) bool { ok, _ := path.Match(top, name); return ok }):
			found, err := descriptor.Glob(dir, pattern)
			if err != nil {
				return nil, err
			}
			for _, name := range found {
				names = append(names, strings.TrimPrefix(name, dir+"/"))
			}
		}
	}
	return names, nil
}

// The files with the loaded modules of PHP, and the directories with all modules.
const (
	PHPConfigured = "*/cli/conf.d/[0-9][0-9]-*.ini"
	PHPAPIs       = "[0-9]*"
)

// PHPModules are files below PHP's configuration that load the modules which the host's
// command line loads. The host's own files may hold passwords, for example those of a database,
// so only their names are read: 20-mbstring.ini loads mbstring.so.
func PHPModules(dir, lib string) (map[string]string, error) {
	files := map[string]string{}
	found, err := descriptor.Glob(dir, PHPConfigured)
	if err != nil {
		return nil, err
	}
	libs, err := descriptor.Glob(lib, PHPAPIs+"/*.so")
	if err != nil {
		return nil, err
	}
	installed := map[string]bool{}
	for _, file := range libs {
		installed[strings.TrimSuffix(filepath.Base(file), ".so")] = true
	}
	for _, file := range found {
		module := strings.TrimSuffix(filepath.Base(file)[len("00-"):], ".ini")
		if !installed[module] {
			continue
		}
		load := "extension="
		if module == "opcache" || module == "xdebug" {
			load = "zend_extension="
		}
		to := strings.TrimPrefix(filepath.Dir(file), dir+"/") + "/modules.ini"
		files[to] += load + module + "\n"
	}
	return files, nil
}
