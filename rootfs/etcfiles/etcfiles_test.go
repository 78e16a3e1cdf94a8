package etcfiles

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
	got, err := Names(dir, present)
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
	got, err := PHPModules(dir, lib)
	want := map[string]string{
		"8.2/cli/conf.d/modules.ini": "zend_extension=opcache\nextension=mbstring\nextension=mysqli\n",
		"7.4/cli/conf.d/modules.ini": "extension=mbstring\n",
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestOwnFiles(t *testing.T) {
	for _, test := range []struct {
		user          Own
		passwd, group string
	}{
		{Own{UID: 1000, GID: 1000, Home: "/home/sandbox"}, "root:x:0:0:root:/:/bin/sh\nsandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n", "root:x:0:\nsandbox:x:1000:\n"},
		{Own{Home: "/home/sandbox"}, "root:x:0:0:root:/home/sandbox:/bin/sh\n", "root:x:0:\n"},
		{Own{UID: 7, Home: "/h"}, "root:x:0:0:root:/:/bin/sh\nsandbox:x:7:0:sandbox:/h:/bin/sh\n", "root:x:0:\n"},
	} {
		test.user.Hostname = "box"
		files := test.user.Files()
		if want := test.passwd + "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"; files["passwd"] != want {
			t.Errorf("passwd for %v:\n%s", test.user, files["passwd"])
		}
		if want := test.group + "nogroup:x:65534:\n"; files["group"] != want {
			t.Errorf("group for %v:\n%s", test.user, files["group"])
		}
		if !strings.Contains(files["hosts"], "127.0.0.1\tlocalhost\n") || !strings.Contains(files["hosts"], "\tbox\n") {
			t.Errorf("hosts:\n%s", files["hosts"])
		}
	}
}
