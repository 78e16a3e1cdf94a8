package autorun

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/autorun.md")

// table is the entries as a table in Markdown, a row for each reason.
func table(held bool) string {
	var b strings.Builder
	b.WriteString("| effect | paths |\n|---|---|\n")
	var last Entry
	for _, e := range Entries() {
		if e.Held != held {
			continue
		}
		if e.Reason != last.Reason || e.When != last.When {
			if last.Pattern != "" {
				b.WriteString(" |\n")
			}
			b.WriteString("| " + e.Reason)
			if e.When != "" {
				b.WriteString(" (" + string(e.When) + ")")
			}
			b.WriteString(" | ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString("`" + e.Pattern + "`")
		last = e
	}
	return b.String() + " |\n"
}

func TestThePageHasTheTable(t *testing.T) {
	const name = "../../../docs/autorun.md"
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	want := between(t, between(t, page, "held", table(true)), "marked", table(false))
	if page == want {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the table; run: go test ./internal/changes/autorun -run TestThePageHasTheTable -update", name)
	}
	if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// between replaces the text between two comments of the page.
func between(t *testing.T, page, name, text string) string {
	t.Helper()
	head, rest, ok := strings.Cut(page, "<!-- begin "+name+" -->\n")
	_, tail, end := strings.Cut(rest, "<!-- end "+name+" -->\n")
	if !ok || !end {
		t.Fatalf("the page has no part %s", name)
	}
	return head + "<!-- begin " + name + " -->\n" + text + "<!-- end " + name + " -->\n" + tail
}
