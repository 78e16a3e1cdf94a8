package process

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// elfWith is the beginning of an ELF program of 64 bits with a loader.
func elfWith(loader string) string {
	const at = 64 + 56
	b := make([]byte, at, at+len(loader)+1)
	copy(b, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint64(b[32:], 64) // the program headers
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	le.PutUint32(b[64:], 3) // PT_INTERP
	le.PutUint64(b[72:], at)
	le.PutUint64(b[96:], uint64(len(loader)+1))
	return string(append(append(b, loader...), 0))
}

// elf32With is elfWith for 32 bits.
func elf32With(loader string) string {
	const at = 52 + 32
	b := make([]byte, at, at+len(loader)+1)
	copy(b, "\x7fELF\x01\x01\x01")
	le := binary.LittleEndian
	le.PutUint32(b[28:], 52)
	le.PutUint16(b[42:], 32)
	le.PutUint16(b[44:], 1)
	le.PutUint32(b[52:], 3)
	le.PutUint32(b[56:], at)
	le.PutUint32(b[68:], uint32(len(loader)+1))
	return string(append(append(b, loader...), 0))
}

// tree is a root with files and links; a link's content begins with "->".
func tree(t testing.TB, files map[string]string) *os.File {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestTheMissingFileOfAProgramIsNamed(t *testing.T) {
	const there, venv = "/here/bin/python", "/venv/bin/python"
	root := tree(t, map[string]string{
		"bin/sh": "\x7fELF", "w/gone": "#!/opt/py/bin/python3 -u\n", "w/spaces": "#! \t/opt/x\targument\n", "w/noend": "#!/opt/x",
		"w/crlf": "#!/bin/sh\r\necho\r\n", "w/good": "#!/bin/sh\n", "w/dangling": "->" + there, "w/chain": "->dangling",
		"w/up": "->../w/../opt/y", "venv/bin/python": "->" + there, "w/script": "#!" + venv + "\n", "w/outer": "#!/w/gone\n",
		"w/relative": "#!bin/py\n", "w/loop": "->loop", "w/loops": "#!/w/loop\n", "w/musl": elfWith("/lib/ld-musl-x86_64.so.1"),
		"w/i386": elf32With("/lib/ld-linux.so.2"), "w/byELF": "#!/w/musl\n", "w/escape": "->/../../../../../etc/no-such-file",
		"w/empty": "", "w/short": "\x7fELF", "usr/bin/tool": "#!/opt/tool\n", "w/notdir": "->/bin/sh/below",
	})
	const lacking, advice = " is not found inside", "; build the program for this system, or link it statically"
	for name, want := range map[string]string{
		"/w/gone":     "its interpreter /opt/py/bin/python3" + lacking,
		"/w/spaces":   "its interpreter /opt/x" + lacking,
		"/w/noend":    "its interpreter /opt/x" + lacking,
		"./gone":      "its interpreter /opt/py/bin/python3" + lacking,
		"/w/crlf":     `the first line of /w/crlf ends with a carriage return, and its interpreter "/bin/sh\r"` + lacking + `; remove the carriage returns, for example with: sed -i 's/\r$//' /w/crlf`,
		"/w/dangling": "/w/dangling is a link to " + there + ", and the target" + lacking,
		"/w/chain":    "/w/chain is a link to " + there + ", and the target" + lacking,
		"/w/up":       "/w/up is a link to /opt/y, and the target" + lacking,
		"/w/notdir":   "/w/notdir is a link to /bin/sh/below, and the target" + lacking,
		"/w/escape":   "/w/escape is a link to /etc/no-such-file, and the target" + lacking,
		"/w/script":   "its interpreter " + venv + " is a link to " + there + ", and the target" + lacking,
		"/w/outer":    "its interpreter /opt/py/bin/python3" + lacking,
		"/w/relative": "its interpreter bin/py" + lacking,
		"/w/musl":     "its loader /lib/ld-musl-x86_64.so.1" + lacking + advice,
		"/w/i386":     "its loader /lib/ld-linux.so.2" + lacking + advice,
		"/w/byELF":    "the loader /lib/ld-musl-x86_64.so.1 of its interpreter /w/musl" + lacking + advice,
		"tool":        "its interpreter /opt/tool" + lacking,
		"/w/good":     "", "/w/none": "", "none": "", "/w/loop": "", "/w/loops": "", "/w/empty": "", "/w/short": "", "/w": "", "": "",
		"/bin/sh/below": "",
	} {
		m, found := FindMissing(root, Call{Name: name, Dir: "/w", Path: "/nowhere:/usr/bin::/bin"})
		got := ""
		if found {
			got = m.Reason("inside")
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if m, _ := FindMissing(root, Call{Name: "/w/script", Dir: "/"}); m.File != there {
		t.Errorf("the missing file is %q, want %q", m.File, there)
	}
}

// Untrusted code can put any file in the place of a program after the execution has failed.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	root := tree(t, map[string]string{"pipescript": "#!/pipe\n"})
	if err := unix.Mkfifo(root.Name()+"/pipe", 0o777); err != nil {
		t.Fatal(err)
	}
	huge := elfWith("/lib/x")
	bytes := []byte(huge)
	binary.LittleEndian.PutUint64(bytes[96:], 1<<62) // the length of the loader's path
	if err := os.WriteFile(root.Name()+"/huge", bytes, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/pipe", "/pipescript", "/huge"} {
		done := make(chan bool)
		go func() {
			_, found := FindMissing(root, Call{Name: name, Dir: "/"})
			done <- found
		}()
		select {
		case found := <-done:
			if found {
				t.Errorf("%s: a missing file is found", name)
			}
		case <-time.After(testhost.Patience):
			t.Fatalf("%s: the look does not end", name)
		}
	}
}

func TestTheFormatIsExplained(t *testing.T) {
	root := tree(t, map[string]string{"plain": "echo\n", "elf": elfWith("/x"), "empty": "#!\n"})
	for name, want := range map[string]string{"plain": "sh ./plain", "elf": "for another kind of machine, or is damaged", "empty": "names no interpreter", "none": ""} {
		if got := FormatHint(root, Call{Name: "./" + name, Dir: "/"}); !strings.HasSuffix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestLinesForAShellGetAHint(t *testing.T) {
	for _, test := range []struct {
		words []string
		want  string
	}{
		{[]string{"a | b"}, "sh -c 'a | b'"},
		{[]string{"ls -l 'x'"}, `sh -c 'ls -l '\''x'\'''`},
		{[]string{"cd", "a b", ""}, `sh -c 'cd '\''a b'\'' '\'''\'''`},
		{[]string{"source", "venv/bin/activate"}, "bash -c 'source venv/bin/activate'"},
		{[]string{"[[", "-f", "x", "]]"}, "bash -c '[[ -f x ]]'"},
		{[]string{"--json", "ls"}, "before the name of the sandbox, and with do before --"},
		{[]string{"CC=gcc", "make"}, "sh -c 'CC=gcc make'"},
		{[]string{"a\x1b[31m | b"}, "sh -c 'LINE'"},
		{[]string{strings.Repeat("a ", 200)}, "sh -c 'LINE'"},
		{[]string{"python4"}, ""},
		{[]string{"no such program", "argument"}, ""},
		{[]string{"/opt/x=y"}, ""},
	} {
		if got := Hinted("why", test.words); !strings.HasSuffix(got, test.want) || test.want == "" && got != "why" {
			t.Errorf("%q: %q, want the end %q", test.words, got, test.want)
		}
	}
}

func FuzzFindMissing(f *testing.F) {
	for _, seed := range []string{"#!/bin/sh\r\n", "#!", elfWith("/lib/x"), elf32With("/lib/x"), "\x7fELF\x02\x02", "#!/x"} {
		f.Add([]byte(seed))
	}
	root := tree(f, nil)
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(root.Name()+"/x", content, 0o755); err != nil {
			t.Fatal(err)
		}
		m, found := FindMissing(root, Call{Name: "/x", Dir: "/"})
		if text := m.Reason("inside"); found && (len(text) > 2000 || strings.ContainsAny(text, "\n\x00\x1b")) {
			t.Errorf("%q", text)
		}
		FormatHint(root, Call{Name: "/x", Dir: "/"})
	})
}
