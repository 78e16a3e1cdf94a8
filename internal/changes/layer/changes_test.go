package layer

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// sh runs a script in a directory, in the test's mount namespace.
func sh(t testing.TB, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func list(t testing.TB, s *Stack, o Options) []spec.Change {
	t.Helper()
	var all []spec.Change
	for c, err := range s.Changes(o) {
		if err != nil {
			t.Fatalf("changes: %v", err)
		}
		all = append(all, c)
	}
	return all
}

// shortForm writes a change as its kind, path, types, and its unusual fields.
func shortForm(c spec.Change) string {
	line := fmt.Sprintf("%c %s %s", c.Kind[0]&^0x20, c.Path, c.Type)
	if c.Was != "" {
		line += " was " + string(c.Was)
	}
	if c.Opaque {
		line += " opaque"
	}
	if c.Link != "" {
		line += " -> " + c.Link
	}
	if c.HardLink != "" {
		line += " = " + c.HardLink
	}
	return line
}

func shorts(all []spec.Change) []string {
	lines := []string{}
	for _, c := range all {
		lines = append(lines, shortForm(c))
	}
	return lines
}

const baseTree = `
	mkdir -p d/sub e
	echo one > f; echo two > g; echo x > d/a; echo y > d/b; echo z > d/sub/c
	ln -s f link; mkfifo fifo; chmod 700 e
	touch -d '2020-01-01 00:00:00.5' f g d/a d/b d/sub/c; touch -h -d 2020-01-01 link`

func TestChangesOfOneLayer(t *testing.T) {
	tests := map[string]struct {
		script string
		also   func(t testing.TB, dir string)
		want   []string
		names  []string // where Names lists others
		gone   []string // where Deleted lists others
	}{
		"nothing":                {`cat f; ls d`, nil, nil, nil, nil},
		"create":                 {`echo n > n; echo n > d/sub/n`, nil, []string{"C d/sub/n file", "C n file"}, nil, nil},
		"write":                  {`echo more >> f; echo more >> d/sub/c`, nil, []string{"M d/sub/c file", "M f file"}, nil, nil},
		"truncate":               {`: > f`, nil, []string{"M f file"}, nil, nil},
		"write as long":          {`echo eno > f`, nil, []string{"M f file"}, nil, nil},
		"open for writing only":  {`: >> f`, nil, nil, []string{"M f file"}, nil},
		"delete":                 {`rm f d/a`, nil, []string{"D d/a file", "D f file"}, nil, nil},
		"delete link and fifo":   {`rm link fifo`, nil, []string{"D fifo fifo", "D link symlink"}, nil, nil},
		"delete directory":       {`rm -r d`, nil, []string{"D d directory"}, nil, []string{"D d directory", "D d/a file", "D d/b file", "D d/sub directory", "D d/sub/c file"}},
		"create and delete":      {`echo n > n; rm n; mkdir m; rmdir m; echo n > d/n; rm d/n`, nil, nil, nil, nil},
		"recreate equal":         {`rm f; echo one > f`, nil, []string{"M f file"}, nil, nil},
		"mkdir":                  {`mkdir -p n/m; echo x > n/m/f`, nil, []string{"C n directory", "C n/m directory", "C n/m/f file"}, nil, nil},
		"rename file":            {`mv f h; mv g d/sub/g`, nil, []string{"C d/sub/g file", "D f file", "D g file", "C h file"}, nil, nil},
		"rename onto":            {`mv f g`, nil, []string{"D f file", "M g file"}, nil, nil},
		"rename directory":       {`mv d h`, nil, []string{"D d directory", "C h directory", "C h/a file", "C h/b file", "C h/sub directory", "C h/sub/c file"}, nil, []string{"D d directory", "D d/a file", "D d/b file", "D d/sub directory", "D d/sub/c file", "C h directory", "C h/a file", "C h/b file", "C h/sub directory", "C h/sub/c file"}},
		"opaque":                 {`rm -r d; mkdir d; echo x > d/b; mkdir d/new`, nil, []string{"M d directory was directory opaque", "M d/b file", "C d/new directory"}, nil, []string{"M d directory was directory opaque", "D d/a file", "M d/b file", "C d/new directory", "D d/sub directory", "D d/sub/c file"}},
		"opaque in opaque":       {`rm -r d; mkdir -p d/sub; mkfifo d/a`, nil, []string{"M d directory was directory opaque", "M d/a fifo was file", "M d/sub directory was directory opaque"}, nil, []string{"M d directory was directory opaque", "M d/a fifo was file", "D d/b file", "M d/sub directory was directory opaque", "D d/sub/c file"}},
		"opaque and empty":       {`rm -r d; mkdir d`, nil, []string{"M d directory was directory opaque"}, nil, []string{"M d directory was directory opaque", "D d/a file", "D d/b file", "D d/sub directory", "D d/sub/c file"}},
		"file over directory":    {`rm -r d; echo x > d`, nil, []string{"M d file was directory"}, nil, []string{"M d file was directory", "D d/a file", "D d/b file", "D d/sub directory", "D d/sub/c file"}},
		"directory over file":    {`rm f; mkdir f; echo x > f/x`, nil, []string{"M f directory was file", "C f/x file"}, nil, nil},
		"link over file":         {`ln -sf /etc/passwd f`, nil, []string{"M f symlink was file -> /etc/passwd"}, []string{"M f symlink was file"}, nil},
		"file over link":         {`rm link; echo x > link`, nil, []string{"M link file was symlink"}, nil, nil},
		"new link":               {`ln -s ../.. n; ln -sfn g link`, nil, []string{"M link symlink -> g", "C n symlink -> ../.."}, []string{"M link symlink", "C n symlink"}, nil},
		"chmod":                  {`chmod 600 f; chmod 700 d; chmod 4755 g`, nil, []string{"M d directory", "M f file", "M g file"}, []string{"M f file", "M g file"}, nil},
		"chmod back":             {`chmod 600 f; chmod 644 f; chmod 700 d; chmod 755 d`, nil, nil, []string{"M f file"}, nil},
		"chown":                  {`chown 7:8 f d; chown -h 9 link`, nil, []string{"M d directory", "M f file", "M link symlink -> f"}, []string{"M f file", "M link symlink"}, nil},
		"touch":                  {`touch f; touch d`, nil, []string{"M f file"}, nil, nil},
		"xattr":                  {``, xattrs("f", "user.n", "1", "d", "user.n", "1", "g", "user.k", ""), []string{"M d directory", "M f file", "M g file"}, []string{"M f file", "M g file"}, nil},
		"acl":                    {``, xattrs("f", "system.posix_acl_access", acl(77), "d", "system.posix_acl_default", acl(77)), []string{"M d directory", "M f file"}, []string{"M f file"}, nil},
		"overlay's own xattrs":   {``, xattrs("d", "user.overlay.opaque", "y", "f", "user.overlay.redirect", "/g"), nil, []string{"M f file"}, nil},
		"hard link":              {`echo n > n; ln n d/n; ln f h`, nil, []string{"C d/n file", "M f file", "C h file = f", "C n file = d/n"}, []string{"C d/n file", "M f file", "C h file", "C n file"}, nil},
		"fifo and socket":        {`mkfifo p`, socket, []string{"C p fifo", "C s socket"}, nil, nil},
		"names like whiteouts":   {`echo x > .wh.f; mkdir .wh..wh..opq; echo x > d/.wh..wh..opq`, nil, []string{"C .wh..wh..opq directory", "C .wh.f file", "C d/.wh..wh..opq file"}, nil, nil},
		"names of bytes":         {`printf x > "$(printf 'new\nline')"; printf x > "$(printf '\377\376')"; printf x > "$(printf %0255d 0)"`, nil, []string{"C " + strings.Repeat("0", 255) + " file", "C new\nline file", "C \xff\xfe file"}, nil, nil},
		"order":                  {`mkdir n; echo > n/z; echo > n.a; echo > n-; echo > nn`, nil, []string{"C n directory", "C n/z file", "C n- file", "C n.a file", "C nn file"}, nil, nil},
		"delete and mkdir again": {`rm -r e; mkdir e; chmod 700 e`, nil, []string{"M e directory was directory opaque"}, nil, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOverlay(t)
			sh(t, o.base, baseTree)
			xattrs("g", "user.k", "v")(t, o.base)
			o.push()
			sh(t, o.merged, test.script)
			if test.also != nil {
				test.also(t, o.merged)
			}
			s := o.stack()
			if test.names == nil {
				test.names = test.want
			}
			if test.gone == nil {
				test.gone = test.want
			}
			expect(t, "changes", shorts(list(t, s, Options{})), test.want)
			expect(t, "names", shorts(list(t, s, Options{Names: true})), test.names)
			expect(t, "with deleted", shorts(list(t, s, Options{Deleted: true})), test.gone)
		})
	}
}

