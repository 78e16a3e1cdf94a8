package seccomp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/golden"
)

// set of names.
type set map[string]bool

func (s set) sorted() []string { return slices.Sorted(maps.Keys(s)) }

func (s set) add(other set) set { maps.Copy(s, other); return s }

func (s set) minus(other set) set {
	rest := maps.Clone(s)
	maps.DeleteFunc(rest, func(name string, _ bool) bool { return other[name] })
	return rest
}

// namesOf sorts the names of a profile by how they are answered.
func namesOf(t *testing.T, profile string) (always, byArgument, notThere set) {
	t.Helper()
	p, err := Profile(profile)
	if err != nil {
		t.Fatal(err)
	}
	always, byArgument, notThere = set{}, set{}, set{}
	for _, rule := range p.Syscalls {
		for _, name := range rule.Names {
			switch {
			case rule.Action != specs.ActAllow && len(rule.Args) == 0:
				if *rule.ErrnoRet == uint(unix.ENOSYS) {
					notThere[name] = true
				}
			case len(rule.Args) > 0:
				byArgument[name] = true
			case always[name]:
				t.Errorf("%s names %s twice", profile, name)
			default:
				always[name] = true
			}
		}
	}
	return always, byArgument, notThere
}

func allowedBy(t *testing.T, profile string) set {
	t.Helper()
	always, byArgument, _ := namesOf(t, profile)
	return always.add(byArgument)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func namesIn(t *testing.T, path string) set {
	t.Helper()
	names := set{}
	for _, name := range strings.Fields(readFile(t, path)) {
		names[name] = true
	}
	return names
}

// TestProfilesAreAsWrittenDown makes a change of a profile show in its OCI form,
// which users start their own from.
func TestProfilesAreAsWrittenDown(t *testing.T) {
	for _, name := range []string{"default", "strict", "debug"} {
		p, err := Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.MarshalIndent(p, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, '\n')
		golden.Check(t, name+".json", data)
		path := filepath.Join("testdata", name+".json")
		read, err := Load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if again, _ := json.MarshalIndent(read, "", "  "); !bytes.Equal(append(again, '\n'), data) {
			t.Errorf("%s is read as something else", path)
		}
	}
}

// TestGroupIDsChangeNoOtherRule: the form for sandboxes that write to no directory of the host
// differs from the published one in the modes of files, and nowhere else.
func TestGroupIDsChangeNoOtherRule(t *testing.T) {
	for _, name := range []string{"default", "strict", "debug"} {
		published, err := Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		other, err := WithGroupIDs(name)
		if err != nil {
			t.Fatal(err)
		}
		changed := 0
		for i := range other.Syscalls {
			for j := range other.Syscalls[i].Args {
				if arg := &other.Syscalls[i].Args[j]; arg.Value == unix.S_ISUID && published.Syscalls[i].Args[j].Value == setid {
					arg.Value = setid
					changed++
				}
			}
		}
		if changed != 9 || !reflect.DeepEqual(published, other) {
			t.Errorf("%s: %d rules of modes differ, and others: %v", name, changed, !reflect.DeepEqual(published, other))
		}
	}
}

func TestProfilesAreCopies(t *testing.T) {
	first, err := Profile("default")
	if err != nil {
		t.Fatal(err)
	}
	first.Syscalls[0].Names[0] = "changed"
	*first.DefaultErrnoRet = 0
	second, err := Profile("default")
	if err != nil {
		t.Fatal(err)
	}
	if second.Syscalls[0].Names[0] == "changed" || *second.DefaultErrnoRet == 0 {
		t.Error("a caller changed the profile of the next")
	}
}

func TestEachNameIsAProfile(t *testing.T) {
	for _, name := range Names() {
		if _, err := Profile(name); err != nil {
			t.Error(err)
		}
	}
}

func TestUnknownProfile(t *testing.T) {
	for _, name := range []string{"", "Default", "unconfined", "default.json"} {
		if p, err := Profile(name); err == nil || p != nil || !strings.Contains(err.Error(), "default, strict and debug") {
			t.Errorf("Profile(%q): %v, %v", name, p, err)
		}
	}
}

// TestProfilesNest: strict within default, default within debug.
func TestProfilesNest(t *testing.T) {
	strict, def, debug := allowedBy(t, "strict"), allowedBy(t, "default"), allowedBy(t, "debug")
	if more := strict.minus(def).sorted(); len(more) > 0 {
		t.Errorf("strict allows more than default: %v", more)
	}
	if less := def.minus(debug).sorted(); len(less) > 0 {
		t.Errorf("debug does not allow all of default: %v", less)
	}
}

// The documentation is held to the profiles: its counts, and the names in its
// tables.

const document = "../docs/seccomp.md"

// section of the document, below a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(readFile(t, document), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", document, heading)
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}

