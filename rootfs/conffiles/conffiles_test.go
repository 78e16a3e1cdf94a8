package conffiles

import (
	"crypto/md5" //nolint:gosec // the sums of dpkg
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

const sum = "0123456789abcdef0123456789abcdef"

// stanza is a package in the status of dpkg.
func stanza(name, state, more, conffiles string) string {
	text := "Package: " + name + "\nStatus: " + state + "\nArchitecture: amd64\n" + more
	if conffiles != "" {
		text += "Conffiles:\n" + conffiles
	}
	return text + "Description: a package\n with the line\n Conffiles:\n\n"
}

func TestFilesAreThoseOfPackagesWithAProgram(t *testing.T) {
	const installed = "install ok installed"
	root := t.TempDir()
	list := func(name, paths string) {
		testhost.WriteFile(t, root+"/var/lib/dpkg/info/"+name+".list", "/.\n/etc\n/usr\n"+paths)
	}
	var want, unwanted []string
	var status strings.Builder
	add := func(taken bool, name, state, more, files, line string) {
		list(files, line)
		status.WriteString(stanza(name, state, more, " /etc/"+name+"/conf "+sum+"\n"))
		if taken {
			want = append(want, name+"/conf")
		} else {
			unwanted = append(unwanted, name+"/conf")
		}
	}
	for _, file := range []string{
		"/usr/bin/tool", "/usr/sbin/server", "/usr/games/game", "/bin/sh", "/usr/lib/python3/module.py", "/usr/lib/x86_64-linux-gnu/l.so", "/usr/share/data/rc",
		"/lib/systemd/system/unit.service", "/usr/lib/udev/rules.d/60-unit.rules",
		"/usr/share/doc/p/copyright", "/usr/share/man/man1/p.1", "/opt/p/bin/p", "/var/lib/p/p", "/usr/share/file",
	} {
		testhost.WriteFile(t, root+file, "")
	}
	add(true, "tool", installed, "", "tool", "/usr/bin\n/usr/bin/tool\n")
	add(true, "held", "hold ok installed", "", "held", "/usr/sbin/server\n")
	add(true, "game", "install ok triggers-pending", "", "game", "/usr/games/game\n")
	add(true, "shell", installed, "", "shell", "/bin/sh\n")
	add(true, "module", installed, "", "module", "/usr/lib/python3/module.py\n")
	add(true, "library", installed, "Multi-Arch: same\n", "library:amd64", "/usr/lib/x86_64-linux-gnu/l.so\n")
	add(true, "data", installed, "", "data", "/usr/share/data/rc\n")
	add(false, "documents", installed, "", "documents", "/usr/share/doc/p/copyright\n/usr/share/man/man1/p.1\n/usr/share/file\n")
	add(false, "unit", installed, "", "unit", "/lib/systemd/system/unit.service\n/usr/lib/udev/rules.d/60-unit.rules\n")
	add(false, "elsewhere", installed, "", "elsewhere", "/opt/p/bin/p\n/var/lib/p/p\n")
	add(false, "gone", installed, "", "gone", "/usr/bin\n/usr/bin/gone\n")
	add(false, "removed", "deinstall ok config-files", "", "removed", "/usr/bin/tool\n")
	add(false, "broken", "install ok half-installed", "", "broken", "/usr/bin/tool\n")
	add(false, "unlisted", installed, "", "other", "/usr/bin/tool\n")
	add(false, "../tool", installed, "", "tool", "/usr/bin/tool\n")
	status.WriteString(stanza("tool", installed, "", " /etc/old "+sum+" obsolete\n /etc/new newconffile\n /etc/a/../b "+sum+"\n /usr/lib/c "+sum+
		"\n /etc/ssh/tool.conf "+sum+"\n /etc/tool.d/api-keys "+sum+"\n /etc/last "+sum+"\n"))
	want = append(want, "last")
	var got []string
	for _, f := range dpkgFiles([]byte(status.String()), root) {
		got = append(got, f.Name)
		if f.Sum != sum {
			t.Errorf("%s has the sum %s", f.Name, f.Sum)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q, without %q", got, want, unwanted)
	}
}

func TestReadRPMTakesConfigurationFilesOfPrograms(t *testing.T) {
	root := t.TempDir()
	testhost.WriteFile(t, root+"/usr/bin/tool", "")
	lines := strings.Join([]string{
		"tool\t17\t" + sum + "\t/etc/tool.conf", "tool\t1\t" + sum + "\t/etc/tool.d/client.key", "tool\t65\t\t/etc/tool.d/ghost",
		"tool\t1\t" + sum + "\t/etc/../root/x", "tool\t1\t" + sum + "\t/usr/lib/tool/x", "tool\t0\t" + sum + "\t/etc/plain", "tool\t0\t" + sum + "\t/usr/bin/tool",
		"config\t1\t" + sum + "\t/etc/config", "config\t2\t" + sum + "\t/usr/share/doc/config/README",
		"gone\t1\t" + sum + "\t/etc/gone", "gone\t0\t" + sum + "\t/usr/bin/gone",
		"no line", "bad\tx\t" + sum + "\t/etc/bad",
		"last\t0\t" + sum + "\t/usr/bin/tool", "last\t1\t" + sum + "\t/etc/last",
	}, "\n")
	got, err := readRPM(strings.NewReader(lines), root)
	if want := []File{{"tool.conf", sum}, {"last", sum}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := readRPM(strings.NewReader(strings.Repeat("x", mostRPMLine+1)), root); err == nil {
		t.Error("a line without an end is read")
	}
}

// A keeper of a test.
type memory struct {
	text   []byte
	stored int
}

func (m *memory) Load() ([]byte, error)   { return m.text, nil }
func (m *memory) Store(text []byte) error { m.text, m.stored = text, m.stored+1; return nil }

// Kept files are of one version of the database. A text that is cut off is not used.
func TestKeptFilesAreOfOneVersion(t *testing.T) {
	now := version{device: 1, inode: 2, size: 3}
	files := []File{{"tool.conf", sum}, {"a name", ""}}
	text := encode(files, versionKey("/db", now))
	if got, ok := decode(text, versionKey("/db", now)); !ok || !slices.Equal(got, files) {
		t.Errorf("got %v, %v", got, ok)
	}
	for end := range len(text) {
		if got, ok := decode(text[:end], versionKey("/db", now)); ok {
			t.Errorf("%q gives %v", text[:end], got)
		}
	}
	later := now
	later.changed.Nsec++
	for _, key := range []string{versionKey("/db", later), versionKey("/other", now), ""} {
		if got, ok := decode(text, key); ok {
			t.Errorf("%s gives %v", key, got)
		}
	}
	if never := neverSum(); !strings.Contains(string(text), never) {
		t.Errorf("the names that are never shown are not in %q", text)
	}
}

func TestAnotherProcessReadsTheKeptFiles(t *testing.T) {
	if _, err := os.Stat(DpkgDatabase); err != nil {
		t.Skip("dpkg is not installed")
	}
	var m memory
	first := Reader{Keep: &m}
	want, err := first.Files()
	if err != nil || m.stored != 1 {
		t.Fatalf("kept %d times, %v", m.stored, err)
	}
	second := Reader{Keep: &m}
	got, err := second.Files()
	if err != nil || !slices.Equal(got, want) || m.stored > 1 {
		t.Errorf("%d files, kept %d times, %v; want %d files", len(got), m.stored, err, len(want))
	}
	m.text = []byte("another text")
	third := Reader{Keep: &m}
	if got, err := third.Files(); err != nil || !slices.Equal(got, want) || m.stored != 2 {
		t.Errorf("%d files, kept %d times, %v; want %d files", len(got), m.stored, err, len(want))
	}
}

// A database that is cut off anywhere is no reason to fail.
func TestATornDatabaseGivesFewerFiles(t *testing.T) {
	text := stanza("a", "install ok installed", "", " /etc/a "+sum+"\n") + stanza("b", "install ok installed", "", " /etc/b "+sum+"\n")
	for end := range len(text) {
		dpkgFiles([]byte(text[:end]), t.TempDir())
	}
}

func TestTheReaderReadsAChangedDatabaseOnly(t *testing.T) {
	if _, err := os.Stat(DpkgDatabase); err != nil {
		t.Skip("dpkg is not installed")
	}
	var r Reader
	first, err := r.Files()
	if err != nil || len(first) == 0 {
		t.Fatalf("got %d files, %v", len(first), err)
	}
	again, err := r.Files()
	if err != nil || r.of == "" || len(again) > 0 && len(first) == len(again) && &again[0] != &first[0] {
		t.Errorf("the second call read again: %v", err)
	}
}

func TestNeverHidesPlacesOfSecrets(t *testing.T) {
	for _, name := range []string{
		"ssh/ssh_config", "ssl/private/a", "mysql/conf.d/a.cnf", "wgetrc", "apt/auth.conf", "apt/sources.list", "maven/settings.xml", "mercurial/hgrc",
		"subversion/servers", "R/Renviron.site", "bash.bashrc", "profile.d/a.sh", "environment", "skel/.profile", "hosts.allow", "pam.d/su", "passwd-", "group",
		"krb5.conf.d/x", "php/8.2/cli/php.ini", "default/x", "cron.d/x", "systemd/user.conf", "tool/Passwords.conf", "tool/client.key", "tool.d/apikeys",
		"My-Secrets/conf", "tool/known_hosts", "tool/server.pem", "tool/token.json", "sudoers.d/x", "docker/daemon.json", "X11/Xsession.d/x", "X11/Xsession",
		"init.d/x", "openmpi/openmpi-default-hostfile", "containers/auth.json", "tool/README", "xdg/autostart/x.desktop", "dbus-1/system.d/x", "postgresql-common/user_clusters",
		"avahi/hosts", "distcc/hosts", "dnsmasq.conf", "drbd.d/global_common.conf", "nut/upsmon.conf", "sane.d/net.conf", "supervisor/supervisord.conf",
		"tinyproxy/tinyproxy.conf", "keepalived/keepalived.conf",
	} {
		if Never(name) == "" {
			t.Errorf("%s is shown", name)
		}
	}
	for _, name := range []string{
		"matplotlibrc", "chromium.d/default-flags", "lynx/lynx.cfg", "vim/vimrc", "screenrc", "nanorc", "containers/policy.json", "mercurial/hgrc.d/cacerts.rc",
		"subversion/config", "mke2fs.conf", "inputrc", "python3.11/sitecustomize.py", "gdb/gdbinit", "X11/app-defaults/XTerm", "iproute2/rt_tables", "iproute2/group",
		"octaverc", "ghostscript/fontmap.d/a.conf", "R/Makeconf", "maven/m2.conf", "magic", "xdg/user-dirs.conf", "sane.d/dll.conf",
	} {
		if by := Never(name); by != "" {
			t.Errorf("%s is hidden by %s", name, by)
		}
	}
}

// Only the begin and the end of a name have a *: matches knows no other patterns.
func TestNamesOfNeverGroupsAreWellFormed(t *testing.T) {
	number := 0
	for _, group := range NeverGroups() {
		for _, name := range group.Names {
			number++
			inner := strings.TrimSuffix(strings.TrimPrefix(name, "*"), "*")
			if inner == "" || strings.Contains(inner, "*") || strings.HasPrefix(name, "*") && strings.ToLower(name) != name {
				t.Errorf("%s: %q is not a good name", group.Of, name)
			}
			if Never(strings.ReplaceAll(name, "*", "")) == "" {
				t.Errorf("%s: %q hides nothing", group.Of, name)
			}
		}
	}
	if number < 20 {
		t.Errorf("there are %d names", number)
	}
}

func TestAChangedFileWithASecretIsNotHarmless(t *testing.T) {
	const packaged = "# password = here\nfont: serif\n"
	md5sum, sha256sum := md5.Sum([]byte(packaged)), sha256.Sum256([]byte(packaged)) //nolint:gosec // the sums of dpkg
	f, r := File{Sum: hex.EncodeToString(md5sum[:])}, File{Sum: hex.EncodeToString(sha256sum[:])}
	for text, want := range map[string]bool{
		packaged:                              true,
		"font: sans\n":                        true,
		packaged + "font: sans\n":             false,
		"Password: x\n":                       false,
		"set imap_pass=\"x\"\n":               false, // mutt
		"Pass x\n":                            false, // mbsync
		"  pass\t= x\n":                       false,
		"PWD=x;UID=ann\n":                     false, // ODBC
		"psk: x\n":                            false,
		"bypasses nothing, compass\n":         true,
		"url = https://ann:key@example.org\n": false,
		"url = https://example.org/a@b\n":     true,
		"api-key x\n":                         false,
		"-----BEGIN OPENSSH PRIVATE KEY-----": false,
		"":                                    true,
	} {
		if dpkg, rpm := f.Harmless([]byte(text)), r.Harmless([]byte(text)); dpkg != want || rpm != want {
			t.Errorf("%q: %v, with the sum of rpm %v", text, dpkg, rpm)
		}
	}
}

var update = flag.Bool("update", false, "write the table of docs/host.md")

func TestThePageHasTheNamesThatAreNeverShown(t *testing.T) {
	const name, begin, end = "../../docs/host.md", "<!-- begin never -->\n", "<!-- end never -->\n"
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), begin)
	_, tail, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no place for the table", name)
	}
	table := "| of | names |\n|---|---|\n"
	for _, group := range NeverGroups() {
		table += "| " + group.Of + " | `" + strings.Join(group.Names, "`, `") + "` |\n"
	}
	page := head + begin + table + end + tail
	if page == string(data) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the list; run: go test ./rootfs/conffiles -run TestThePageHasTheNames -update", name)
	}
	if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
