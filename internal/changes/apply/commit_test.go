package apply

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const host = `
echo keep > keep; echo old > modified; echo gone > deleted; ln -s keep link
mkdir -p dir/sub gonedir/a/b opaque/x turned stays; echo 1 > dir/file; echo 2 > dir/sub/file
echo 3 > gonedir/a/b/c; echo 4 > opaque/x/y; echo 5 > opaque/z; echo 6 > turned/t; echo 7 > turns
echo 8 > one; ln one two; chmod 640 modified; mkdir stays/deep; echo 9 > stays/deep/f
chmod 2755 stays; touch -d '2001-02-03 04:05:06.789' keep dir
`

const inside = `
echo new > modified; rm deleted; rm -r gonedir; rm -r opaque; mkdir opaque; echo o > opaque/new
rm -r turned; echo file > turned; rm turns; mkdir turns; echo d > turns/d
mkdir -p made/a/b; echo m > made/a/b/c; echo n > made/n; ln made/n made/a/hard; ln made/n hard
ln -s ../keep made/link; ln -s /nowhere dangling; rm link; ln -s other link; mkfifo -m 620 fifo
chmod 700 dir; echo s > dir/sub/file
touch -d '1999-12-31 23:59:59.123456789' made/n; touch -d 2000-01-01 made/a
mkdir readonly; echo r > readonly/r; chmod 555 readonly; rm stays/deep/f; chmod 1777 stays/deep
printf odd > $'line\nbreak'; printf bytes > $'\xff\xfe'; printf long > $(printf 'n%.0s' {1..255})
truncate -s 3M sparse; printf end >> sparse; echo append >> one; mkdir -m 0 closed; : > empty
chmod g+s made/a
`

// work does all that can be done in a sandbox.
func (b *box) work() {
	b.t.Helper()
	b.run(inside)
	// ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_OTHER, each with all rights.
	const acl = "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x04\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x07\x00\xff\xff\xff\xff"
	b.xattr("dir", "user.colour", "blue")
	b.xattr("modified", "user.x", "y")
	b.xattr("made/a/b/c", "user.empty", "")
	b.xattr("made/a", "user.deep", strings.Repeat("x", 1000))
	b.xattr("made/a/b", defaultACL, acl)
	b.run("touch -d 2000-01-01 made/a; echo > made/a/b/inherits")
}

// xattr sets an extended attribute in the sandbox.
func (b *box) xattr(path, name, value string) {
	b.t.Helper()
	if err := unix.Lsetxattr(filepath.Join(b.merged, path), name, []byte(value), 0); err != nil {
		b.t.Fatal(path, name, err)
	}
}

func TestTheTreeBecomesWhatTheSandboxSaw(t *testing.T) {
	b := newBox(t, host)
	b.work()
	want := describeTree(t, b.merged)
	report := b.apply(Options{})
	b.wantSame(want, describeTree(t, b.tree))
	if len(report.Applied) < 30 || len(report.Stamps) < 30 {
		t.Errorf("applied %q, stamps of %d", report.Applied, len(report.Stamps))
	}
}
