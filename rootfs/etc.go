package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// etcTaken are the parts of the host's /etc that programs need in order to run at all, as
// patterns of [path.Match]. None may be a place for secrets: no ssl/private, no profile.d, no
// maven/settings.xml, no php.ini, no directory of a service. A new part is a single file. A part
// that is missing or that not every user of the host can read is left out. docs/host.md has
// the reasons.
var etcTaken = []string{
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

func (p *plan) takeEtc(to *node) error {
	for _, pattern := range etcTaken {
		if err := p.stamps.addPattern("/etc", pattern); err != nil {
			return err
		}
	}
	etc, err := p.open("/etc")
	if err != nil {
		return err
	}
	present, err := etc.names(1 << 20)
	if err != nil {
		return err
	}
	names, err := etcNames(etc.path, present)
	if err != nil {
		return err
	}
	v, err := p.hostView(etc)
	if err != nil {
		return err
	}
	for _, name := range names {
		n, err := p.etcNode(etc, v, name)
		if err != nil {
			return err
		}
		if n != nil {
			to.putBelow(name, n, newDir)
		}
	}
	if slices.Contains(present, "php") {
		if err := p.takePHP(etc, to); err != nil {
			return err
		}
	}
	for _, database := range conffiles.Databases() {
		p.stamps.add(database)
	}
	files, err := p.packages.Files()
	if err != nil {
		return fmt.Errorf("packages of the host: %w", err)
	}
	return p.takeConffiles(etc, to, files)
}

// takePHP takes files that load the modules of PHP.
func (p *plan) takePHP(etc *source, to *node) error {
	stamped := errors.Join(p.stamps.addPattern(etc.path, "php/"+phpConfigured), p.stamps.addPattern("/usr/lib/php", phpAPIs))
	if stamped != nil {
		return stamped
	}
	modules, err := phpModules(etc.path+"/php", "/usr/lib/php")
	for name, text := range modules {
		to.putBelow("php/"+name, &node{kind: fileNode, text: text}, newDir)
	}
	return err
}

// etcNames are the names below /etc, whose entries are present, that etcTaken matches.
func etcNames(dir string, present []string) ([]string, error) {
	var names []string
	for _, pattern := range etcTaken {
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
	phpConfigured = "*/cli/conf.d/[0-9][0-9]-*.ini"
	phpAPIs       = "[0-9]*"
)

// phpModules are files below PHP's configuration that load the modules which the host's
// command line loads. The host's own files may hold passwords, for example those of a database,
// so only their names are read: 20-mbstring.ini loads mbstring.so.
func phpModules(dir, lib string) (map[string]string, error) {
	files := map[string]string{}
	found, err := descriptor.Glob(dir, phpConfigured)
	if err != nil {
		return nil, err
	}
	libs, err := descriptor.Glob(lib, phpAPIs+"/*.so")
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

// texFiles are the formats and font maps that Debian's TeX has made of its packages. Without
// them no TeX runs.
const texFiles = "/var/lib/texmf"

func (p *plan) takeTeX() error {
	s, err := p.open(texFiles)
	if absent(err) || err == nil && (!s.dir || !s.public()) {
		return nil
	}
	if err != nil {
		return err
	}
	v, err := p.hostView(s)
	if err != nil {
		return err
	}
	v.show(s)
	p.root.putBelow(texFiles[1:], &node{kind: bindNode, src: s}, newDir)
	return nil
}

// etcNode takes one path below /etc, or gives nil for a missing one. A symbolic link into
// /usr stays one, since programs read the link of localtime. Any other link is replaced by
// its target.
func (p *plan) etcNode(etc *source, v *view, name string) (*node, error) {
	s, link, err := etc.entry(name)
	if link != "" || errors.Is(err, unix.ELOOP) {
		s, err = openSource(path.Join(etc.path, name), false, asNobody, p.rules)
	}
	if absent(err) || err == nil && s == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, err := etcCopy(s, link, name)
	if err != nil || n != nil || !s.public() {
		s.close()
		return n, err
	}
	p.sources = append(p.sources, s)
	v.show(s)
	return &node{kind: bindNode, src: s}, nil
}

// etcCopy is a link or a small file of a directory below /etc. It is nil for a file that must be
// mounted.
func etcCopy(s *source, link, name string) (*node, error) {
	switch {
	case !s.public():
		return nil, nil
	case link != "" && hostpaths.Within(s.real, "/usr"):
		return &node{kind: linkNode, text: link}, nil
	case s.dir, !strings.Contains(name, "/"):
		return nil, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil { // before the text is read
		return nil, &os.PathError{Op: "stat", Path: s.path, Err: err}
	}
	text, err := s.text(mostCopied)
	if err != nil || len(text) > mostCopied {
		return nil, err
	}
	return &node{kind: fileNode, text: text, host: stateOf(&st, nil)}, nil
}

// mostCopied is the size of the largest single file of /etc that a sandbox gets as a copy. A copy
// costs a start less than a mount does, and a host can have dozens of these files.
const mostCopied = 64 << 10

// absent says whether an error means that a path is not there, or leads nowhere
// that could be shown.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.As(err, new(*ForbiddenError))
}

// public says whether every user of the host may read the source.
func (s *source) public() bool {
	if s.dir {
		return s.mode&0o005 == 0o005
	}
	return s.mode&0o004 != 0
}