// xattrs sets extended attributes: files, names, values; without a value it
// removes them.
func xattrs(all ...string) func(testing.TB, string) {
	return func(t testing.TB, dir string) {
		t.Helper()
		for some := range slices.Chunk(all, 3) {
			path := filepath.Join(dir, some[0])
			if some[2] == "" {
				must(t, unix.Lremovexattr(path, some[1]))
			} else {
				must(t, unix.Lsetxattr(path, some[1], []byte(some[2]), 0))
			}
		}
	}
}

// acl is a POSIX ACL that lets one more user read: user::rw-, user:UID:r--,
// group::r--, mask::r--, other::r--.
func acl(uid uint32) string {
	const none = ^uint32(0)
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 6, none}, {2, 4, uid}, {4, 4, none}, {16, 4, none}, {32, 4, none}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return string(b)
}

func socket(t testing.TB, dir string) {
	t.Helper()
	if err := unix.Mknod(filepath.Join(dir, "s"), unix.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

func TestChangesOfSeveralLayers(t *testing.T) {
	tests := map[string]struct {
		scripts []string // from the lowest layer up
		want    []string
		gone    []string
	}{
		"each one's own":          {[]string{`echo 1 > n1; rm f`, `echo 2 > n2`, `echo 3 > d/n3`}, []string{"C d/n3 file", "D f file", "C n1 file", "C n2 file"}, nil},
		"hidden file":             {[]string{`echo 1 > n`, `rm n`}, nil, nil},
		"hidden directory":        {[]string{`mkdir n; echo > n/f`, `rm -r n`}, nil, nil},
		"hidden, then again":      {[]string{`mkdir n; echo > n/f`, `rm -r n`, `mkdir n; echo > n/g`}, []string{"C n directory", "C n/g file"}, nil},
		"whiteout under a file":   {[]string{`rm f`, `echo new > f`}, []string{"M f file"}, nil},
		"opaque over new":         {[]string{`mkdir n; echo > n/f`, `rm -r n; mkdir n; echo > n/g`}, []string{"C n directory", "C n/g file"}, nil},
		"opaque in the middle":    {[]string{`echo > d/n`, `rm -r d; mkdir d; echo > d/b`, `echo > d/top; rm d/b; mkdir d/sub`}, []string{"M d directory was directory opaque", "M d/sub directory was directory opaque", "C d/top file"}, []string{"M d directory was directory opaque", "D d/a file", "D d/b file", "M d/sub directory was directory opaque", "D d/sub/c file", "C d/top file"}},
		"file under a directory":  {[]string{`rm -r d; echo > d`, `rm d; mkdir d; echo > d/b`}, []string{"M d directory was directory opaque", "M d/b file"}, nil},
		"directory under a file":  {[]string{`echo > d/n`, `rm -r d; echo > d`}, []string{"M d file was directory"}, nil},
		"merged":                  {[]string{`echo > d/1; mkdir m; echo > m/1`, `echo > d/2; echo > m/2; rm d/a`, `echo > d/3; rm m/1`}, []string{"C d/1 file", "C d/2 file", "C d/3 file", "D d/a file", "C m directory", "C m/2 file", "C m/3 file"}[:6], nil},
		"mode from the uppermost": {[]string{`chmod 700 d`, `chmod 755 d`}, nil, nil},
		"links of two layers":     {[]string{`echo > a; ln a b`, `echo > c; ln c cc; echo more >> a`}, []string{"C a file", "C b file", "C c file", "C cc file = c"}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOverlay(t)
			sh(t, o.base, baseTree)
			for _, script := range test.scripts {
				o.push()
				sh(t, o.merged, script)
			}
			s := o.stack()
			expect(t, "changes", shorts(list(t, s, Options{})), test.want)
			expect(t, "names", shorts(list(t, s, Options{Names: true})), shorts(withoutLinks(list(t, s, Options{}))))
			if test.gone != nil {
				expect(t, "with deleted", shorts(list(t, s, Options{Deleted: true})), test.gone)
			}
			sameContents(t, s, o.merged)
		})
	}
}

func withoutLinks(all []spec.Change) []spec.Change {
	for i := range all {
		all[i].Link, all[i].HardLink = "", ""
	}
	return all
}

// sameContents holds that Open gives what the overlay shows.
func sameContents(t testing.TB, s *Stack, merged string) {
	t.Helper()
	for _, c := range list(t, s, Options{}) {
		if c.Kind == spec.Deleted || c.Type != spec.TypeFile {
			continue
		}
		want, err := os.ReadFile(filepath.Join(merged, c.Path))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := content(t, s, c.Path); got != string(want) {
			t.Errorf("%q: got %q, want %q", c.Path, got, want)
		}
	}
}

func content(t testing.TB, s *Stack, path string) string {
	t.Helper()
	f, err := s.Open(path)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	n, _ := f.Read(b)
	return string(b[:n])
}
