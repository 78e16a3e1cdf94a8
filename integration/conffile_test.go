package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const packagedFiles = "/etc/srt-test.d"

// debianPackage makes a package of Debian with a program and files of /etc.
func debianPackage(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "srt-test")
	control := "Package: srt-test\nVersion: 1\nArchitecture: all\nMaintainer: Ann <ann@example.org>\nDescription: a test\n"
	conffiles := ""
	for name, mode := range map[string]os.FileMode{"open": 0o644, "closed": 0o600, "secret.key": 0o644, "run": 0o755} {
		conffiles += packagedFiles + "/" + name + "\n"
		writeMode(t, dir+packagedFiles+"/"+name, name+"\n", mode)
	}
	writeMode(t, dir+"/usr/bin/srt-test", "#!/bin/sh\ncat "+packagedFiles+"/open\n", 0o755)
	writeMode(t, dir+"/DEBIAN/control", control, 0o644)
	writeMode(t, dir+"/DEBIAN/conffiles", conffiles, 0o644)
	if out, err := exec.Command("dpkg-deb", "--build", "--root-owner-group", "-Zgzip", dir).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	return dir + ".deb"
}

// writeMode writes a file with this mode and its directories, regardless of the umask.
func writeMode(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = errors.Join(os.WriteFile(name, []byte(text), mode), os.Chmod(name, mode))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A program sees the files that its package has in /etc, unless one is closed or its name is never
// shown. A launcher with a pool and one without show the files of now.
func TestFilesOfPackagesAreShown(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg is not installed")
	}
	s := newSandboxes(t)
	for _, dir := range []string{"/etc", "/usr", "/var/lib/dpkg"} {
		overlaid(t, dir)
	}
	file := debianPackage(t)
	p := newPoolLauncher(s, "--pool", "min=1,max=1")
	dpkg := func(args ...string) func() error {
		return func() error {
			out, err := exec.Command("dpkg", append([]string{"--log=/dev/null", "--no-triggers"}, args...)...).CombinedOutput()
			if err != nil {
				t.Logf("dpkg: %s", out)
			}
			return err
		}
	}
	write := func(text string) func() error {
		return func() error { return os.WriteFile(packagedFiles+"/open", []byte(text), 0o644) }
	}
	const list = "ls " + packagedFiles + " 2>/dev/null || echo none"
	p.follows([]hostChange{
		{"a package is installed", dpkg("--install", file), list, "open\n"},
		{"its program", func() error { return nil }, "srt-test", "open\n"},
		{"a file that its owner has changed", write("changed\n"), "srt-test", "changed\n"},
		{"a file with a password", write("password = x\n"), list, "none\n"},
		{"the file of the package again", write("open\n"), "srt-test", "open\n"},
		{"a closed file", func() error { return os.Chmod(packagedFiles+"/open", 0o640) }, list, "none\n"},
		{"an open file again", func() error { return os.Chmod(packagedFiles+"/open", 0o644) }, list, "open\n"},
		{"a closed directory", func() error { return os.Chmod(packagedFiles, 0o700) }, list, "none\n"},
		{"an open directory again", func() error { return os.Chmod(packagedFiles, 0o755) }, list, "open\n"},
		{"a package is removed, but not its files", dpkg("--remove", "srt-test"), list, "none\n"},
	})
	p.end()
}

// A sandbox that runs keeps the files from its start. Two sandboxes show the same copies, but share no lock.
func TestASandboxKeepsTheFilesFromItsStart(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg is not installed")
	}
	s := newSandboxes(t)
	for _, dir := range []string{"/etc", "/usr", "/var/lib/dpkg"} {
		overlaid(t, dir)
	}
	if out, err := exec.Command("dpkg", "--log=/dev/null", "--no-triggers", "--install", debianPackage(t)).CombinedOutput(); err != nil {
		t.Fatalf("dpkg: %v: %s", err, out)
	}
	copies := func() int {
		found, err := filepath.Glob(filepath.Join(s.root, "@etc", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	show := "cat " + packagedFiles + "/open"
	s.up("early")
	if copies() != 0 {
		t.Error("a file that has just changed is shared")
	}
	time.Sleep(3 * time.Second)
	s.up("one")
	s.up("two")
	if copies() != 1 {
		t.Errorf("%d versions of the copies", copies())
	}
	if id := s.detached("one", "exec flock "+packagedFiles+"/open sleep 1000"); id == "" {
		t.Error("no lock")
	}
	s.sh("two", "flock --nonblock "+packagedFiles+"/open true")
	writeMode(t, packagedFiles+"/open", "changed\n", 0o644)
	time.Sleep(3 * time.Second)
	s.up("three")
	if copies() != 2 {
		t.Errorf("%d versions of the copies", copies())
	}
	for name, want := range map[string]string{"early": "open\n", "one": "open\n", "two": "open\n", "three": "changed\n"} {
		if got := s.sh(name, show); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

const rpmSpec = `Name: srt-test
Version: 1
Release: 1
Summary: a test
License: none
BuildArch: noarch
%description
A test.
%install
mkdir -p %{buildroot}/etc/srt-test.d %{buildroot}/usr/bin
for file in open closed secret.key plain; do echo $file >%{buildroot}/etc/srt-test.d/$file; done
echo '#!/bin/sh' >%{buildroot}/usr/bin/srt-test
echo 'cat /etc/srt-test.d/open' >>%{buildroot}/usr/bin/srt-test
%files
%config(noreplace) %attr(0644,root,root) /etc/srt-test.d/open
%config %attr(0600,root,root) /etc/srt-test.d/closed
%config %attr(0644,root,root) /etc/srt-test.d/secret.key
%attr(0644,root,root) /etc/srt-test.d/plain
%attr(0755,root,root) /usr/bin/srt-test
`

// The rule is the same for the configuration files of rpm's packages.
func TestFilesOfRPMPackagesAreShown(t *testing.T) {
	if _, err := exec.LookPath("rpmbuild"); err != nil {
		t.Skip("rpmbuild is not installed")
	}
	s := newSandboxes(t)
	for _, dir := range []string{"/etc", "/usr", "/var/lib/dpkg", "/var/lib/rpm"} {
		overlaid(t, dir)
	}
	if err := os.RemoveAll("/var/lib/dpkg/status"); err != nil { // in the overlay
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeMode(t, dir+"/srt-test.spec", rpmSpec, 0o644)
	rpm := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%s: %s", name, out)
		}
		return err
	}
	if err := rpm("rpmbuild", "--define", "_topdir "+dir, "-bb", dir+"/srt-test.spec"); err != nil {
		t.Fatal(err)
	}
	const database = "/var/lib/rpm"
	install := func() error {
		return rpm("rpm", "--dbpath", database, "--install", "--nodeps", "--force-debian", dir+"/RPMS/noarch/srt-test-1-1.noarch.rpm")
	}
	p := newPoolLauncher(s, "--pool", "min=1,max=1")
	const list = "ls " + packagedFiles + " 2>/dev/null || echo none"
	p.follows([]hostChange{
		{"a package is installed", install, list, "open\n"},
		{"its program", func() error { return nil }, "srt-test", "open\n"},
		{"a file with a password", func() error { return os.WriteFile(packagedFiles+"/open", []byte("password = x\n"), 0o644) }, list, "none\n"},
		{"the file of the package again", func() error { return os.WriteFile(packagedFiles+"/open", []byte("open\n"), 0o644) }, list, "open\n"},
		{"a package is removed from the database", func() error { return rpm("rpm", "--dbpath", database, "--erase", "--justdb", "srt-test") }, list, "none\n"},
	})
	p.end()
}
