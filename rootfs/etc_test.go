package rootfs

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestEtcTakesSingleFilesByPattern(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"maven/m2.conf", "maven/settings.xml", "php/8.2/cli/php.ini", "R/Renviron", "R/Renviron.site", "R/Rprofile.site",
		"ImageMagick-6/type-dejavu.xml", "ImageMagick-8/type.xml", "dpkg/origins/debian", "dpkg/dpkg.cfg",
		"emacs/site-start.d/00debian.el", "emacs/site-start.d/50local.el", "java-17-openjdk/security/x", "mysql/my.cnf",
		"sgml/docbook-xml/4.5/dbgenent.mod", "xml/catalog", "xml/a.xml", "xml/a.xml.old",
	} {
		testhost.WriteFile(t, dir+"/"+name, "")
	}
	present := []string{"maven", "php", "R", "ImageMagick-6", "ImageMagick-8", "dpkg", "emacs", "java-17-openjdk", "mysql", "sgml", "xml"}
	got, err := etcNames(dir, present)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"maven/m2.conf", "R/Renviron", "ImageMagick-6/type-dejavu.xml", "dpkg/origins/debian", "emacs/site-start.d/00debian.el",
		"java-17-openjdk", "sgml/docbook-xml/4.5/dbgenent.mod", "xml/a.xml", "xml/catalog",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
	for _, secret := range []string{
		"maven", "maven/settings.xml", "php", "php/8.2/cli/php.ini", "R", "R/Renviron.site", "R/Rprofile.site", "ImageMagick-8/type.xml",
		"dpkg", "dpkg/dpkg.cfg", "emacs/site-start.d/50local.el", "xml/a.xml.old", "mysql", "mysql/my.cnf",
	} {
		if slices.Contains(got, secret) {
			t.Errorf("%s is in %q", secret, got)
		}
	}
}

// Only names of PHP's configuration are read: the text may hold passwords.
func TestPHPModulesAreLoadedByName(t *testing.T) {
	dir, lib := t.TempDir(), t.TempDir()
	for _, name := range []string{
		"8.2/cli/conf.d/10-opcache.ini", "8.2/cli/conf.d/20-mbstring.ini", "8.2/cli/conf.d/20-mysqli.ini", "8.2/cli/conf.d/99-local.ini",
		"8.2/cli/php.ini", "8.2/apache2/conf.d/20-xml.ini", "7.4/cli/conf.d/20-mbstring.ini",
	} {
		testhost.WriteFile(t, dir+"/"+name, "mysqli.default_pw = secret\n")
	}
	for _, name := range []string{"opcache.so", "mbstring.so", "mysqli.so", "xml.so"} {
		testhost.WriteFile(t, lib+"/20220829/"+name, "")
	}
	got, err := phpModules(dir, lib)
	want := map[string]string{
		"8.2/cli/conf.d/modules.ini": "zend_extension=opcache\nextension=mbstring\nextension=mysqli\n",
		"7.4/cli/conf.d/modules.ini": "extension=mbstring\n",
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// Each mount costs a start more than a copy.
func TestSmallFilesOfEtcAreCopies(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/maven/m2.conf", "main is org\n")
	testhost.WriteFile(t, dir+"/xml/catalog", strings.Repeat("x", mostCopied+1))
	testhost.WriteFile(t, dir+"/timezone", "UTC\n")
	for name, want := range map[string]string{"maven/m2.conf": "main is org\n", "xml/catalog": "", "timezone": ""} {
		s, err := openSource(dir+"/"+name, false, asNobody, &rules{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := etcCopy(s, "", name)
		if err != nil || (n == nil) != (want == "") || n != nil && n.text != want {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
		s.close()
	}
}