var quotedName = regexp.MustCompile("`([a-z_0-9]+)`")

// firstColumn gives the names in the first column of the section's table.
func firstColumn(t *testing.T, heading string) set {
	t.Helper()
	names := set{}
	for line := range strings.Lines(section(t, heading)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, match := range quotedName.FindAllStringSubmatch(cells[1], -1) {
			names[match[1]] = true
		}
	}
	return names
}

func same(t *testing.T, what string, have, want set) {
	t.Helper()
	for _, name := range have.minus(want).sorted() {
		t.Errorf("%s: %s is there and should not be", what, name)
	}
	for _, name := range want.minus(have).sorted() {
		t.Errorf("%s: %s is missing", what, name)
	}
}

func TestDocumentCountsAreRight(t *testing.T) {
	doc := readFile(t, document)
	for _, profile := range []string{"default", "strict", "debug"} {
		always, byArgument, notThere := namesOf(t, profile)
		row := fmt.Sprintf("| `%s` | %d | %d | %d |", profile, len(always), len(byArgument), len(notThere))
		if !strings.Contains(doc, row+"\n") {
			t.Errorf("%s has no row %s", document, row)
		}
	}
}

// TestDocumentNamesWhatDockerAllowsMore compares with the names recorded from
// moby/profiles v0.2.3: all of its ActAllow rules but those under "includes:
// caps", for every architecture.
func TestDocumentNamesWhatDockerAllowsMore(t *testing.T) {
	moby, elsewhere := namesIn(t, "testdata/moby-0.2.3.txt"), namesIn(t, "testdata/other-architectures.txt")
	def, debug := allowedBy(t, "default"), allowedBy(t, "debug")
	dropped := moby.minus(def).minus(elsewhere)
	same(t, "dropped from Docker's", firstColumn(t, "default, compared with Docker's"), dropped)
	same(t, "added to Docker's", def.minus(moby), set{})
	same(t, "added to Docker's under debug", debug.minus(moby), set{"kcmp": true, "pidfd_getfd": true})

	flat := strings.Join(strings.Fields(section(t, "default, compared with Docker's")), " ")
	sentence := fmt.Sprintf("%d names are allowed without any capability. %d of them are no calls of amd64 or arm64. %d are dropped, which leaves %d.",
		len(moby), len(elsewhere), len(dropped), len(def))
	if !strings.Contains(flat, sentence) {
		t.Errorf("%s does not say: %s", document, sentence)
	}
}

func TestDocumentNamesWhatArgumentsDecide(t *testing.T) {
	_, byArgument, _ := namesOf(t, "default")
	same(t, "decided by argument", firstColumn(t, "Calls that are decided by argument"), byArgument)
}

func TestDocumentNamesWhatStrictLeavesOut(t *testing.T) {
	same(t, "left out of strict", firstColumn(t, "strict"), allowedBy(t, "default").minus(allowedBy(t, "strict")))
}

func TestDocumentNamesWhatDebugAdds(t *testing.T) {
	text := section(t, "debug")
	for _, name := range allowedBy(t, "debug").minus(allowedBy(t, "default")).sorted() {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("%s does not name %s under debug", document, name)
		}
	}
}

func TestDocumentExampleIsAProfile(t *testing.T) {
	_, rest, _ := strings.Cut(section(t, "A file of your own"), "```json\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("no example")
	}
	if _, err := parse([]byte(example)); err != nil {
		t.Error(err)
	}
}
