package patch_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/patch"
)

const sample = "# Not in this patch: x\n" +
	"Binary files a/b and b/b differ\n" +
	"diff --git a/f b/f\n" +
	"old mode 100644\n" +
	"--- a/f\n" +
	"+++ b/f\n" +
	"@@ -1,4 +1,4 @@\n" +
	" same\n" +
	"-\x1b]0;title\a\x9b31m\n" +
	"--- a/g\n" +
	"+++ b/g\n" +
	"+\x7f\u202ecod.exe\u200b\u009b2J\tü\r\n" +
	" \xc3(\n" +
	"\\ No newline at end of file\n" +
	"diff --git a/h b/h\n"

const shown = "\x1b[33m# Not in this patch: x\x1b[m\n" +
	"\x1b[33mBinary files a/b and b/b differ\x1b[m\n" +
	"\x1b[1mdiff --git a/f b/f\x1b[m\n" +
	"\x1b[1mold mode 100644\x1b[m\n" +
	"\x1b[1m--- a/f\x1b[m\n" +
	"\x1b[1m+++ b/f\x1b[m\n" +
	"\x1b[36m@@ -1,4 +1,4 @@\x1b[m\n" +
	" same\n" +
	"\x1b[31m-\x1b[7m^[\x1b[27m]0;title\x1b[7m^G\x1b[27m\x1b[7m<9B>\x1b[27m31m\x1b[m\n" +
	"\x1b[31m--- a/g\x1b[m\n" +
	"\x1b[32m+++ b/g\x1b[m\n" +
	"\x1b[32m+\x1b[7m^?\x1b[27m\x1b[7m<U+202E>\x1b[27mcod.exe\x1b[7m<U+200B>\x1b[27m\x1b[7m<U+009B>\x1b[27m2J\tü\x1b[7m^M\x1b[27m\x1b[m\n" +
	" \x1b[7m<C3>\x1b[27m(\n" +
	"\\ No newline at end of file\n" +
	"\x1b[1mdiff --git a/h b/h\x1b[m\n"

// TestTerminalObeysNothing writes a diff in one piece and in pieces of any size.
func TestTerminalObeysNothing(t *testing.T) {
	t.Setenv("TERM", "xterm")
	for size := 1; size <= len(sample); size++ {
		var out bytes.Buffer
		w := patch.Terminal(&out)
		for rest := sample; rest != ""; {
			n := min(size, len(rest))
			if wrote, err := w.Write([]byte(rest[:n])); wrote != n || err != nil {
				t.Fatalf("%d, %v", wrote, err)
			}
			rest = rest[n:]
		}
		if out.String() != shown {
			t.Fatalf("in pieces of %d:\n%q\nand not\n%q", size, &out, shown)
		}
	}
}

// colours are the only escape sequences.
var colours = regexp.MustCompile("\x1b\\[(|1|7|27|31|32|33|36)m")

func FuzzTerminal(f *testing.F) {
	f.Add([]byte(sample), 7)
	f.Add([]byte("@@ -1,1 +1,1 @@\n\n@@"), 3)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		in = append(in, '\n')
		cut = min(max(cut, 0), len(in))
		var out bytes.Buffer
		w := patch.Terminal(&out)
		w.Write(in[:cut])
		w.Write(in[cut:])
		left := colours.ReplaceAllString(out.String(), "")
		if !utf8.ValidString(left) {
			t.Errorf("%q is not UTF-8", left)
		}
		for _, r := range left {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e {
				t.Errorf("%q has %q", left, r)
			}
		}
		if got, want := strings.Count(left, "\n"), bytes.Count(in, []byte("\n")); got != want {
			t.Errorf("%d lines of %d", got, want)
		}
	})
}

func TestNoColorAndDumbTerminalsLeaveOutTheColoursOfLines(t *testing.T) {
	for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", "")
			t.Setenv("TERM", "xterm")
			t.Setenv(name, value)
			var out bytes.Buffer
			if _, err := patch.Terminal(&out).Write([]byte(sample)); err != nil {
				t.Fatal(err)
			}
			want := regexp.MustCompile(`\x1b\[[1-6]*m`).ReplaceAllString(shown, "")
			if out.String() != want {
				t.Errorf("got\n%q\nwant\n%q", out.String(), want)
			}
		})
	}
}
