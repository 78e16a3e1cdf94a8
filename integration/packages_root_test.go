package integration

import (
	"os/exec"
	"strings"
	"testing"
)

// packageOf makes a package of Debian with one file in /tmp/repo, and an index of the packages there. The words after
// the first are options of tar for its owners and modes.
const packageOf = `
package() {
	name=$1; shift; mkdir -p /tmp/$name/DEBIAN /tmp/$name/usr/share/$name /tmp/repo; echo $name > /tmp/$name/usr/share/$name/word
	printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: a\n' $name > /tmp/$name/DEBIAN/control
	tar -C /tmp/$name/DEBIAN -czf /tmp/control.tar.gz . && tar -C /tmp/$name -czf /tmp/data.tar.gz --exclude=./DEBIAN --owner=0 --group=0 "$@" .
	echo 2.0 > /tmp/debian-binary; ar rc /tmp/repo/$name.deb /tmp/debian-binary /tmp/control.tar.gz /tmp/data.tar.gz
	{ cat /tmp/$name/DEBIAN/control; stat -c 'Size: %s' /tmp/repo/$name.deb; echo "Filename: ./$name.deb"
	echo "SHA256: $(sha256sum < /tmp/repo/$name.deb | cut -d ' ' -f 1)"; echo; } >> /tmp/repo/Packages
}
`

// rootTools are programs that install software as root in an overlay of the whole root, from files that the script
// makes. Each script prints the installed word.
var rootTools = []struct{ tools, script, word string }{
	{"dpkg", packageOf + `package srt-dpkg && dpkg -i /tmp/repo/srt-dpkg.deb >&2 && cat /usr/share/srt-dpkg/word && dpkg -r srt-dpkg >&2`, "srt-dpkg"},
	{"apt-get", packageOf + `package srt-file && apt-get -q -y install /tmp/repo/srt-file.deb >&2 && cat /usr/share/srt-file/word`, "srt-file"},
	{"apt-get", packageOf + `package srt-apt && rm -rf /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] file:/tmp/repo ./' > /etc/apt/sources.list &&
		apt-get -q -o APT::Update::Error-Mode=any update >&2 && apt-get -q update >&2 && apt-get -q -y install srt-apt >&2 && cat /usr/share/srt-apt/word &&
		apt-get -q -y remove srt-apt >&2`, "srt-apt"},
	{"adduser", packageOf + `mkdir -p /tmp/srt-user/DEBIAN && printf '#!/bin/sh\nexec adduser --system --group --no-create-home srt-user\n' > /tmp/srt-user/DEBIAN/postinst &&
		chmod 755 /tmp/srt-user/DEBIAN/postinst && package srt-user && dpkg -i /tmp/repo/srt-user.deb >&2 && id -un srt-user`, "srt-user"},
	{"python3 pip3", `python3 - <<'END' && python3 -m pip install -q --no-index --break-system-packages /tmp/srtpip-1-py3-none-any.whl >&2 && python3 -c 'import srtpip'
import zipfile
z = zipfile.ZipFile("/tmp/srtpip-1-py3-none-any.whl", "w")
z.writestr("srtpip.py", "print('srt-pip')\n")
z.writestr("srtpip-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: srtpip\nVersion: 1\n")
z.writestr("srtpip-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
z.writestr("srtpip-1.dist-info/RECORD", "")
z.close()
END`, "srt-pip"},
	{"npm node", `mkdir -p /tmp/n/package && echo '{"name":"srtnpm","version":"1.0.0","bin":{"srtnpm":"x.js"}}' > /tmp/n/package/package.json &&
		printf '#!/usr/bin/env node\nconsole.log("srt-npm")\n' > /tmp/n/package/x.js && tar -C /tmp/n -czf /tmp/srtnpm.tgz package &&
		npm install -g --offline --no-audit --no-fund /tmp/srtnpm.tgz >&2 && "$(npm prefix -g)/bin/srtnpm"`, "srt-npm"},
	{"gem ruby", `mkdir -p /tmp/rb/lib && cd /tmp/rb && echo 'puts "srt-gem"' > lib/srtgem.rb &&
		echo 'Gem::Specification.new { |s| s.name = "srtgem"; s.version = "1"; s.summary = "a"; s.authors = ["a"]; s.files = ["lib/srtgem.rb"] }' > srtgem.gemspec &&
		gem build -q srtgem.gemspec >&2 && gem install --local --no-document srtgem-1.gem >&2 && ruby -e 'require "srtgem"'`, "srt-gem"},
	{"make cpan", `mkdir -p /tmp/pl/lib && cd /tmp/pl && echo 'package SrtPerl; print "srt-perl\n"; 1;' > lib/SrtPerl.pm &&
		echo 'use ExtUtils::MakeMaker; WriteMakefile(NAME => "SrtPerl", VERSION => "1");' > Makefile.PL &&
		{ perl Makefile.PL && make && make install; } >&2 && perl -MSrtPerl -e 1`, "srt-perl"},
}

// onSystemPath says that the host has no such program in a directory that each sandbox has on its PATH.
func onSystemPath(name string) string {
	for _, dir := range []string{"/usr/local/bin/", "/usr/sbin/", "/usr/bin/", "/bin/"} {
		if _, err := exec.LookPath(dir + name); err == nil {
			return ""
		}
	}
	return name + " is not on PATH"
}

func TestRootInstallsPackagesInTheWholeRoot(t *testing.T) {
	s := newSandboxes(t)
	for _, test := range rootTools {
		t.Run(test.word, func(t *testing.T) {
			for tool := range strings.FieldsSeq(test.tools) {
				need(t, onSystemPath(tool))
			}
			if strings.Contains(test.script, packageOf) {
				need(t, onSystemPath("ar"))
			}
			got := s.do("--overlay", "/", "--user", "0", "--cwd", "/", "--", "sh", "-c", test.script)
			if got.code != 0 || !strings.HasPrefix(got.stdout, test.word+"\n") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Without capabilities dpkg cannot give a file to another owner, and the seccomp filter refuses the set-user-ID bit.
// docs/binary.md says so.
func TestPackagesWithOtherOwnersAreRefused(t *testing.T) {
	need(t, onSystemPath("dpkg"), onSystemPath("ar"))
	s := newSandboxes(t)
	for _, option := range []string{"--owner=6", "--group=8", "--mode=4755"} {
		got := s.do("--overlay", "/", "--user", "0", "--cwd", "/", "--", "sh", "-c", packageOf+"package srt-other "+option+" && dpkg -i /tmp/repo/srt-other.deb")
		if got.code == 0 || !strings.Contains(got.stderr, "Operation not permitted") {
			t.Errorf("%s: %+v", option, got)
		}
	}
}

// The file for apt is no change, and every sandbox with this root has it, also after a change of the layers.
func TestTheConfigurationOfAptIsNoChange(t *testing.T) {
	need(t, onSystemPath("apt-get"))
	s := newSandboxes(t)
	s.up("box", "--overlay", "/")
	if got := s.exec("box", "apt-config", "dump", "APT::Sandbox::User"); got.stdout != "APT::Sandbox::User \"root\";\n" {
		t.Errorf("apt-config: %+v", got)
	}
	if got := run(t, s.command("changes", "box")); got.code != 0 || strings.Contains(got.stdout, "/etc/apt") {
		t.Errorf("changes: %+v", got)
	}
}
